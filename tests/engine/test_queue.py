"""Waiters of several processes go in the order of their tickets; in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from unittest import TestCase

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine.acquire import Acquire
from asynclock._engine.attempt import Attempt
from asynclock._engine.engine import Engine
from asynclock._engine.options import LeaseOptions
from asynclock._engine.release import GONE
from asynclock._engine.ticket import PATIENCE
from asynclock._nodes.multiplexer import Multiplexer
from asynclock._nodes.replies import NOBODY
from asynclock._nodes.requests import ServerRequests
from asynclock._nodes.script import Command
from asynclock._primitives.lock import SCRIPT, spec
from asynclock.events import Lost
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import (
    KEY,
    TTL,
    Nodes,
    Way,
    seconds_until,
    start,
    virtual,
    virtual_single,
)
from tests.tables.inside import loses_pushes
from tests.waiting import until

AT_ONCE = 0.05
QUEUE = KEY + b":#queue"


def was_refused(locks: asynclock.LockManager) -> bool:
    return locks.statistics().refused >= 1


async def refused(locks: asynclock.LockManager, more: int = 1) -> None:
    """Wait until the nodes have refused this many more attempts."""
    before = locks.statistics().refused
    await until(lambda: locks.statistics().refused >= before + more, every=0.001)


async def is_gone(node: MemoryNode) -> bool:
    return not await node.command("EXISTS", KEY)


async def line_up(lock: asynclock.Lock, locks: asynclock.LockManager) -> asyncio.Task[Any]:
    """Begin to wait, and return once the ticket is on the nodes."""
    task = start(lock.acquire())
    await refused(locks)
    await asyncio.sleep(0.01)
    return task


@virtual
async def test_processes_go_in_the_order_in_which_they_asked(on: Nodes) -> None:
    order: list[int] = []

    async def hold(number: int, waiting: asyncio.Task[Any]) -> None:
        lease = await waiting
        order.append(number)
        await asyncio.sleep(0.02)
        await lease.release()

    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(6)]
        holder = await on.locks.lock("a").acquire()
        tasks = []
        for number, locks in enumerate(others):
            tasks.append(start(hold(number, await line_up(locks.lock("a"), locks))))
        await holder.release()
        await asyncio.gather(*tasks)
    assert order == list(range(6))


@pytest.mark.parametrize("kind", ["lock", "election", "semaphore"])
def test_a_release_wakes_one_waiter(kind: str) -> None:
    async def play(on: Nodes) -> None:
        def call(locks: asynclock.LockManager) -> Any:
            match kind:
                case "lock":
                    return locks.lock("a").acquire()
                case "election":
                    return locks.election("a").campaign()
            return locks.semaphore("a", 1).acquire()

        async def turn(locks: asynclock.LockManager) -> None:
            held = await call(locks)
            await asyncio.sleep(0.02)
            await (held.resign() if kind == "election" else held.release())

        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(on.connect()) for _ in range(10)]
            held = await call(on.locks)
            tasks = [start(turn(locks)) for locks in others]
            for locks in others:
                await until(partial(was_refused, locks))
            await asyncio.sleep(0.01)
            before = sum(locks.statistics().attempts for locks in others)
            await (held.resign() if kind == "election" else held.release())
            await asyncio.gather(*tasks)
            attempts = sum(locks.statistics().attempts for locks in others) - before
            assert attempts == 10  # each asks once, when its turn has come

    virtual(play)()


@asynccontextmanager
async def in_its_turn(
    on: Nodes, turn: float = 60.0
) -> AsyncIterator[tuple[asynclock.LockManager, asynclock.Lease, asyncio.Task[Any]]]:
    """A manager whose turn has begun, its lease, and the next waiter of another process."""
    async with on.connect(turn=turn) as ours, on.connect() as other:
        first = await on.locks.lock("a").acquire()
        mine = await line_up(ours.lock("a"), ours)
        waiting = await line_up(other.lock("a"), other)
        await first.release()
        yield ours, await mine, waiting


@virtual
async def test_a_process_that_loops_does_not_overtake(on: Nodes) -> None:
    async with on.connect(turn=0) as other:
        lease = await on.locks.lock("a").acquire()
        waiting = await line_up(other.lock("a"), other)
        on.slow(0.001)  # the nodes get our next request right behind the release
        releasing = start(lease.release())
        await asyncio.sleep(0)
        again = start(on.locks.lock("a").acquire())
        done, _ = await asyncio.wait((waiting, again), return_when=asyncio.FIRST_COMPLETED)
        assert done == {waiting}
        await releasing
        await (await waiting).release()
        await (await again).release()


@virtual
async def test_a_process_keeps_the_name_for_its_turn_and_no_longer(on: Nodes) -> None:
    async with on.connect(turn=1.0) as ours, on.connect() as other:
        first = await on.locks.lock("a").acquire()
        mine = await line_up(ours.lock("a"), ours)
        waiting = await line_up(other.lock("a"), other)
        await first.release()
        lease, began, bodies = await mine, _clock.now(), 0
        waiting.add_done_callback(lambda task: start(task.result().release()))
        while not waiting.done():
            await asyncio.sleep(0.1)
            bodies += 1
            await lease.release()
            lease = await ours.lock("a").acquire()
        assert 1.0 <= _clock.now() - began < 1.2
        assert bodies >= 9
        await lease.release()


@virtual
async def test_a_task_that_takes_a_name_again_in_its_turn_waits_for_one_round_trip(
    on: Nodes,
) -> None:
    """The release doesn't wait for replies, and is written even if the loop is blocked then."""
    written, write = 0, ServerRequests.write

    def counted(node: ServerRequests) -> None:
        nonlocal written
        written += 1
        write(node)

    async with in_its_turn(on) as (ours, first, waiting):
        lease = first
        on.slow(0.01)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServerRequests, "write", counted)
            for beside in (0, 1):  # a second vote, so requests may go together
                began, written = _clock.now(), 0
                await lease.release()
                assert (_clock.now() - began, written) == (0.0, len(on.nodes))
                others = {object(): lambda: None for _ in range(beside)}
                ours._engine.undos.update(others)  # type: ignore[arg-type]
                lease = await ours.lock("a").acquire()
                ours._engine.undos.clear()
                assert _clock.now() - began == pytest.approx(0.02)
                assert written == (2 - beside) * len(on.nodes)
        assert not waiting.done()
        await lease.release()
        await (await waiting).release()


