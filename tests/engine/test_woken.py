"""A release wakes the right waiters of a name, or of several names; in virtual time."""

import asyncio
from contextlib import AsyncExitStack
from unittest import TestCase

import pytest

import asynclock
from asynclock._rules.seeking import STEADY
from tests.engine.test_queue import AT_ONCE, QUEUE, line_up, wins
from tests.engine.virtual_nodes import (
    KEY,
    NODE_TIMEOUT,
    PATIENCE,
    Nodes,
    seconds_until,
    start,
    virtual,
    virtual_single,
)
from tests.tables.inside import now
from tests.waiting import until

SOON = 0.1 * PATIENCE
"""Less than any refresh takes."""


async def hold(semaphore: asynclock.Semaphore, *slots: int) -> list[asynclock.Lease]:
    """Hold these slots, and no others."""
    leases = [await semaphore.acquire() for _ in range(semaphore.permits)]
    kept = []
    for lease in leases:
        if int(lease.part) in slots:
            kept.append(lease)
        else:
            await lease.release()
    return kept


@virtual
async def test_slots_that_are_freed_at_once_are_taken_at_once(on: Nodes) -> None:
    """A refusal reports on 64 slots, so nobody sees all of them."""
    permits = 130
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(4)]
        leases = await hold(on.locks.semaphore("a", permits), *range(permits))
        by_slot = {int(lease.part): lease for lease in leases}
        waiting = [await line_up(locks.semaphore("a", permits), locks) for locks in others]
        await asyncio.gather(*(by_slot[slot].release() for slot in (0, 40, 70, 120)))
        for task in waiting:
            assert await seconds_until(task.done) < SOON
        for task in waiting:
            await task.result().release()


@pytest.mark.parametrize("goes", [False, True])
@virtual
async def test_a_user_of_fewer_permits_wakes_the_next_at_its_end(on: Nodes, *, goes: bool) -> None:
    async with on.connect() as one, on.connect() as two:
        leases = await hold(on.locks.semaphore("a", 3), 0, 1, 2)
        fewer = await line_up(one.semaphore("a", 1), one)
        more = await line_up(two.semaphore("a", 3), two)
        await asyncio.gather(*(lease.release() for lease in leases if lease.part != "0"))
        await asyncio.sleep(SOON)
        assert not more.done()  # they go in one order
        if goes:
            await next(lease for lease in leases if lease.part == "0").release()
            await wins(fewer, SOON)
        fewer.cancel()
        await wins(more, SOON)


@pytest.mark.parametrize("lost", [False, True])
@virtual
async def test_a_release_of_several_names_wakes_a_waiter_of_the_same_process(
    on: Nodes, *, lost: bool
) -> None:
    """It doesn't know that it is the first: who was before it has left. Also if a name was lost."""
    async with on.connect() as other:
        several = await on.locks.multi_lock("a", "b").acquire()
        first = await line_up(other.lock("a"), other)
        ours = await line_up(on.locks.lock("a"), on.locks)
        first.cancel()
        await asyncio.sleep(AT_ONCE)
        if lost:
            await on.command("DEL", KEY.replace(b":a", b":b"))
        await several.release()
        await wins(ours, 0.01)


@pytest.mark.parametrize("names", ["a", "ax", "a cancelled"])  # alone, with others, by a call
@virtual
async def test_a_release_wakes_a_task_here_that_wants_several_names(on: Nodes, names: str) -> None:
    """It stands in no queue, and servers push nothing to the connection that made the change."""
    held = [await on.locks.lock(name).acquire() for name in names.split(maxsplit=1)[0]]
    before = on.locks.statistics().refused
    waiting = start(on.locks.multi_lock("a", "b").acquire())
    # After the first refusal it listens, and asks once more.
    await until(lambda: on.locks.statistics().refused >= before + 2, every=0.001)
    await asyncio.sleep(AT_ONCE)
    if "cancelled" in names:
        for node in on.nodes:
            node.freeze()
            asyncio.get_running_loop().call_later(AT_ONCE / 2, node.thaw)
        asks = start(on.locks.lock("b").acquire())
        await asyncio.sleep(AT_ONCE / 9)
        asyncio.get_running_loop().call_later(AT_ONCE / 9, asks.cancel)
    await asyncio.gather(*(lease.release() for lease in held))
    await wins(waiting, AT_ONCE)


