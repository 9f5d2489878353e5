"""What one tick of the loop asks for travels as one command per node, and each name stays alone."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections import Counter
from typing import Any

import pytest

import asynclock
from asynclock._engine.batch import MOST_NAMES, Batch
from asynclock._engine.context import Context
from asynclock._engine.message import Message
from asynclock._nodes.requests import ServerRequests
from asynclock._primitives.lock import SCRIPT
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import TTL, Nodes, virtual, virtual_single
from tests.waiting import until

NAMES = "abcde"


def listen(node: MemoryNode) -> list[str]:
    """Return a list of the operations that the node executes from now on."""
    seen: list[str] = []
    answer = node.answer

    def listening(client: Any, words: Any) -> Any:
        if words[0].upper() in (b"EVALSHA", b"EVAL"):
            seen.append(words[3 + int(words[2])].decode())
        return answer(client, words)

    node.answer = listening  # type: ignore[method-assign]
    return seen


async def together(on: Nodes, names: str = NAMES, **settings: Any) -> list[Any]:
    """Acquire all names in one tick; return leases and errors."""
    calls = (on.locks.lock(name, **settings).acquire() for name in names)
    return await asyncio.gather(*calls, return_exceptions=True)


async def free(on: Nodes, *names: str) -> None:
    """Wait until no node has a key, or a queue, of these names."""

    async def gone() -> bool:
        keys = [f"asynclock:{name}{part}" for name in names for part in ("", ":#queue")]
        return not any([await node.command("EXISTS", *keys) for node in on.nodes])

    # In virtual time, and long before a ttl is over.
    await until(gone, f"nothing of {names} is left", timeout=TTL / 2, every=0.01)


@virtual
async def test_one_command_per_node_and_tick(on: Nodes) -> None:
    seen = [listen(node) for node in on.nodes]
    leases = await together(on)
    assert len({lease.owner for lease in leases}) == len(NAMES)
    await asyncio.gather(*(lease.release() for lease in leases))
    assert seen == [["batch", "batch"]] * 3
    await free(on, *NAMES)


@virtual
async def test_one_name_needs_no_batch(on: Nodes) -> None:
    seen = [listen(node) for node in on.nodes]
    async with on.locks.lock("a"):
        pass
    assert seen == [["acquire", "release"]] * 3


@virtual
async def test_releases_and_acquires_of_a_tick_share_a_command(on: Nodes) -> None:
    first = await together(on, "ab")
    seen = listen(on.nodes[0])
    *_, third = await asyncio.gather(
        *(lease.release() for lease in first), on.locks.lock("c").acquire()
    )
    assert third.held
    assert seen == ["batch"]


@virtual
async def test_a_released_name_can_be_taken_in_the_same_tick(on: Nodes) -> None:
    lease, other = await together(on, "ab")
    release = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    again = await on.locks.lock("a").try_acquire()
    assert again is not None
    assert again.fence > lease.fence
    assert await release
    assert await other.release()


@virtual
async def test_it_can_be_taken_in_the_same_tick_where_each_name_goes_alone(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerRequests, "carries", False)
        _, _, again = await asyncio.gather(
            on.locks.lock("x", ttl=5.0).acquire(), lease.release(), on.locks.lock("a").try_acquire()
        )
    assert again is not None


@virtual
async def test_a_held_name_keeps_no_other_name_back(on: Nodes) -> None:
    await on.ghost()
    tries = [on.locks.lock(name).try_acquire() for name in NAMES]
    first, *others = await asyncio.gather(*tries)
    assert first is None
    assert all(lease is not None and lease.held for lease in others)
    assert on.locks.statistics().refused == 1


@virtual
async def test_a_waiter_of_a_batch_gets_the_name_once_it_is_free(on: Nodes) -> None:
    await on.ghost(ttl=3.0)
    leases = await together(on)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@virtual
async def test_another_programs_key_fails_its_own_name_only(on: Nodes) -> None:
    for node in on.nodes:
        await node.command("HSET", "asynclock:a", "x", "y")
        await node.command("HSET", "asynclock:b:#fence", "x", "y")
    first, second, *others = await together(on)
    for error in (first, second):
        assert isinstance(error, asynclock.ConfigurationError)
        assert "WRONGTYPE" in str(error)
    assert all(lease.held for lease in others)
    await asyncio.gather(*(lease.release() for lease in others))
    await free(on, *NAMES[1:])


def forbid(node: MemoryNode, name: str) -> None:
    """Refuse all commands with keys of this name: the user has no right to them."""
    answer = node.answer

    def refusing(client: Any, words: Any) -> Any:
        keys = words[3 : 3 + int(words[2])] if words[0].upper() in (b"EVALSHA", b"EVAL") else ()
        if any(key.decode().partition(":#")[0] == f"asynclock:{name}" for key in keys):
            return ReplyError("NOPERM No permissions to access a key")
        return answer(client, words)

    node.answer = refusing  # type: ignore[method-assign]


@virtual
async def test_a_name_without_a_right_to_it_fails_alone(on: Nodes) -> None:
    held = await together(on, "xy")
    for node in on.nodes:
        forbid(node, "a")
    wanted = asyncio.ensure_future(together(on))
    assert all(await asyncio.gather(*(lease.release() for lease in held)))
    error, *leases = await wanted
    assert isinstance(error, asynclock.ConfigurationError)
    assert "NOPERM" in str(error)
    assert all(lease.held for lease in leases)
    await free(on, *"axy")


@virtual
async def test_a_call_that_is_over_is_not_asked_for_alone(on: Nodes) -> None:
    for node in on.nodes:
        forbid(node, "a")
    on.slow(0.1)
    tasks = [asyncio.create_task(_lease(on, name)) for name in NAMES]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    error, cancelled, *leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(error, asynclock.ConfigurationError)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(lease.held for lease in leases)
    await asyncio.sleep(0.5)
    await free(on, *"ab")


@virtual
async def test_nodes_that_disagree_about_one_fence_agree_about_the_rest(on: Nodes) -> None:
    now = int(on.nodes[0].wall() * 1_000_000)
    for ahead, node in enumerate(on.nodes):
        await node.command("SET", "asynclock:b:#fence", now + ahead * 5_000_000, "PX", 60_000)
    leases = await together(on)
    fences = [lease.fence for lease in leases]
    # Two of three nodes decide, whichever reply first.
    assert fences[1] > max(fences[0], *fences[2:]) + 4_000_000
    assert on.locks.statistics().write_backs == 1


@virtual
async def test_each_ttl_has_a_command_of_its_own(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    ttls = (4.0, 5.0, 4.0, 5.0)
    calls = [on.locks.lock(f"{number}", ttl=ttl).acquire() for number, ttl in enumerate(ttls)]
    leases = await asyncio.gather(*calls)
    assert [lease.ttl for lease in leases] == [*ttls]
    assert seen == ["batch", "batch"]
    assert 4000 < await on.nodes[0].command("PTTL", "asynclock:3") <= 5000
    assert await on.nodes[0].command("PTTL", "asynclock:0") <= 4000


@virtual
async def test_any_number_of_ttls_in_one_tick(on: Nodes) -> None:
    """No batch is sent within another: there may be more than calls can nest."""
    depths: list[int] = []
    many, send = 100, Batch.send

    def counted(batch: Batch, *, now: bool) -> None:
        depths.append(sum(1 for _ in traceback.walk_stack(None)))
        send(batch, now=now)

    held = await on.locks.lock("held").acquire()
    calls = [
        on.locks.lock(f"n{number}", ttl=5.0 + number / 1000).acquire() for number in range(many)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "send", counted)
        *leases, checked = await asyncio.gather(*calls, held.check())
    assert checked
    assert all(lease.held for lease in leases)
    assert len(depths) == many
    assert max(depths) - min(depths) < many / 2


@virtual
async def test_a_command_has_a_maximum_number_of_names(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    calls = [on.locks.lock(f"n{number}").acquire() for number in range(2 * MOST_NAMES + 2)]
    leases = await asyncio.gather(*calls)
    assert all(lease.held for lease in leases)
    assert seen == ["batch"] * 3


@virtual
async def test_a_full_command_is_sent_at_once(on: Nodes) -> None:
    await (await on.locks.lock("connected").acquire()).release()
    nodes = on.locks._engine.multiplexer
    calls = [on.locks.lock(f"n{number}").acquire() for number in range(MOST_NAMES)]
    for call in calls:
        assert len(nodes.unsent) == (call is not calls[0])
        call.send(None)
    assert not nodes.unsent  # nodes work on it while other tasks of this tick go on
    for call in calls:
        call.close()
    await free(on, *(f"n{number}" for number in range(MOST_NAMES)))


@virtual
async def test_a_call_that_is_closed_before_the_tick_ends_is_never_sent(on: Nodes) -> None:
    seen = listen(on.nodes[0])
    call = on.locks.lock("a").acquire()
    call.send(None)
    call.close()
    await asyncio.gather(*(on.locks.lock(name).acquire() for name in "bc"))
    assert seen == ["batch"]
    await free(on, "a")
    assert on.locks.statistics().waiting == 0


@virtual
async def test_a_deadline_that_ends_before_its_tick_leaves_no_key(on: Nodes) -> None:
    engine = on.locks._engine
    asked = asyncio.ensure_future(together(on, timeout=TTL / 2))
    for _ in range(2):
        await asyncio.sleep(0)
    # uvloop runs a timer that is due before what the tick has scheduled for its end.
    assert engine.multiplexer.unsent
    next(one for one in engine.deciding if one._name == "a")._expire()
    leases = await asked
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@virtual
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


@virtual
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


@virtual
async def test_a_call_that_a_collection_interrupts_is_sent(on: Nodes) -> None:
    """What Python collects meanwhile may release its lock, and that sends the batches first."""
    for where, function in ((Context, "new_owner"), (Batch, "fits")):
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


@virtual_single
async def test_a_call_that_is_closed_where_no_loop_runs_gives_its_name_up(on: Nodes) -> None:
    lock = on.locks.lock("a", handoff="strict")
    lease, call = await lock.acquire(), lock.acquire()
    call.send(None)
    on.slow(0.2)
    await lease.release()  # hands it on
    call.send(None)  # waits for a fence
    # So does a garbage collector in any thread, or a caller between two runs of the loop.
    thread = threading.Thread(target=call.close)
    thread.start()
    thread.join()
    await free(on, "a")
    async with asyncio.timeout(TTL / 2), on.locks.lock("b"):
        pass


@virtual
async def test_a_cancelled_call_gives_up_its_name_only(on: Nodes) -> None:
    on.slow(0.1)
    tasks = [asyncio.create_task(_lease(on, name)) for name in NAMES]
    await asyncio.sleep(0.05)
    tasks[0].cancel()
    leases = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(leases[0], asyncio.CancelledError)
    assert all(lease.held for lease in leases[1:])
    await free(on, "a")


@virtual_single
async def test_a_call_that_is_cancelled_when_its_batch_is_won_leaves_no_key(on: Nodes) -> None:
    tasks = [asyncio.create_task(_lease(on, name)) for name in NAMES]
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


async def _lease(on: Nodes, name: str) -> asynclock.Lease:
    return await on.locks.lock(name).acquire()


@virtual
async def test_a_node_that_is_down_breaks_no_batch(on: Nodes) -> None:
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down", every=0.01)
    seen = [listen(node) for node in on.nodes]
    leases = await together(on)
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    assert seen == [["batch", "batch"], ["batch", "batch"], []]
    await free(on, *NAMES)


@virtual
async def test_a_quarantined_node_gets_the_releases_alone(on: Nodes) -> None:
    first = await together(on, "ab")
    on.nodes[2].restart(keep_data=True)
    await until(lambda: on.locks.nodes()[2].state == "quarantined", every=0.01)
    seen = [listen(node) for node in on.nodes]
    *_, third = await asyncio.gather(*(one.release() for one in first), _lease(on, "c"))
    assert third.held
    assert seen == [["batch"], ["batch"], ["release", "release"]]
    await free(on, *"ab")


@virtual
async def test_a_name_that_is_held_elsewhere_is_refused_while_a_node_is_down(on: Nodes) -> None:
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down", every=0.01)
    await on.ghost(only="a")
    calls = [on.locks.lock(name).try_acquire() for name in "abc"]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert first is None
    assert second.held
    assert third.held


@virtual
async def test_too_few_nodes_for_a_batch_fail_every_name(on: Nodes) -> None:
    for number in (1, 2):
        on.nodes[number].kill()
    await until(lambda: [n.state for n in on.locks.nodes()].count("down") == 2, every=0.01)
    errors = await together(on, timeout=1.0)
    assert Counter(map(type, errors)) == {asynclock.QuorumUnavailableError: len(NAMES)}
    await free(on, *NAMES)


@virtual
async def test_a_connection_that_breaks_in_between_costs_no_name(on: Nodes) -> None:
    on.slow(0.1)
    gathered = asyncio.ensure_future(together(on))
    await asyncio.sleep(0.05)
    on.nodes[0].cut()
    leases = await gathered
    assert all(lease.held for lease in leases)
    await asyncio.gather(*(lease.release() for lease in leases))
    await free(on, *NAMES)


@virtual
async def test_releases_that_a_node_did_not_answer_are_sent_again(on: Nodes) -> None:
    leases = await together(on)
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    # By now the link counts all as failed: the connection breaks later.
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    on.nodes[0].restart(keep_data=True)
    assert await on.nodes[0].command("EXISTS", "asynclock:a")
    await free(on, *NAMES)


@virtual
async def test_a_late_error_about_the_script_does_not_cost_the_releases(on: Nodes) -> None:
    leases = await together(on)
    on.nodes[0].forget_scripts()
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    on.nodes[0].thaw()
    await free(on, *NAMES)


@virtual
async def test_a_late_denial_of_one_name_does_not_cost_the_other_releases(on: Nodes) -> None:
    leases = await together(on, "ab")
    forbid(on.nodes[0], "a")
    on.nodes[0].freeze()
    await asyncio.gather(*(lease.release() for lease in leases))
    await until(lambda: on.locks.nodes()[0].state == "stalled", every=0.01)
    on.nodes[0].thaw()
    await free(on, "b")


@virtual
async def test_too_few_answers_fail_every_name(on: Nodes) -> None:
    for way in on.ways[:2]:
        way.go_mute()
    errors = await together(on, timeout=2.0)
    assert Counter(map(type, errors)) == {asynclock.QuorumUnavailableError: len(NAMES)}
    await free(on, *NAMES)


@virtual
async def test_nodes_that_forgot_the_script_get_it_again(on: Nodes) -> None:
    for node in on.nodes:
        node.forget_scripts()
    leases = await together(on)
    assert all(lease.held for lease in leases)
    for node in on.nodes:
        node.forget_scripts()
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    await free(on, *NAMES)


@virtual
async def test_releases_that_ran_before_their_acquires_are_repeated(on: Nodes) -> None:
    """The acquires met a server without its script, which another client then loaded."""
    node = on.nodes[2]
    node.forget_scripts()
    on.ways[2].seconds = 0.1
    leases = await together(on, "ab")
    await asyncio.sleep(0.05)
    assert all(await asyncio.gather(*(lease.release() for lease in leases)))
    await asyncio.sleep(0.075)
    await node.command("SCRIPT", "LOAD", SCRIPT.source)
    await asyncio.sleep(0.5)
    assert await node.command("EXISTS", "asynclock:a:#fence", "asynclock:b:#fence") == 2
    assert await node.command("EXISTS", "asynclock:a", "asynclock:b") == 0


@virtual
async def test_a_late_refusal_leaves_no_ticket(on: Nodes) -> None:
    await on.ghost("ghost", only="c", ttl=5.0)
    on.ways[2].seconds = 0.2
    leases = await together(on)
    assert all(lease.held for lease in leases)

    async def left() -> bool:
        return not await on.nodes[2].command("EXISTS", "asynclock:a:#queue")

    await asyncio.sleep(0.5)
    await until(left, "the ticket is gone", every=0.01)


@virtual
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


@virtual
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


@virtual
async def test_a_release_that_nodes_deny_is_a_loss_of_its_name_only(on: Nodes) -> None:
    leases = await together(on)
    for node in on.nodes[:2]:
        await node.command("DEL", "asynclock:a")
    held = await asyncio.gather(*(lease.release() for lease in leases))
    assert held == [False, True, True, True, True]
    with pytest.raises(asynclock.LeaseLostError):
        await leases[0].extend()