@virtual
async def test_a_name_that_is_taken_again_and_again_passes_on_once(on: Nodes) -> None:
    """The reply to a release comes when the name has been taken and released again."""
    async with in_its_turn(on) as (ours, first, waiting):
        lease = first
        on.slow(0.01)
        passed, pass_on = 0, Engine.pass_on

        def counted(*call: Any) -> None:
            nonlocal passed
            passed += 1
            pass_on(*call)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "pass_on", counted)
            for _ in range(5):
                await lease.release()
                await asyncio.sleep(0)  # the name is kept for two rounds of the loop
                lease = await ours.lock("a").acquire(timeout=1.0)
            await lease.release()
            await (await waiting).release()
        assert passed == 1


@virtual
async def test_leaving_a_block_in_a_turn_tells_of_a_loss_that_only_the_nodes_know(
    on: Nodes,
) -> None:
    async with in_its_turn(on) as (ours, lease, waiting):
        with pytest.raises(asynclock.LeaseLostError, match=GONE):
            async with lease:
                for node in on.nodes:
                    await node.command("DEL", KEY)
        assert ours.statistics().lost == 1
        await (await waiting).release()


@virtual
async def test_leaving_a_reentrant_hold_in_a_turn_tells_of_a_loss_that_only_the_nodes_know(
    on: Nodes,
) -> None:
    async with on.connect(turn=60.0) as ours, on.connect() as other:
        first = await on.locks.lock("a").acquire()
        mine = await line_up(ours.reentrant_lock("a"), ours)  # type: ignore[arg-type]
        waiting = await line_up(other.lock("a"), other)
        await first.release()
        with pytest.raises(asynclock.LeaseLostError, match=GONE):
            async with await mine:
                for node in on.nodes:
                    await node.command("DEL", KEY)
        await (await waiting).release()


