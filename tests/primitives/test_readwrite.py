"""The read-write lock: readers together, writers alone, turns, and changes between both sides."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

import asynclock
from asynclock.testing import lose
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.engine.virtual_nodes import (
    NODE_TIMEOUT,
    TTL,
    Nodes,
    start,
    virtual,
    virtual_four,
    virtual_single,
)
from tests.tables.inside import now
from tests.waiting import call_off, in_virtual_time, until

READERS, WRITER = "asynclock:a:#readers", "asynclock:a:#write"
GATE = "asynclock:a:#upgrade"


async def took(wish: Any, error: type[Exception]) -> float:
    """The seconds after which a call fails with this error."""
    began = now()
    with pytest.raises(error):
        await wish
    return now() - began


# ---- turns ---------------------------------------------------------------------------------------
@virtual
async def test_each_reader_is_renewed_by_itself(on: Nodes) -> None:
    one = await on.locks.rwlock("a", renew=False).read().acquire()
    two = await on.locks.rwlock("a").read().acquire()
    await asyncio.sleep(3 * TTL)
    assert one.lost_reason
    assert two.held
    assert await two.release() is True
    assert await on.locks.rwlock("a").write().try_acquire() is not None


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
@virtual
async def test_a_writer_that_gives_up_lets_readers_in(on: Nodes, how: str) -> None:
    async with on.connect() as there:
        reader = await on.locks.rwlock("a").read().acquire()
        writer = start(there.rwlock("a").write().acquire(timeout=1))
        await asyncio.sleep(0.5)
        assert await on.locks.rwlock("a").read().try_acquire() is None
        if how == "cancelled":
            writer.cancel()
        await asyncio.wait([writer])
        await asyncio.sleep(0.01)
        late = await on.locks.rwlock("a").read().try_acquire()
        assert late is not None
        await late.release()
        await reader.release()
        await asyncio.sleep(0.01)
        assert await on.nodes[0].command("EXISTS", READERS, "asynclock:a:#phases") == 0


@pytest.mark.parametrize("late", [0.0, 0.2])
@virtual
async def test_a_writer_that_wins_takes_its_ticket_back_everywhere(on: Nodes, late: float) -> None:
    """Also on a node with a reader, whose refusal comes before the verdict or after it."""
    expiry = int((on.nodes[0].wall() + 60) * 1000)
    await on.nodes[0].command("ZADD", READERS, expiry, "f00:gone")
    on.ways[0].seconds = late
    async with on.locks.rwlock("a").write():
        await asyncio.sleep(2 * late + 0.3)
        assert await on.nodes[0].command("EXISTS", "asynclock:a:#phases") == 0


@virtual_single
async def test_readers_that_waited_for_a_writer_go_before_the_next_one(on: Nodes) -> None:
    """Though they came after it; and a reader that comes then goes after it."""
    async with on.connect() as there, on.connect() as far:
        writing = await on.locks.rwlock("a").write().acquire()
        next_one = start(there.rwlock("a").write().acquire())
        await asyncio.sleep(0.1)
        readers = [start(far.rwlock("a").read().acquire()) for _ in range(3)]
        await asyncio.sleep(0.1)
        await writing.release()
        leases = await asyncio.gather(*readers)
        late = start(on.locks.rwlock("a").read().acquire())
        await asyncio.sleep(1)
        assert not next_one.done()
        for lease in leases:
            assert lease.fence > writing.fence
            assert await lease.release()
        lease = await next_one
        assert lease.fence > max(one.fence for one in leases)
        assert not late.done()
        await lease.release()
        assert (await late).fence > lease.fence


@virtual_single
async def test_writers_keep_their_order_in_the_year_2100(on: Nodes) -> None:
    """Their numbers, which come from the nodes' clocks, stay below those of readers."""
    on.nodes[0].jump_clock(77 * 365.25 * 24 * 3600)
    turns: list[str] = []
    async with AsyncExitStack() as stack:
        locks = [(await stack.enter_async_context(on.connect())).rwlock("a") for _ in "01234567"]

        async def turn(number: int) -> None:
            async with locks[number].read() if number == 4 else locks[number].write() as lease:
                turns.append(str(number))
                assert lease.fence > 4.1e15, "µs since 1970"

        async with locks[0].write():
            later = []
            for number in range(1, 8):
                later.append(start(turn(number)))
                await asyncio.sleep(0.1)
        await asyncio.gather(*later)
    assert "".join(turns) == "4123567", "the reader goes before the next writer"


