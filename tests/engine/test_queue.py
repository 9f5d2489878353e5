"""Waiters of several processes go in the order of their tickets; in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from unittest import TestCase

import pytest

import asynclock
from asynclock.events import Lost
from asynclock.testing.memory import MemoryNode
from tests.engine.batches import listen, teach
from tests.engine.kinds import calls
from tests.engine.virtual_nodes import (
    GONE,
    KEY,
    PATIENCE,
    TTL,
    Nodes,
    old,
    refuse_tracking,
    seconds_until,
    start,
    virtual,
    virtual_single,
)
from tests.tables.inside import chance, loses_pushes, names_in_use, now
from tests.waiting import go_through, in_virtual_time, until

AT_ONCE = 0.05
QUEUE = KEY + b":#queue"


async def refused(locks: asynclock.LockManager, more: int = 1) -> None:
    """Wait until the nodes have refused this many more attempts."""
    before = locks.statistics().refused
    await until(lambda: locks.statistics().refused >= before + more, every=0.001)


async def forget(on: Nodes, key: bytes = KEY) -> None:
    """Let all nodes forget a key, unnoticed."""
    await on.command("DEL", key)


async def is_gone(node: MemoryNode) -> bool:
    return not await node.command("EXISTS", KEY)


async def line_up(lock: asynclock.Lock, locks: asynclock.LockManager) -> asyncio.Task[Any]:
    """Begin to wait, and return once the ticket is on the nodes."""
    task = start(lock.acquire())
    await refused(locks)
    await asyncio.sleep(0.01)
    return task


async def wins(waiting: asyncio.Task[Any], within: float) -> None:
    """Look whether a waiter gets the lock in this many seconds, and let it go again."""
    assert await seconds_until(waiting.done) < within
    await (await waiting).release()


@asynccontextmanager
async def in_line(on: Nodes, count: int) -> AsyncIterator[tuple[Any, ...]]:
    """A lease, and those who wait for it in this order, each in a process of its own."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(count)]
        holder = await on.locks.lock("a").acquire()
        yield (holder, *[await line_up(locks.lock("a"), locks) for locks in others])


@pytest.mark.parametrize("kind", ["lock", "election", "semaphore"])
@virtual
async def test_a_release_wakes_one_waiter_and_processes_go_in_order(on: Nodes, kind: str) -> None:
    call, order = calls()[kind], list[int]()

    async def turn(number: int, locks: asynclock.LockManager) -> None:
        held = await call(locks)
        order.append(number)
        await asyncio.sleep(0.02)
        await (held.resign() if kind == "election" else held.release())

    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(10)]
        held = await call(on.locks)
        tasks = []
        for number, locks in enumerate(others):
            tasks.append(start(turn(number, locks)))
            await refused(locks)
        await asyncio.sleep(0.01)
        before = sum(locks.statistics().attempts for locks in others)
        await (held.resign() if kind == "election" else held.release())
        await asyncio.gather(*tasks)
        attempts = sum(locks.statistics().attempts for locks in others) - before
        assert attempts == 10  # each asks once, when its turn has come
        assert order == list(range(10))


@asynccontextmanager
async def in_its_turn(
    on: Nodes, turn: float = 60.0, kind: str = "lock"
) -> AsyncIterator[tuple[asynclock.LockManager, asynclock.Lease, asyncio.Task[Any]]]:
    """A manager whose turn has begun, its lease, and the next waiter of another process."""
    async with on.connect(turn=turn) as ours, on.connect() as other:
        first = await on.locks.lock("a").acquire()
        mine = await line_up(getattr(ours, kind)("a"), ours)
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
    async with in_its_turn(on, turn=1.0) as (ours, first, waiting):
        lease, began, bodies = first, now(), 0
        waiting.add_done_callback(lambda task: start(task.result().release()))
        while not waiting.done():
            await asyncio.sleep(0.1)
            bodies += 1
            await lease.release()
            lease = await ours.lock("a").acquire()
        assert 1.0 <= now() - began < 1.2
        assert bodies >= 9
        await lease.release()


@virtual
async def test_a_name_that_is_taken_again_and_again_passes_on_once(on: Nodes) -> None:
    """The reply to a release comes when the name has been taken and released again."""
    async with in_its_turn(on) as (ours, first, waiting):
        lease = first
        on.slow(0.01)
        seen = listen(on.nodes[0])
        for _ in range(5):
            await lease.release()
            await asyncio.sleep(0)  # the name is kept for two rounds of the loop
            lease = await ours.lock("a").acquire(timeout=1.0)
        await lease.release()
        await (await waiting).release()
        assert seen.count("pass") == 1


@pytest.mark.parametrize("kind", ["lock", "reentrant_lock"])
@virtual
async def test_leaving_a_block_in_a_turn_tells_a_loss_only_nodes_know(on: Nodes, kind: str) -> None:
    async with in_its_turn(on, kind=kind) as (ours, lease, waiting):
        with pytest.raises(asynclock.LeaseLostError, match=GONE):
            async with lease:
                await forget(on)
        assert ours.statistics().lost == 1
        await (await waiting).release()


