"""A call that ends before, while or after its batch is sent gives up its own name, and no other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import asynclock
from asynclock._engine import batch
from asynclock._engine.batch import ALONE, Batch
from asynclock._engine.context import Context
from asynclock._engine.message import Message
from asynclock._engine.request import Request
from asynclock._nodes.link import Link
from tests.engine.batches import NAMES, forbid, free, lease_of, listen, together
from tests.engine.virtual_nodes import TTL, Nodes, busy, virtual_single


@busy
async def test_a_call_that_is_over_is_not_asked_for_alone(on: Nodes) -> None:
    for node in on.nodes:
        forbid(node, "a")
    on.slow(0.1)
    tasks = [asyncio.create_task(lease_of(on, name)) for name in NAMES]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    error, cancelled, *leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(error, asynclock.ConfigurationError)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(lease.held for lease in leases)
    await asyncio.sleep(0.5)
    await free(on, *"ab")


@busy
async def test_a_call_that_is_closed_before_the_tick_ends_is_never_sent(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    call = on.locks.lock("a").acquire()
    call.send(None)
    call.close()
    await asyncio.gather(*(on.locks.lock(name).acquire() for name in "bc"))
    assert seen == ["batch"]
    await free(on, "a")
    assert on.locks.statistics().waiting == 0


@busy
async def test_a_deadline_that_ends_before_its_tick_leaves_no_key(on: Nodes) -> None:
    engine = on.locks._engine
    asked = asyncio.ensure_future(together(on, timeout=TTL / 2))
    for _ in range(2):
        await asyncio.sleep(0)
    # uvloop runs a timer that is due before what the tick has scheduled for its end.
    assert engine.multiplexer.unsent
    next(one for one in engine.undos if one._name == "a")._expire()
    leases = await asked
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@busy
async def test_a_call_that_is_begun_and_dropped_gives_its_name_up(on: Nodes) -> None:
    for rounds in range(3):  # 0: the batch is not sent yet
        calls = [on.locks.lock(name).acquire() for name in NAMES]
        for call in calls:
            call.send(None)
        for _ in range(rounds):
            await asyncio.sleep(0)
        del call, calls
        async with asyncio.timeout(TTL / 2), on.locks.lock("a"):
            pass
        await free(on, *NAMES)
        assert on.locks.statistics().waiting == 0


@busy
async def test_a_call_that_is_collected_while_its_batch_is_sent_gives_its_name_up(
    on: Nodes,
) -> None:
    calls = [on.locks.lock(name).acquire() for name in NAMES]
    for call in calls:
        call.send(None)
    command = Message.command

    def collecting(message: Message, *names: Any) -> Any:
        calls.clear()  # Python may collect calls that refer to each other at any moment
        return command(message, *names)

    del call
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Message, "command", collecting)
        await asyncio.sleep(0.1)
    assert not calls
    await free(on, *NAMES)


@busy
async def test_a_call_that_a_collection_interrupts_is_sent(on: Nodes) -> None:
    """What Python collects meanwhile may release its lock, and that sends the batches first."""
    for where, function in ((Context, "new_owner"), (batch, "_with_room")):
        dropped, first, second = (on.locks.lock(name).acquire() for name in "abc")
        dropped.send(None)
        on.locks._engine.multiplexer.flush()
        first.send(None)
        real = getattr(where, function)

        def collecting(*words: Any, dropped: Any = dropped, real: Any = real) -> Any:
            dropped.close()
            return real(*words)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, function, collecting)
            async with asyncio.timeout(TTL / 2), second:
                pass
        first.close()
        await free(on, *"abc")


@busy
async def test_calls_that_are_collected_while_the_manager_is_closed_give_their_names_up(
    on: Nodes,
) -> None:
    abandon, calls = Request._abandon, list[Any]()

    def collecting(request: Request) -> None:
        while calls:  # Python may collect calls that refer to each other at any moment
            calls.pop().close()
        abandon(request)

    for rounds in range(3):  # 0: the batch is not sent yet
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Request, "_abandon", collecting)
            async with on.connect() as locks, asyncio.timeout(TTL / 2):
                calls += [locks.lock(name).acquire() for name in NAMES]
                for call in calls:
                    call.send(None)
                for _ in range(rounds):
                    await asyncio.sleep(0)
                del call
                await locks.aclose()
        assert not calls
        await free(on, *NAMES)


@virtual_single
async def test_a_call_that_is_closed_where_no_loop_runs_gives_its_name_up(on: Nodes) -> None:
    lock = on.locks.lock("a", handoff="strict")
    lease, call = await lock.acquire(), lock.acquire()
    call.send(None)
    on.slow(0.2)
    await lease.release()  # hands it on
    call.send(None)  # waits for a fence
    # So does a garbage collector in any thread, or a caller between two runs of the loop.
    threads: set[int] = set()
    write = Link._write

    def noted(link: Link) -> None:
        threads.add(threading.get_ident())
        write(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "_write", noted)
        on.locks._engine.multiplexer.singles = ALONE  # what is asked is written at once
        thread = threading.Thread(target=call.close)
        thread.start()
        thread.join()
        await free(on, "a")
        async with asyncio.timeout(TTL / 2), on.locks.lock("b"):
            pass
    assert threads == {threading.get_ident()}


@busy
async def test_a_cancelled_call_gives_up_its_name_only(on: Nodes) -> None:
    on.slow(0.1)
    tasks = [asyncio.create_task(lease_of(on, name)) for name in NAMES]
    await asyncio.sleep(0.05)
    tasks[0].cancel()
    leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(leases[0], asyncio.CancelledError)
    assert all(lease.held for lease in leases[1:])
    await free(on, "a")


@virtual_single
async def test_a_call_that_is_cancelled_when_its_batch_is_won_leaves_no_key(on: Nodes) -> None:
    tasks = [asyncio.create_task(lease_of(on, name)) for name in NAMES]
    decide = Batch._decide

    def cancelled_before(batch: Batch) -> None:
        tasks[0].cancel()
        decide(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "_decide", cancelled_before)
        leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(leases[0], asyncio.CancelledError)
    assert all(lease.held for lease in leases[1:])
    await free(on, "a")


@busy
async def test_closing_the_manager_leaves_nothing_behind(on: Nodes) -> None:
    on.slow(0.1)
    async with on.connect(ttl=60.0, max_ttl=60.0) as other:
        for node in on.nodes:
            node.born_ago(3600)
        async with other.lock("warm"):
            pass
        tasks = [asyncio.create_task(_acquired(other, name)) for name in NAMES]
        await asyncio.sleep(0.05)
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in errors} == {asynclock.ConfigurationError}
    await free(on, *NAMES)


@busy
async def test_a_manager_that_is_closed_when_its_batch_is_won_gives_no_lease(on: Nodes) -> None:
    decide = Batch._decide

    def closed_behind(batch: Batch) -> None:
        decide(batch)
        on.locks._engine.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "_decide", closed_behind)
        errors = await together(on)
    assert {type(error) for error in errors} == {asynclock.ConfigurationError}
    await free(on, *NAMES)


async def _acquired(locks: asynclock.LockManager, name: str) -> asynclock.Lease:
    return await locks.lock(name).acquire()