@virtual
async def test_readers_do_not_rival_one_another(on: Nodes) -> None:
    """However votes fall between them and writers, they take no room that slows writers down."""
    for node, writer in zip(on.nodes[:2], "ab", strict=True):
        await node.command("SET", WRITER, f"{writer}:gone", "PX", 60_000)
    waiting = [start(on.locks.rwlock("a").read().acquire()) for _ in range(10)]
    await asyncio.sleep(1)
    assert on.locks.statistics().refused >= 10
    assert on.locks.statistics().split_votes == 0
    await on.command("DEL", WRITER, only="ab")
    # They ask again at times: the locks that were in the way had a minute left.
    leases = await asyncio.gather(*waiting)
    assert all(lease.held for lease in leases)


@in_virtual_time
async def test_a_writer_waits_for_each_writer_before_it_and_one_round_of_readers() -> None:
    places = [MemoryEndpoint(name, MemoryNode(name)) for name in "abc"]
    waits: list[float] = []
    reading, writers, stop = 0.05, 5, now() + 1.0

    async def read(locks: asynclock.LockManager, number: int) -> None:
        await asyncio.sleep(number * reading / 10)
        while now() < stop:
            async with locks.rwlock("cfg").read():
                await asyncio.sleep(reading)

    async def write(locks: asynclock.LockManager, number: int) -> None:
        await asyncio.sleep(0.017 * number)
        while now() < stop:
            began = now()
            async with locks.rwlock("cfg").write():
                waits.append(now() - began)
            await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack:
        managers = [asynclock.connect(*places, restart_guard=False) for _ in range(writers)]
        for locks in managers:
            await stack.enter_async_context(locks)
        readers = (read(managers[number % writers], number) for number in range(10))
        await asyncio.gather(*readers, *(write(managers[n], n) for n in range(writers)))
    assert len(waits) > 8
    assert max(waits) < (writers + 1) * reading + 0.1


# ---- upgrades ------------------------------------------------------------------------------------
@virtual
async def test_a_side_and_an_upgrade_wait_as_long_as_their_timeout_says(on: Nodes) -> None:
    """Its own, or else that of the lock; a lease that it cannot get leaves the reader as it was."""
    async with on.connect() as others:
        lock, theirs = on.locks.rwlock("a", timeout=3), others.rwlock("a")
        for held, wish in ((theirs.read(), lock.write()), (theirs.write(), lock.read())):
            lease = await held.acquire()
            waited = await took(wish.acquire(), asynclock.AcquireTimeoutError)
            assert waited == pytest.approx(3, abs=0.1)
            await lease.release()
        other, reading = await theirs.read().acquire(), await lock.read().acquire()
        for way in (0.0, 0.2):
            on.slow(way)
            for given, wanted in (({}, 3.0), ({"timeout": 5}, 5.0), ({"timeout": 0}, 0.0)):
                waited = await took(lock.upgrade(reading, **given), asynclock.AcquireTimeoutError)
                assert wanted <= waited < max(1.0, wanted + 0.1) + 3 * way
                assert reading.held
        on.slow(0.0)
        waiting = start(lock.upgrade(reading, timeout=None))
        await asyncio.sleep(2 * TTL)
        assert not waiting.done()
        await other.release()
        began = now()
        writing = await waiting
        assert now() - began < 0.1, "the last other reader woke it"
        assert reading.held
        await writing.release()


@virtual
async def test_an_upgrade_goes_ahead_of_waiting_writers_and_new_readers(on: Nodes) -> None:
    """Also of a writer of the same process, which heads its local queue."""
    async with on.connect() as others:
        here, there = on.locks.rwlock("a"), others.rwlock("a")
        mine, other = await here.read().acquire(), await there.read().acquire()
        writers = [start(side.write().acquire()) for side in (here, there)]
        await asyncio.sleep(0.1)
        waiting = start(here.upgrade(mine))
        await asyncio.sleep(0.1)
        assert await there.read().try_acquire() is None
        await other.release()
        writing = await waiting
        await asyncio.sleep(1)
        assert not any(writer.done() for writer in writers)
        await writing.release()
        await mine.release()
        for writer in asyncio.as_completed(writers):
            lease = await writer
            assert lease.fence > writing.fence
            await lease.release()


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
@virtual
async def test_an_upgrade_that_gives_up_goes_on_reading(on: Nodes, how: str) -> None:
    async with on.connect() as others:
        here, there = on.locks.rwlock("a"), others.rwlock("a")
        mine, other = await here.read().acquire(), await there.read().acquire()
        waiting = start(here.upgrade(mine, timeout=0.5))
        await asyncio.sleep(0.3)
        if how == "cancelled":
            waiting.cancel()
        await asyncio.wait([waiting])
        assert await mine.check()
        await mine.release()
        async with there.upgrade(other, timeout=1):
            pass  # the gate is open