@virtual
async def test_a_loss_is_not_silent_if_the_release_that_shows_it_is_cancelled(on: Nodes) -> None:
    for turn in (60.0, 0.0):
        events: list[object] = []
        async with in_its_turn(on, turn) as (ours, lease, waiting):
            ours.observe(events.append)
            await forget(on)
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
        await forget(on)
        releasing = start(lease.release())
        await asyncio.sleep(0)
        with TestCase().assertLogs("asynclock", "ERROR"):
            await ours.aclose()
        assert not await releasing


@virtual_single
async def test_a_name_that_is_kept_while_its_node_is_down_leaves_no_queue(on: Nodes) -> None:
    """Every node answers the release at once: it is known to be down."""
    async with in_its_turn(on) as (ours, lease, waiting):
        on.nodes[0].kill()
        await until(lambda: ours.nodes()[0].state == "down", every=0.01)
        await lease.release()
        await asyncio.sleep(0.01)
        assert not names_in_use(ours)
        waiting.cancel()


@virtual
async def test_a_loss_that_the_replies_to_a_release_in_a_turn_reveal_is_reported(on: Nodes) -> None:
    async with in_its_turn(on) as (ours, lease, waiting):
        await forget(on)
        assert await lease.release()  # by our own clock, it was held
        await (await waiting).release()
        assert (lease.lost_reason, ours.statistics().lost) == (GONE, 1)


@virtual
async def test_a_name_that_is_kept_and_not_wanted_passes_on(on: Nodes) -> None:
    async with in_its_turn(on) as (_, lease, waiting):
        await lease.release()
        await wins(waiting, AT_ONCE)


@virtual
async def test_a_name_that_is_kept_for_a_task_whose_time_is_over_passes_on(on: Nodes) -> None:
    async with in_its_turn(on) as (ours, lease, waiting):
        # The loop was busy: the task's turn comes after its timeout, but before the timer.
        late = start(ours.lock("a", ttl=5.0).acquire(timeout=1.0))
        await asyncio.sleep(0)
        loop: Any = asyncio.get_running_loop()
        loop.now += 1.5
        await lease.release()
        assert await seconds_until(waiting.done) < AT_ONCE
        with pytest.raises(asynclock.AcquireTimeoutError):
            await late
        await (await waiting).release()


@virtual
async def test_a_release_of_several_names_wakes_who_waits_for_one(on: Nodes) -> None:
    async with on.connect() as one, on.connect() as two:
        several = await on.locks.multi_lock("a", "b").acquire()
        first = await line_up(one.lock("a"), one)
        second = await line_up(two.lock("a"), two)
        await several.release()
        await wins(first, 0.01)
        await (await second).release()


@virtual
async def test_a_hand_over_needs_the_push_of_a_quorum(on: Nodes) -> None:
    async with in_line(on, 1) as (holder, waiting):
        on.ways[2].go_mute()
        await holder.release()
        assert await seconds_until(waiting.done) < 0.01


@virtual
async def test_each_client_says_how_long_the_nodes_keep_its_place(on: Nodes) -> None:
    async with on.connect(ticket_ttl=60.0) as patient, on.connect() as hasty:
        holder = await on.locks.lock("a").acquire()
        first = await line_up(patient.lock("a"), patient)
        (ticket,) = await on.nodes[0].command("ZRANGE", QUEUE, 0, -1)
        assert await on.nodes[0].command("PTTL", QUEUE + b":#" + ticket.encode()) > 30_000
        (await line_up(hasty.lock("a"), hasty)).cancel()
        await asyncio.sleep(PATIENCE + AT_ONCE)
        second = await line_up(hasty.lock("a"), hasty)
        await holder.release()
        await wins(first, AT_ONCE)
        await wins(second, AT_ONCE)


@virtual
async def test_a_release_of_a_client_without_a_queue_is_noticed(on: Nodes) -> None:
    await on.ghost()
    first = await line_up(on.locks.lock("a"), on.locks)
    await forget(on)
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
    async with in_line(on, 2) as (holder, first, second):
        first.cancel()
        await asyncio.sleep(AT_ONCE)
        assert [await node.command("ZCARD", QUEUE) for node in on.nodes] == [1, 1, 1]
        await holder.release()
        await wins(second, AT_ONCE)
    assert [await node.command("KEYS", QUEUE + b"*") for node in on.nodes] == [[], [], []]


@virtual
async def test_only_nodes_that_may_have_a_ticket_are_told_that_it_leaves(on: Nodes) -> None:
    lock = on.locks.lock("a")
    on.nodes[2].restart(keep_data=True)
    await until(lambda: on.locks.nodes()[2].state == "quarantined")
    told = listen(on.nodes[2])
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
    await teach(on)
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
async def test_a_waiter_that_was_woken_and_goes_away_wakes_the_next(on: Nodes) -> None:
    async with in_line(on, 2) as (holder, first, second):
        on.slow(0.3)
        await holder.release()
        first.cancel()
        await wins(second, 2.0)