@virtual
async def test_a_failed_attempt_at_several_names_wakes_a_waiter_of_its_process(on: Nodes) -> None:
    await on.ghost()
    async with on.connect() as other:
        first = await line_up(other.lock("a"), other)
        ours = await line_up(on.locks.lock("a"), on.locks)
        first.cancel()
        await asyncio.sleep(AT_ONCE)
        await on.command("DEL", KEY)  # the waiter watches its ticket, and not the name
        await on.command("SET", b"asynclock:b", "somebody", "PX", 60_000, only="bc")
        assert await on.locks.multi_lock("a", "b").try_acquire() is None
        await wins(ours, SOON)


@virtual
async def test_a_grant_is_no_reason_for_the_next_waiter_to_ask(on: Nodes) -> None:
    lock = on.locks.fair_lock("a")
    held = await lock.acquire()
    first = await line_up(lock, on.locks)  # type: ignore[arg-type]  # any lock will do
    second = await line_up(lock, on.locks)  # type: ignore[arg-type]
    before = on.locks.statistics().attempts
    await held.release()
    lease = await first
    await asyncio.sleep(AT_ONCE)
    assert on.locks.statistics().attempts == before + 1
    await lease.release()
    await (await second).release()


@virtual
async def test_a_name_that_nobody_waited_for_stays_in_the_process_for_a_moment(on: Nodes) -> None:
    """A turn is much shorter, but begins only when a process knows that others wait."""
    lock, left = on.locks.lock("a"), 100

    async def work() -> None:
        nonlocal left
        async with lock:
            left -= 1
            await asyncio.sleep(0.001)

    async with on.connect() as other:
        held, began = await lock.acquire(), now()
        waiting = await line_up(other.lock("a"), other)
        tasks = [start(work()) for _ in range(left)]
        await asyncio.sleep(0)
        await held.release()
        theirs = await waiting
        assert 0.1 <= now() - began < 0.11
        before = left
        await asyncio.sleep(1.0)
        assert left == before > 0
        await theirs.release()
        await asyncio.gather(*tasks)


@virtual
async def test_the_first_in_line_notices_a_release_at_once_though_holders_renew(on: Nodes) -> None:
    """It watches the name, too, and each renewal changes that."""
    permits, ttl, holders = 8, 2.0, AsyncExitStack()
    async with holders, on.connect() as other:
        leases = []
        for _ in range(permits):
            locks = await holders.enter_async_context(on.connect())
            leases.append(await locks.semaphore("a", permits, ttl=ttl).acquire())
            await asyncio.sleep(ttl / 3 / permits)
        for lease in leases[:3]:
            waiting = start(other.semaphore("a", permits, ttl=ttl).acquire())
            await asyncio.sleep(5.07 * ttl)
            await lease.release()
            await wins(waiting, AT_ONCE)
        assert other.statistics().wakeups["pacing"] == 0  # it has listened all the time


@pytest.mark.parametrize(
    ("ttl", "timeout", "fail", "causes"),
    [(60.0, 0.5, "", set()), (0.3, 1.0, "", {"expiry"}), (60.0, 1.5, "ab", {"expiry", "pacing"})],
)
@virtual
async def test_statistics_name_what_ended_each_wait(
    on: Nodes, ttl: float, timeout: float, fail: str, causes: set[str]
) -> None:
    """The end of the call itself is none of the causes."""
    await on.ghost(ttl=ttl)
    waiting = start(on.locks.lock("a", timeout=timeout).acquire())
    await asyncio.sleep(0.1)
    on.kill(fail)
    await asyncio.wait([waiting])
    assert {cause for cause, times in on.locks.statistics().wakeups.items() if times} == causes
    if waiting.exception() is None:
        await waiting.result().release()


@virtual
async def test_a_try_that_asks_twice_gives_the_nodes_one_node_timeout_each_time(on: Nodes) -> None:
    await on.ghost("first", only="a")
    await on.ghost("second", only="b")
    on.slow(0.45 * NODE_TIMEOUT)
    began = now()
    trying = asyncio.create_task(on.locks.lock("a").try_acquire())
    await asyncio.sleep(0.91 * NODE_TIMEOUT)  # a split vote; the second attempt is on its way
    on.go_mute()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await trying
    assert now() - began <= 1.95 * NODE_TIMEOUT


