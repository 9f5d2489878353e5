"""A call ends, or the manager, at any moment inside the way of a batch: nothing is left of it.

As when Python collects calls that refer to each other, which it may do at any moment.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import asynclock
from asynclock._engine import outbox as batch
from asynclock._engine.outbox import ALONE, MOST_NAMES, Ask, Batch
from asynclock._engine.spec import OwnerIds
from asynclock._nodes.server import ServerNode
from tests.engine.batches import NAMES, free, lease_of
from tests.engine.virtual_nodes import TTL, Nodes, virtual
from tests.waiting import go_through, until

Act = Callable[[Nodes, list[Any], list[asyncio.Task[Any]]], None]
"""What happens: to the manager, to calls that were begun by hand, or to the tasks of others."""


def close_calls(_on: Nodes, calls: list[Any], _tasks: list[asyncio.Task[Any]]) -> None:
    while calls:
        calls.pop().close()


def cancel_one(_on: Nodes, _calls: list[Any], tasks: list[asyncio.Task[Any]]) -> None:
    tasks[0].cancel()


def close_engine(on: Nodes, _calls: list[Any], _tasks: list[asyncio.Task[Any]]) -> None:
    on.locks._engine.close()


@pytest.mark.parametrize(
    ("act", "place", "moment"),
    [
        (close_calls, Batch, "_command"),
        (close_calls, OwnerIds, "new"),
        (close_calls, batch, "_with_room"),
        (close_calls, Batch, "_decide"),
        (close_calls, Ask, "withdraw"),
        (cancel_one, Batch, "_command"),
        (cancel_one, Batch, "_decide"),
        (close_engine, Batch, "_decide"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("rounds", range(3))  # 0: the batch of the begun calls is not sent yet
@virtual
async def test_nothing_is_left(
    on: Nodes, rounds: int, after: bool, act: Act, place: Any, moment: str
) -> None:
    real, calls = getattr(place, moment), [on.locks.lock(f"{n}").acquire() for n in range(3)]
    tasks: list[asyncio.Task[Any]] = []

    def meanwhile(*words: Any, **more: Any) -> Any:
        if not after:
            act(on, calls, tasks)
        try:
            return real(*words, **more)
        finally:
            if after:
                act(on, calls, tasks)

    for call in calls:
        call.send(None)
    for _ in range(rounds):
        await asyncio.sleep(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, moment, meanwhile)
        async with asyncio.timeout(TTL / 2):
            tasks += [asyncio.create_task(lease_of(on, name)) for name in NAMES]
            tasks[1].get_loop().call_later(0.001, tasks[1].cancel)
            found = await asyncio.gather(*tasks, return_exceptions=True)
    for call in calls:
        call.close()
    if act is close_engine:
        assert not [one for one in found if isinstance(one, asynclock.Lease) and one.held]
    else:
        held = [isinstance(one, asynclock.Lease) for one in found]
        assert held[1:] == [True] * 4
        assert held[0] is (act is not cancel_one)
        await asyncio.gather(*(lease.release() for lease in found if lease in found[1:]))
    if isinstance(found[0], asynclock.Lease):
        await found[0].release()
    await free(on, *NAMES, "0", "1", "2")
    assert on.locks.statistics().waiting == 0 or act is close_engine


@pytest.mark.parametrize("rounds", range(3))
@virtual
async def test_calls_that_are_collected_while_the_manager_is_closed_give_their_names_up(
    on: Nodes, rounds: int
) -> None:
    withdraw, calls = Ask.withdraw, list[Any]()

    def collecting(ask: Ask) -> None:
        close_calls(on, calls, [])
        withdraw(ask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ask, "withdraw", collecting)
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


@virtual
async def test_a_deadline_that_ends_before_its_tick_leaves_no_key(on: Nodes) -> None:
    """Uvloop runs a timer that is due before what the tick has scheduled for its end."""
    engine = on.locks._engine
    asked = [asyncio.create_task(on.locks.lock(name).acquire(timeout=5.0)) for name in NAMES]
    await until(lambda: engine.multiplexer.unsent, every=0)
    next(one for one in engine.undos if isinstance(one, Ask) and one.spec.name == "a").expire()
    leases = await asyncio.gather(*asked)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@virtual
async def test_a_batch_is_sent_when_it_is_full_or_its_task_seems_to_be_alone(on: Nodes) -> None:
    """What else its tick asks for travels together, because its own verdict is not there yet."""
    nodes = on.locks._engine.multiplexer
    calls = [on.locks.lock(f"n{number}").acquire() for number in range(MOST_NAMES)]
    for call in calls:
        assert len(nodes.unsent) == (call is not calls[0])
        call.send(None)
    assert not nodes.unsent, "nodes work on it while other tasks of this tick go on"
    for call in calls:
        call.close()
    await asyncio.sleep(0.1)
    assert nodes.singles == 0
    for _ in range(ALONE):
        await go_through(on.locks.lock("x"))
    call = on.locks.lock("a").acquire()
    call.send(None)
    assert (nodes.undecided, nodes.unsent) == (1, [])
    other = on.locks.lock("b").acquire()
    other.send(None)
    assert len(nodes.unsent) == 1
    call.close()
    other.close()
    await free(on, "a", "b")


@virtual
async def test_a_node_that_fails_after_the_verdict_makes_no_votes(on: Nodes) -> None:
    on.nodes[0].freeze()
    with mock.patch.object(Ask, "to_attempt") as vote:
        leases = await asyncio.gather(*(lease_of(on, name) for name in NAMES))
        await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    assert all(lease.held for lease in leases)
    vote.assert_not_called()


@virtual
async def test_a_released_name_can_be_taken_in_the_same_tick_where_each_name_goes_alone(
    on: Nodes,
) -> None:
    lease = await on.locks.lock("a").acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerNode, "takes_batches", False)
        _, _, again = await asyncio.gather(
            on.locks.lock("x", ttl=5.0).acquire(), lease.release(), on.locks.lock("a").try_acquire()
        )
    assert again is not None


async def test_what_another_thread_wants_done_wakes_an_idle_loop() -> None:
    """As when a garbage collection there drops a call."""
    done = asyncio.Event()
    slow = {"node_timeout": 60.0, "ttl": 1000.0, "max_ttl": 1000.0}  # so that no timer wakes it
    async with asynclock.connect("memory://idle", **slow) as locks:
        await go_through(locks.lock("a"))
        thread = threading.Timer(0.1, locks._engine.soon, [done.set])
        thread.start()
        began = time.monotonic()
        await asyncio.wait_for(done.wait(), 30)
        assert time.monotonic() - began < 20
        thread.join()