@virtual
async def test_without_pushes_waiters_ask_at_intervals(
    on: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "asynclock")
    refuse_tracking(on.nodes)
    async with in_line(on, 2) as (holder, first, second):
        await holder.release()
        lease = await asyncio.wait_for(first, 0.4)
        assert not second.done()
        await lease.release()
        await (await asyncio.wait_for(second, 1.0)).release()
    told = [one for one in caplog.records if "can't wake waiters" in one.message]
    assert len(told) == 6, "once by each manager of each node"
    assert len({one.getMessage() for one in told}) == 3, "with the node's address"


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
async def test_refusals_that_come_before_the_grant_are_no_defeat(on: Nodes) -> None:
    await on.ghost("first", ttl=0.05, only="a")
    await on.ghost("second", ttl=0.05, only="b")
    on.ways[2].seconds = 0.01  # the node that grants answers last
    lease = await on.locks.lock("a").try_acquire()
    assert lease is not None
    await lease.release()


@virtual_single
async def test_a_refusal_at_a_free_slot_names_the_waiter_that_it_is_left_to(on: Nodes) -> None:
    node, waiters = on.nodes[0], "asynclock:a:#slots"
    await node.command("SET", "asynclock:a:#0", "holder", "PX", 60_000)
    await node.command("ZADD", waiters, 1, "waiter")
    await node.command("SET", f"{waiters}:#waiter", "1", "PX", 60_000)
    chance(on.locks, lambda: 0.0)  # the first slot that is asked for is slot 0
    with pytest.raises(asynclock.AcquireTimeoutError) as caught:
        await on.locks.semaphore("a", 2).acquire(timeout=0)
    assert caught.value.owner == "waiter"
    assert caught.value.remaining is not None
    assert 50 < caught.value.remaining < 60
    assert await node.command("GET", f"{waiters}:#waiter") == "go"


@in_virtual_time
async def test_no_fair_lock_overtakes_on_five_nodes_one_dead_one_frozen() -> None:
    on = old("abcde")
    order: list[int] = []

    async def wait(number: int, locks: asynclock.LockManager) -> None:
        async with locks.fair_lock("f"):
            order.append(number)
            await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(on.connect()) for _ in range(8)]
        for locks in processes:
            await go_through(locks.lock("warm"))
        holder = await processes[0].fair_lock("f").acquire()
        on.nodes[1].kill()
        on.nodes[3].freeze()
        tasks = []
        for number in range(40):
            locks = processes[number % 8]
            tasks.append(asyncio.create_task(wait(number, locks)))
            await refused(locks)
            await asyncio.sleep(0.02)
        await holder.release()
        await asyncio.gather(*tasks)
    assert order == list(range(40))


@pytest.mark.parametrize("seed", [1, 2])
@in_virtual_time
async def test_tasks_that_ask_at_once_go_in_order_where_just_a_quorum_is_up(seed: int) -> None:
    """The first refusal decides a vote there, and tickets need the numbers of all three nodes."""
    bodies: list[tuple[float, float]] = []
    dice = random.Random(seed)
    on = old("abcde")

    async def jitter() -> None:
        while True:
            for way in on.ways:
                way.seconds = dice.choice((0.0001, 0.0003, 0.001, 0.003))
            await asyncio.sleep(dice.uniform(0.0005, 0.004))

    async def work(locks: asynclock.LockManager) -> None:
        await asyncio.sleep(dice.choice((0.0, 0.001, 0.003)))
        while (asked := now()) < end:
            async with locks.fair_lock("f"):
                bodies.append((asked, now()))
                await asyncio.sleep(0.002)

    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(on.connect(node_timeout=0.25)) for _ in range(8)
        ]
        on.nodes[3].kill()
        on.nodes[4].freeze()
        shaking = asyncio.create_task(jitter())
        end = now() + 1.0
        await asyncio.gather(*(work(locks) for locks in processes for _ in range(10)))
        shaking.cancel()
    for place, (asked, _) in enumerate(bodies):
        assert not [one for one in bodies[:place] if one[0] > asked + 0.1]
    assert max(began - asked for asked, began in bodies) < 1.0


@virtual
async def test_a_downgrade_in_a_turn_notices_that_the_write_lease_was_lost(on: Nodes) -> None:
    """Only the replies to the writer's release show it."""
    async with on.connect(turn=60.0) as ours, on.connect() as other:
        lock, blocking = ours.rwlock("a"), await on.locks.rwlock("a").write().acquire()
        mine = await line_up(lock.write(), ours)
        waiting = await line_up(other.rwlock("a").write(), other)
        await blocking.release()
        writer = await mine
        await forget(on, KEY + b":#write")
        with pytest.raises(asynclock.LeaseLostError):
            await lock.downgrade(writer)
        await (await waiting).release()


@virtual
async def test_a_lease_that_is_not_renewed_passes_to_no_call_that_wants_renewal(on: Nodes) -> None:
    first = await on.locks.lock("a", renew=False).acquire()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().waiting == 1, "it waits")
    assert await first.release()
    lease = await waiting
    assert on.locks.statistics().handovers == 0
    await asyncio.sleep(20)
    assert lease.held