@pytest.mark.parametrize("down", [0, 1])
@virtual
async def test_the_second_upgrade_is_told_whom_it_would_wait_for(on: Nodes, down: int) -> None:
    async with on.connect(label="there") as others:
        here, there = on.locks.rwlock("a"), others.rwlock("a")
        mine, theirs = await here.read().acquire(), await there.read().acquire()
        for node in on.nodes[3 - down :]:
            node.kill()
        waiting = start(there.upgrade(theirs))
        await asyncio.sleep(0.5)
        began = now()
        with pytest.raises(asynclock.NotAcquiredError, match="is being upgraded") as caught:
            await here.upgrade(mine, timeout=5)
        assert now() - began < 0.1 + down
        error = caught.value
        assert (error.name, error.holder) == ("a", "there")
        assert error.owner == await on.nodes[0].command("GET", GATE)
        assert "('there')" in str(error)
        assert str(error).endswith(
            "and waits for this one: release the read lease and lock to write"
        )
        assert error.remaining is not None
        assert error.retry_after < 1 < error.remaining, "by the recent holds of the name"
        assert error.votes["refused"] >= 2
        await mine.release()
        assert (await waiting).held


@virtual
async def test_a_lease_that_changes_sides_keeps_the_options_of_the_lock(on: Nodes) -> None:
    lock = on.locks.rwlock("a", interrupt=False, renew=False)
    reading = await lock.read().acquire()
    writing = await lock.upgrade(reading)
    await reading.release()
    again = await lock.downgrade(writing)
    with pytest.raises(asynclock.LeaseLostError):
        async with again:
            await asyncio.sleep(TTL + 1)
            assert not again.held, "nothing renewed it, and nothing interrupted this body"
    reading = await lock.read().acquire()
    writing = await lock.upgrade(reading)
    with pytest.raises(asynclock.LeaseLostError):
        async with writing:
            await asyncio.sleep(TTL + 1)
            assert not writing.held


@pytest.mark.parametrize(("timeout", "lost_after"), [(5.0, 2.0), (1.0, 0.999), (None, 2.0)])
@virtual
async def test_an_upgrade_that_begins_again_has_what_is_left_of_its_timeout(
    on: Nodes, timeout: float | None, lost_after: float
) -> None:
    """As after the loss of the gate."""
    async with on.connect() as others:
        other = await others.rwlock("a").read().acquire()
        lock = on.locks.rwlock("a")
        reading = await lock.read().acquire()
        began = now()
        upgrading = start(lock.upgrade(reading, timeout=timeout))
        await asyncio.sleep(lost_after)
        (gate,) = (lease for lease in on.locks.leases() if lease.part == "upgrade")
        assert isinstance(gate, asynclock.Lease)
        lose(gate)
        if timeout is None:
            await asyncio.sleep(3 * TTL)
            await other.release()
            assert (await upgrading).held
        else:
            with pytest.raises(asynclock.AcquireTimeoutError):
                await upgrading
            assert now() - began == pytest.approx(timeout, abs=0.1)


@pytest.mark.parametrize("timeout", [0, 1])
@virtual_four
async def test_split_votes_at_the_gate_are_tried_again_in_time(on: Nodes, timeout: int) -> None:
    lock = on.locks.rwlock("a")
    reading = await lock.read().acquire()
    await on.command("SET", GATE, "rival", "PX", 3000, only="ab")
    began = now()
    waited = await took(lock.upgrade(reading, timeout=timeout), asynclock.NotAcquiredError)
    assert timeout <= waited < 1.8
    assert reading.held
    if timeout:
        before = on.locks.statistics().attempts
        writing = await lock.upgrade(reading)
        assert 3 <= now() - began <= 3 + NODE_TIMEOUT / 4 + 0.01
        assert on.locks.statistics().attempts - before < 2000
        await writing.release()