@virtual
async def test_a_loss_is_not_silent_if_the_release_that_shows_it_is_cancelled(on: Nodes) -> None:
    for in_turn in (True, False):
        events: list[object] = []
        async with in_its_turn(on) as (ours, lease, waiting):
            ours.observe(events.append)
            assert lease._grant is not None
            lease._grant.contended = in_turn
            for node in on.nodes:
                await node.command("DEL", KEY)
            leaving = start(lease.__aexit__(None, None, None))
            await asyncio.sleep(0)
            leaving.cancel()
            with TestCase().assertLogs("asynclock", "ERROR") as told:
                await (await waiting).release()
            assert leaving.cancelled()
            lost = [event for event in events if type(event) is Lost]
            assert (lease.lost_reason, len(lost)) == (GONE, 1)
            assert (len(told.output), await lease.release()) == (1, False)


@virtual
async def test_a_loss_that_shows_while_the_manager_closes_is_logged(on: Nodes) -> None:
    async with on.connect() as ours:
        lease = await ours.lock("a").acquire()
        for node in on.nodes:
            await node.command("DEL", KEY)
        releasing = start(lease.release())
        await asyncio.sleep(0)
        with TestCase().assertLogs("asynclock", "ERROR"):
            await ours.aclose()
        assert not await releasing


@virtual
async def test_a_late_reply_to_a_release_that_woke_nobody_wakes_nobody(on: Nodes) -> None:
    woken: list[str | None] = []
    async with in_its_turn(on) as (ours, lease, waiting):
        wakeups = ours._engine.multiplexer.wakeups
        on.ways[2].seconds = 0.02
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(wakeups), "wake", lambda _self, key, _node=None: woken.append(key))
            await lease.release()
            again = await ours.lock("a").acquire()
            await asyncio.sleep(0.1)
        assert woken == []
        await again.release()
        await (await waiting).release()


@virtual_single
async def test_a_name_that_is_kept_while_its_node_is_down_leaves_no_queue(on: Nodes) -> None:
    """Every node answers the release at once: it is known to be down."""
    async with in_its_turn(on) as (ours, lease, waiting):
        on.nodes[0].kill()
        await until(lambda: ours.nodes()[0].state == "down", every=0.01)
        await lease.release()
        await asyncio.sleep(0.01)
        assert not ours._engine.queues
        waiting.cancel()


@virtual
async def test_a_loss_that_the_replies_to_a_release_in_a_turn_reveal_is_reported(
    on: Nodes,
) -> None:
    async with in_its_turn(on) as (ours, lease, waiting):
        for node in on.nodes:
            await node.command("DEL", KEY)
        assert await lease.release()  # by our own clock, it was held
        await (await waiting).release()
        assert (lease.lost_reason, ours.statistics().lost) == (GONE, 1)


@virtual
async def test_a_name_that_is_kept_and_not_wanted_passes_on(on: Nodes) -> None:
    async with in_its_turn(on) as (_, lease, waiting):
        await lease.release()
        assert await seconds_until(waiting.done) < AT_ONCE
        await (await waiting).release()


@virtual
async def test_a_name_that_is_kept_for_a_task_whose_time_is_over_passes_on(on: Nodes) -> None:
    async with in_its_turn(on) as (ours, lease, waiting):
        # The loop was busy: the task's turn comes after its timeout, but before the timer.
        late = start(Acquire(ours._engine, lease._grant.spec, LeaseOptions(5.0), 1.0, since=0.0))
        await asyncio.sleep(0)
        await lease.release()
        assert await seconds_until(waiting.done) < AT_ONCE
        with pytest.raises(asynclock.AcquireTimeoutError):
            await late
        await (await waiting).release()


@virtual
async def test_a_busy_process_lets_others_in(on: Nodes) -> None:
    """Its own tasks hand over to each other for one turn, or until it may ask who else waits."""
    busy = True

    async def work() -> None:
        while busy:
            async with on.locks.lock("a"):
                await asyncio.sleep(0.01)

    async with on.connect() as other:
        tasks = [start(work()) for _ in range(5)]
        await asyncio.sleep(0.5)
        for most in (0.15, 0.05):  # from the second time on it is known that others wait
            began = _clock.now()
            lease = await other.lock("a").acquire(timeout=1.0)
            assert _clock.now() - began < most
            await lease.release()
        busy = False
        await asyncio.gather(*tasks)