@virtual
async def test_a_try_that_no_vote_settles_is_refused_and_names_a_holder(on: Nodes) -> None:
    await on.ghost("1" * 32 + ":one", only="a")
    await on.ghost("2" * 32 + ":two", only="b")
    began = now()
    with pytest.raises(asynclock.NotAcquiredError) as caught:
        await on.locks.lock("a").acquire(timeout=0)
    assert now() - began < (STEADY + 0.3) * NODE_TIMEOUT, "no attempt takes that long"
    assert caught.value.holder in ("one", "two")
    assert caught.value.votes == {"granted": 1, "refused": 2, "unknown": 0}
    assert "timeout was" not in str(caught.value), "0 s explain nothing"


@virtual
async def test_a_writer_that_tries_in_vain_ends_no_turn(on: Nodes) -> None:
    await on.command("SET", KEY + b":#write", "somebody", "PX", 60_000, only="bc")
    async with on.connect() as other:
        reading = await line_up(on.locks.rwlock("a").read(), on.locks)  # type: ignore[arg-type]
        assert await other.rwlock("a").write().try_acquire() is None
        await asyncio.sleep(SOON)
        places = await on.nodes[0].command("ZRANGE", KEY + b":#phases", 0, -1, "WITHSCORES")
        assert float(places[1]) > 0, "its turn has not come"
        reading.cancel()


@virtual
async def test_an_upgrade_does_not_wait_behind_another_one_whose_votes_are_split(on: Nodes) -> None:
    for node, owner in zip(on.nodes, ("1" * 32 + ":one", "2" * 32 + ":two"), strict=False):
        await node.command("SET", KEY + b":#upgrade", owner, "PX", 60_000)
    lock = on.locks.rwlock("a")
    reading = await lock.read().acquire()
    began = now()
    async with asyncio.timeout(30):
        with pytest.raises(asynclock.NotAcquiredError, match="is being upgraded"):
            await lock.upgrade(reading, timeout=None)
    assert now() - began < (STEADY + 0.3) * NODE_TIMEOUT
    await reading.release()


@virtual_single
async def test_a_queue_of_another_type_is_named(on: Nodes) -> None:
    node = on.nodes[0]
    held = await on.locks.lock("a").acquire()
    await node.command("SET", QUEUE, "something else")
    with pytest.raises(asynclock.ConfigurationError, match=r"asynclock:a:#queue .* is string"):
        async with on.connect() as other:
            await other.lock("a").acquire(timeout=1.0)
    with TestCase().assertLogs("asynclock", "WARNING") as told:
        await held.release()
        await until(lambda: told.output)
    (text,) = told.output
    assert "asynclock:a:#queue" in text
    assert "ttl" not in text
    assert not await node.command("EXISTS", KEY)


@virtual_single
async def test_a_queue_of_readers_and_writers_of_another_type_is_named(on: Nodes) -> None:
    lock, queue = on.locks.rwlock("a"), KEY + b":#phases"
    for side, key in ((lock.read(), b":#readers"), (lock.write(), b":#write")):
        held = await side.acquire()
        await on.nodes[0].command("SET", queue, "something else")
        with pytest.raises(asynclock.ConfigurationError, match=r"asynclock:a:#phases .* is string"):
            async with on.connect() as other:
                await other.rwlock("a").write().acquire(timeout=1.0)
        await held.release()
        await asyncio.sleep(AT_ONCE)
        assert not await on.nodes[0].command("EXISTS", KEY + key)
        await on.nodes[0].command("DEL", queue)


@virtual_single
async def test_a_release_of_several_names_wakes_all_whose_queue_is_one(on: Nodes) -> None:
    held = await on.locks.multi_lock("a", "b").acquire()
    async with on.connect() as other:
        waiting = await line_up(other.lock("b"), other)
        await on.nodes[0].command("SET", QUEUE, "something else")
        with TestCase().assertLogs("asynclock", "WARNING") as told:
            await held.release()
            assert await seconds_until(waiting.done) < SOON
            await until(lambda: told.output)
        assert "asynclock:a:#queue" in told.output[0]
        await (await waiting).release()


@virtual_single
async def test_a_leave_that_is_sent_again_hands_over_to_a_waiter_of_its_process(on: Nodes) -> None:
    """Its reply says whom it woke, but a waiter that connects again asks anyway."""
    lock = on.locks.fair_lock("a")
    async with on.connect() as other:
        held = await other.fair_lock("a").acquire()
        first = await line_up(lock, on.locks)  # type: ignore[arg-type]  # any lock will do
        second = await line_up(lock, on.locks)  # type: ignore[arg-type]
        on.nodes[0].cut()
        first.cancel()
        await held.release()
        await wins(second, SOON)