@virtual
async def test_what_has_expired_unnoticed_does_not_change_sides(on: Nodes) -> None:
    """The code kept the loop busy until its time was over."""
    loop: Any = asyncio.get_running_loop()
    lock = on.locks.rwlock("a")
    reading, writing = await lock.read().acquire(), await on.locks.rwlock("b").write().acquire()
    loop.now += TTL + 1
    with pytest.raises(asynclock.LeaseLostError):
        lock.upgrade(reading)
    with pytest.raises(asynclock.LeaseLostError):
        await on.locks.rwlock("b").downgrade(writing)


# ---- what is lost or cancelled in between --------------------------------------------------------
@pytest.mark.parametrize("side", ["read", "write"])
@virtual
async def test_a_lease_that_is_lost_while_it_changes_sides_ends_both(on: Nodes, side: str) -> None:
    """Another may have written in between, so a lease would mislead."""
    lock = on.locks.rwlock("a")
    lease = await (lock.read() if side == "read" else lock.write()).acquire()
    on.slow(0.2)
    changing = start(lock.upgrade(lease) if side == "read" else lock.downgrade(lease))
    await asyncio.sleep(0.5 if side == "read" else 0.3)
    assert not changing.done()
    lose(lease)
    with pytest.raises(asynclock.LeaseLostError, match="a test took it away"):
        await changing
    on.slow(0.0)
    await asyncio.sleep(0.5)
    async with on.connect() as others:
        later = await others.rwlock("a").write().try_acquire()
        assert later is not None
        assert later.fence > lease.fence


@virtual
async def test_a_downgrade_in_an_outage_ends_before_the_write_lease_does(on: Nodes) -> None:
    lock = on.locks.rwlock("a", renew=False)
    writing = await lock.write().acquire()
    on.freeze("bc")
    began = now()
    with pytest.raises((asynclock.QuorumUnavailableError, asynclock.AcquireTimeoutError)):
        await lock.downgrade(writing)
    assert now() - began < TTL + 0.1


@pytest.mark.parametrize("moment", [0.1, 0.3, 0.5, 0.7])
@virtual
async def test_a_downgrade_that_is_cancelled_leaves_no_reader(on: Nodes, moment: float) -> None:
    """At whatever moment: at most the write lease is left, and its `held` says so."""
    lock = on.locks.rwlock("a")
    async with on.connect() as others:
        await others.ready()
        writing = await lock.write().acquire()
        on.slow(0.2)
        changing = start(lock.downgrade(writing))
        await asyncio.sleep(moment)
        assert not changing.done()
        await call_off(changing)
        assert changing.cancelled()
        await asyncio.sleep(1)
        on.slow(0.0)
        if writing.held:
            assert await others.rwlock("a").read().try_acquire() is None
            assert await writing.release()
        free = await others.rwlock("a").write().try_acquire()
        assert free is not None
        assert free.fence > writing.fence


@virtual
async def test_a_downgrade_of_what_the_nodes_have_lost_leaves_no_reader(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    writing = await lock.write().acquire()
    await on.command("DEL", WRITER)
    with pytest.raises(asynclock.LeaseLostError):
        await lock.downgrade(writing)
    await until(lambda: on.locks.leases() == (), timeout=1)
    async with on.connect() as others:
        assert await others.rwlock("a").write().try_acquire() is not None


@virtual_single
async def test_a_lease_that_is_not_of_this_side_of_this_lock_is_refused(on: Nodes) -> None:
    lock, other = on.locks.rwlock("a"), on.locks.rwlock("b")
    reading, writing = await lock.read().acquire(), await other.write().acquire()
    plain = await on.locks.lock("a").acquire()
    async with on.connect() as others:
        foreign = await others.rwlock("a").read().acquire()
        for wrong in (foreign, writing, await other.read().try_acquire(), plain, object()):
            with pytest.raises(
                asynclock.ConfigurationError, match=r"that read\(\) of this .* gave"
            ):
                lock.upgrade(wrong)  # type: ignore[arg-type]  # what a caller may do wrong
        for wrong in (reading, foreign, writing, plain):
            with pytest.raises(
                asynclock.ConfigurationError, match=r"that write\(\) of this .* gave"
            ):
                await lock.downgrade(wrong)
    with pytest.raises(asynclock.ConfigurationError):
        lock.upgrade(reading, timeout=-1)
    assert (reading.held, writing.held) == (True, True)
    assert repr(reading) == f"<Lease 'a' part='read' fence={reading.fence} held>"
    await reading.release()
    with pytest.raises(asynclock.LeaseLostError):
        lock.upgrade(reading)