@virtual
async def test_a_release_of_several_names_wakes_who_waits_for_one(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        several = await on.locks.multi_lock("a", "b").acquire()
        first = await line_up(one.lock("a"), one)
        second = await line_up(two.lock("a"), two)
        await several.release()
        assert await seconds_until(first.done) < 0.01
        await (await first).release()
        await (await second).release()


@virtual
async def test_a_hand_over_needs_the_push_of_a_quorum(on: Nodes) -> None:
    async with on.connect() as other:
        holder = await on.locks.lock("a").acquire()
        waiting = await line_up(other.lock("a"), other)
        on.ways[2].go_mute()
        await holder.release()
        assert await seconds_until(waiting.done) < 0.01


@virtual
async def test_a_dead_waiter_is_passed_over(on: Nodes) -> None:
    async with on.connect() as other:
        holder = await on.locks.lock("a").acquire()
        for node in on.nodes:
            await node.command("ZADD", QUEUE, 1, "dead")
            await node.command("SET", QUEUE + b":#dead", "1", "PX", int(PATIENCE * 1000))
        waiting = await line_up(other.lock("a"), other)
        await holder.release()
        assert await seconds_until(waiting.done) <= PATIENCE + AT_ONCE
        await (await waiting).release()


@virtual
async def test_a_dead_holder_is_followed_at_the_end_of_its_ttl(on: Nodes) -> None:
    await on.ghost(ttl=4.0)
    async with on.connect() as other:
        first = await line_up(on.locks.lock("a"), on.locks)
        await line_up(other.lock("a"), other)
        assert await seconds_until(first.done) < 4.0 + AT_ONCE


@virtual
async def test_a_release_of_a_client_without_a_queue_is_noticed(on: Nodes) -> None:
    await on.ghost()
    first = await line_up(on.locks.lock("a"), on.locks)
    for node in on.nodes:
        await node.command("DEL", KEY)
    assert await seconds_until(first.done) < AT_ONCE


@virtual
async def test_a_push_that_is_lost_costs_one_refresh(on: Nodes) -> None:
    holder = await on.locks.lock("a").acquire()
    async with on.connect() as other:
        waiting = await line_up(other.lock("a"), other)
        loses_pushes(other)
        await holder.release()
        # The waiter asks again after 0.3 to 0.4 times its PATIENCE.
        assert AT_ONCE < await seconds_until(waiting.done) < PATIENCE * 0.43
        await (await waiting).release()


@virtual
async def test_a_cancelled_waiter_leaves_and_the_next_goes(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        holder = await on.locks.lock("a").acquire()
        first, second = await line_up(one.lock("a"), one), await line_up(two.lock("a"), two)
        first.cancel()
        await asyncio.sleep(AT_ONCE)
        assert [await node.command("ZCARD", QUEUE) for node in on.nodes] == [1, 1, 1]
        await holder.release()
        assert await seconds_until(second.done) < AT_ONCE
        await (await second).release()
    assert [await node.command("KEYS", QUEUE + b"*") for node in on.nodes] == [[], [], []]


@virtual
async def test_a_first_attempt_that_is_cancelled_leaves_no_ticket(on: Nodes) -> None:
    async with on.connect() as other:
        async with other.lock("warm"):
            pass
        holder = await on.locks.lock("a").acquire()
        on.slow(0.1)
        first = start(other.lock("a").acquire())
        await asyncio.sleep(0.15)  # the nodes have the ticket, the answers are on their way
        first.cancel()
        await asyncio.sleep(0.5)
        assert [await node.command("ZCARD", QUEUE) for node in on.nodes] == [0, 0, 0]
        await holder.release()


@virtual
async def test_only_nodes_that_may_have_a_ticket_are_told_that_it_leaves(on: Nodes) -> None:
    node, lock, told = on.locks._engine.multiplexer.nodes[2], on.locks.lock("a"), []

    def noting(send: Any) -> Any:
        def note(command: Command, *more: Any, **arm: bool) -> None:
            told.append(command.op)
            send(command, *more, **arm)

        return note

    node.ask, node.deliver = noting(node.ask), noting(node.deliver)  # type: ignore[method-assign]
    node.trust.quarantine(_clock.now(), 600.0, "it was restarted")
    await (await lock.acquire()).release()
    await on.ghost(ttl=1.0, only="ab")
    waiting = await line_up(lock, on.locks)
    waiting.cancel()  # it waits
    on.slow(0.1)
    waiting = start(lock.acquire())
    await asyncio.sleep(0.05)
    waiting.cancel()  # its first attempt has no answer yet
    await (await lock.acquire()).release()  # it was refused first
    assert "leave" not in told
    assert await on.nodes[0].command("ZCARD", QUEUE) == 0


@virtual
async def test_a_release_that_is_sent_again_puts_no_ticket_back(on: Nodes) -> None:
    """Its attempt failed at the quorum and was to go on waiting, but it has left since."""
    await on.ghost(only="bc")
    for way in on.ways[1:]:
        way.seconds = 0.1
    waiting = start(on.locks.lock("a").acquire())
    first = on.nodes[0]
    await until(lambda: first.command("EXISTS", KEY), every=0.001)
    on.ways[0].go_mute()  # from now on the release gets nowhere
    await refused(on.locks)
    waiting.cancel()
    await until(partial(is_gone, first), every=0.1)
    assert await first.command("ZCARD", QUEUE) == 0


@virtual_single
async def test_a_ticket_that_overtook_its_leave_is_removed(on: Nodes) -> None:
    """The node had forgotten its scripts, and another client taught it in between."""
    node = on.nodes[0]
    await on.ghost(only="a")
    on.slow(0.1)
    node.forget_scripts()
    waiting = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.sleep(0.075)  # the acquire was rejected, and the leave is on its way
    await node.command("SCRIPT", "LOAD", SCRIPT.source)
    await asyncio.sleep(0.5)
    assert await node.command("ZCARD", QUEUE) == 0


@virtual
async def test_a_waiter_leaves_although_its_connections_break_at_that_moment(on: Nodes) -> None:
    async with on.connect() as others:
        holder = await others.lock("a").acquire()
        waiting = await line_up(on.locks.lock("a"), on.locks)
        for node in on.nodes:
            node.cut()
        waiting.cancel()
        await asyncio.sleep(PATIENCE / 4)  # connected again; the ticket hasn't died by itself
        assert [await node.command("ZCARD", QUEUE) for node in on.nodes] == [0, 0, 0]
        await holder.release()


@virtual
async def test_closing_a_manager_removes_the_tickets_of_its_waiters(on: Nodes) -> None:
    """Without pushes, a waiter sleeps until it asks again, and closing doesn't wake it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Multiplexer, "tracks", lambda _: False)
        holder = await on.locks.lock("a").acquire()
        async with on.connect() as others:
            waiting = await line_up(others.lock("a"), others)
        assert [await node.command("ZCARD", QUEUE) for node in on.nodes] == [0, 0, 0]
        with pytest.raises(asynclock.AsyncLockError):
            await waiting
        await holder.release()


@virtual_single
async def test_a_node_that_forgot_its_scripts_gets_a_leave_once_for_each_acquire(on: Nodes) -> None:
    """Many acquires with the same ticket are on their way."""
    node, received = on.nodes[0], Counter[bytes]()
    answer = node.answer

    def count(client: Any, words: Any) -> Any:
        received.update(word for word in words if word in (b"release", b"leave"))
        return answer(client, words)

    link = on.locks._engine.multiplexer.nodes[0].link  # type: ignore[attr-defined]  # its type
    keys = ("asynclock:a", "asynclock:a:#fence", "asynclock:a:#queue")
    node.answer = count  # type: ignore[method-assign]  # on purpose
    node.forget_scripts()
    on.slow(0.01)
    attempts = 10
    for number in range(attempts):
        owner = "first" if number == 0 else f"owner-{number}"
        words = ("acquire", owner, 10_000, 0, 0, 60_000, 2000, "first", number)
        link.send(Command(SCRIPT, keys, words), NOBODY, 0)
    for op in ("release", "leave"):
        link.send(Command(SCRIPT, keys, (op, "first")), NOBODY, 0)
    await asyncio.sleep(1)
    assert max(received.values()) <= attempts + 2  # sent, rejected, and sent again
    assert await node.command("ZCARD", QUEUE) == 0


@virtual
async def test_a_waiter_that_was_woken_and_goes_away_wakes_the_next(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        holder = await on.locks.lock("a").acquire()
        first, second = await line_up(one.lock("a"), one), await line_up(two.lock("a"), two)
        on.slow(0.3)
        await holder.release()
        first.cancel()
        assert await seconds_until(second.done) < 2.0
        await (await second).release()


@virtual
async def test_without_pushes_waiters_ask_at_intervals(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        for locks in (one, two):
            locks._engine.multiplexer.tracks = lambda: False  # type: ignore[method-assign]
        holder = await on.locks.lock("a").acquire()
        first, second = await line_up(one.lock("a"), one), await line_up(two.lock("a"), two)
        await holder.release()
        lease = await asyncio.wait_for(first, 1.0)
        assert not second.done()
        await lease.release()
        await (await asyncio.wait_for(second, 1.0)).release()


@virtual
async def test_a_restarted_node_takes_the_tickets_back(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        holder = await on.locks.lock("a").acquire()
        first, second = await line_up(one.lock("a"), one), await line_up(two.lock("a"), two)
        on.nodes[0].restart()
        await until(lambda: all(n.state != "down" for n in one.nodes()))
        before = one.statistics().attempts + two.statistics().attempts
        await asyncio.sleep(TTL + 1)  # its quarantine
        attempts = one.statistics().attempts + two.statistics().attempts - before
        # A node without a vote has no tickets: that is no reason to ask.
        assert attempts <= 2 * (TTL + 1) / (0.3 * PATIENCE) + 2
        assert await on.nodes[0].command("ZCARD", QUEUE) == 2
        await holder.release()
        lease = await asyncio.wait_for(first, 1.0)
        assert not second.done()
        await lease.release()
        await (await second).release()


@virtual
async def test_a_node_that_lacks_the_lock_is_no_reason_to_ask(on: Nodes) -> None:
    """It leaves the name to the first waiter, who needs a quorum all the same."""
    async with on.connect() as other:
        holder = await on.locks.lock("a").acquire()
        await on.nodes[2].command("DEL", KEY)  # as if the acquire had never come there
        waiting = await line_up(other.lock("a"), other)
        before = other.statistics().attempts
        await asyncio.sleep(3.0)
        assert other.statistics().attempts - before <= 3.0 / (0.3 * PATIENCE) + 1
        await holder.release()
        await (await asyncio.wait_for(waiting, AT_ONCE)).release()


@virtual
async def test_a_split_vote_is_settled_among_those_who_try_once(on: Nodes) -> None:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(8)]
        for locks in others:
            async with locks.lock("warm"):
                pass
        for number in range(20):
            for way in on.ways:
                way.delay = lambda: on.locks._engine.random() * 0.005  # type: ignore[method-assign]
            calls = [locks.lock(f"n{number}").try_acquire() for locks in others]
            won = [lease for lease in await asyncio.gather(*calls) if lease is not None]
            assert len(won) == 1
            await won[0].release()


@virtual
async def test_refusals_that_come_before_the_grant_are_no_defeat(on: Nodes) -> None:
    await on.ghost("first", ttl=0.05, only="a")
    await on.ghost("second", ttl=0.05, only="b")
    on.ways[2].seconds = 0.01  # the node that grants answers last
    lease = await on.locks.lock("a").try_acquire()
    assert lease is not None
    await lease.release()


@virtual
async def test_a_turn_that_is_lost_to_others_gives_no_place_before_them(on: Nodes) -> None:
    # Node b is free, but a ticket waits there; the lock of the same waiter's attempt is on node a.
    later = int(on.nodes[1].wall() * 1e6) + 60_000_000
    await on.ghost("waiter", only="a")
    await on.nodes[1].command("ZADD", QUEUE, later, "waiter")
    await on.nodes[1].command("SET", QUEUE + b":#waiter", "1", "PX", 60_000)
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down")
    engine, name = on.locks._engine, spec("asynclock:", "a")
    turn = Attempt(engine, name, TTL, None, name.waits)
    turn.barge()
    assert not await turn.decide(armed=False, limit=None)
    assert turn.ticket is not None
    assert turn.ticket.unsettled
    after = Attempt(engine, name, TTL, turn.ticket, name.waits)
    assert not await after.decide(armed=False, limit=None)
    assert turn.ticket.number > later
    after.abandon()


@virtual_single
async def test_a_refusal_at_a_free_slot_names_the_waiter_that_it_is_left_to(on: Nodes) -> None:
    node = on.nodes[0]
    slot = on.locks.semaphore("a", 2)._slot("a", 0)
    await node.command("SET", slot.keys[0], "holder", "PX", 60_000)
    await node.command("ZADD", slot.queue, 1, "waiter")
    await node.command("SET", slot.ticket_key("waiter"), "1", "PX", 2_000)
    attempt = Attempt(on.locks._engine, slot, TTL)
    assert not await attempt.decide(armed=False, limit=None)
    assert (attempt.holder, attempt.reserved) == ("waiter", ["waiter"])
    left, _ = attempt.refusals[0]
    assert left is not None
    assert 0 < left <= 2.0
    assert await node.command("GET", slot.ticket_key("waiter")) == "go"


@virtual
async def test_a_node_that_has_left_the_name_to_us_counts_once(on: Nodes) -> None:
    watch = on.locks._engine.multiplexer.wakeups.watch((), ticket="mine")
    watch.count(0)
    watch.on_change(0)
    assert not await watch.wait(1.0)
    watch.on_change(1)
    assert await watch.wait(1.0)
    watch.close()


def test_no_fair_lock_overtakes_on_five_nodes_one_dead_one_frozen() -> None:
    async def play() -> None:
        on = Nodes([MemoryNode(name) for name in "abcde"], [Way() for _ in "abcde"])
        for node in on.nodes:
            node.born_ago(3600)
        order: list[int] = []

        async def wait(number: int, locks: asynclock.LockManager) -> None:
            async with locks.fair_lock("f"):
                order.append(number)
                await asyncio.sleep(0.01)

        async with AsyncExitStack() as stack:
            processes = [await stack.enter_async_context(on.connect()) for _ in range(8)]
            for locks in processes:
                async with locks.lock("warm"):
                    pass
            holder = await processes[0].fair_lock("f").acquire()
            on.nodes[1].kill()
            on.nodes[3].freeze()
            tasks = []
            for number in range(80):
                locks = processes[number % 8]
                tasks.append(asyncio.create_task(wait(number, locks)))
                await refused(locks)
                await asyncio.sleep(0.02)
            await holder.release()
            await asyncio.gather(*tasks)
        assert order == list(range(80))

    run_virtual(play())


@pytest.mark.parametrize("seed", [1, 2])
def test_tasks_that_ask_at_once_go_in_order_where_just_a_quorum_is_up(seed: int) -> None:
    """The first refusal decides a vote there, and tickets need the numbers of all three nodes."""
    bodies: list[tuple[float, float]] = []

    async def play() -> None:
        chance = random.Random(seed)
        on = Nodes([MemoryNode(name) for name in "abcde"], [Way() for _ in "abcde"])
        for node in on.nodes:
            node.born_ago(3600)

        async def jitter() -> None:
            while True:
                for way in on.ways:
                    way.seconds = chance.choice((0.0001, 0.0003, 0.001, 0.003))
                await asyncio.sleep(chance.uniform(0.0005, 0.004))

        async def work(locks: asynclock.LockManager) -> None:
            await asyncio.sleep(chance.choice((0.0, 0.001, 0.003)))
            while (asked := _clock.now()) < end:
                async with locks.fair_lock("f"):
                    bodies.append((asked, _clock.now()))
                    await asyncio.sleep(0.002)

        async with AsyncExitStack() as stack:
            processes = [
                await stack.enter_async_context(on.connect(node_timeout=0.25)) for _ in range(8)
            ]
            on.nodes[3].kill()
            on.nodes[4].freeze()
            shaking = asyncio.create_task(jitter())
            end = _clock.now() + 2.0
            await asyncio.gather(*(work(locks) for locks in processes for _ in range(10)))
            shaking.cancel()

    run_virtual(play())
    for place, (asked, _) in enumerate(bodies):
        assert not [one for one in bodies[:place] if one[0] > asked + 0.1]
    assert max(began - asked for asked, began in bodies) < 1.0
