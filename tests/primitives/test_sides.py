"""The two sides of a read-write lock and the changes between them, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine.options import LeaseOptions
from asynclock._primitives import upgrade
from asynclock.testing import lose
from tests.engine.virtual_nodes import (
    TTL,
    Nodes,
    start,
    virtual,
    virtual_four,
    virtual_single,
)
from tests.waiting import until

READERS, WRITER = "asynclock:a:#readers", "asynclock:a:#write"
GATE = "asynclock:a:#upgrade"


async def took(wish: Any, error: type[Exception]) -> float:
    """The seconds after which a call fails with this error."""
    began = _clock.now()
    with pytest.raises(error):
        await wish
    return _clock.now() - began


@virtual
async def test_an_upgrade_waits_as_long_as_its_timeout_says(on: Nodes) -> None:
    """Its own, or else that of the lock; a lease that it cannot get leaves the reader as it was."""
    async with on.connect() as others:
        other = await others.rwlock("a").read().acquire()
        lock = on.locks.rwlock("a", timeout=3)
        reading = await lock.read().acquire()
        for given, wanted in (({}, 3.0), ({"timeout": 5}, 5.0), ({"timeout": 0}, 0.0)):
            assert (
                wanted
                <= await took(lock.upgrade(reading, **given), asynclock.AcquireTimeoutError)
                < max(1.0, wanted + 0.1)
            )
            assert reading.held
        waiting = start(lock.upgrade(reading, timeout=None))
        await asyncio.sleep(2 * TTL)
        assert not waiting.done()
        await other.release()
        began = _clock.now()
        writing = await waiting
        assert _clock.now() - began < 0.1, "the last other reader woke it"
        assert reading.held
        await writing.release()


@virtual
async def test_the_second_upgrade_is_told_whom_it_would_wait_for(on: Nodes) -> None:
    async with on.connect(label="there") as others:
        here, there = on.locks.rwlock("a"), others.rwlock("a")
        mine, theirs = await here.read().acquire(), await there.read().acquire()
        waiting = start(there.upgrade(theirs))
        await asyncio.sleep(0.1)
        began = _clock.now()
        with pytest.raises(asynclock.NotAcquiredError, match="is being upgraded") as caught:
            await here.upgrade(mine, timeout=5)
        assert _clock.now() - began < 0.1
        error = caught.value
        assert (error.name, error.holder) == ("a", "there")
        assert error.owner == await on.nodes[0].command("GET", GATE)
        assert "('there')" in str(error)
        assert error.remaining is not None
        assert error.votes["refused"] >= 2
        await mine.release()
        assert (await waiting).held


@virtual
async def test_a_side_waits_as_long_as_the_lock_says(on: Nodes) -> None:
    lock = on.locks.rwlock("a", timeout=3)
    async with on.connect() as others:
        for held, wanted in (
            (others.rwlock("a").read(), lock.write()),
            (others.rwlock("a").write(), lock.read()),
        ):
            lease = await held.acquire()
            async with asyncio.timeout(30):
                waited = await took(wanted.acquire(), asynclock.AcquireTimeoutError)
            assert waited == pytest.approx(3, abs=0.1)
            await lease.release()


@virtual
async def test_a_lease_that_changes_sides_keeps_the_options_of_the_lock(on: Nodes) -> None:
    """Only the gate, which nobody but the upgrade knows, has the usual ones."""
    options = LeaseOptions(TTL, renew=False, max_hold=60, interrupt=False)
    lock = on.locks.rwlock("a", renew=False, max_hold=60, interrupt=False)
    reading = await lock.read().acquire()
    on.slow(0.1)
    upgrading = start(lock.upgrade(reading))
    await until(lambda: any(lease.part == "upgrade" for lease in on.locks.leases()))
    (gate,) = (lease for lease in on.locks.leases() if lease.part == "upgrade")
    assert isinstance(gate, asynclock.Lease)
    assert gate._options == LeaseOptions(TTL)
    writing = await upgrading
    assert writing._options == options
    await reading.release()
    assert (await lock.downgrade(writing))._options == options


@virtual
async def test_an_upgrade_waits_no_longer_though_the_gate_took_its_time(on: Nodes) -> None:
    async with on.connect() as others:
        other = await others.rwlock("a").read().acquire()
        lock = on.locks.rwlock("a")
        reading = await lock.read().acquire()
        on.slow(0.2)
        for timeout in (2.0, 3.0):
            upgrading = lock.upgrade(reading, timeout=timeout)
            assert await took(upgrading, asynclock.AcquireTimeoutError) < timeout + 0.5
        assert other.held


@virtual
async def test_an_upgrade_that_begins_again_has_what_is_left_of_its_timeout(on: Nodes) -> None:
    """As after the loss of the gate."""
    given: list[float | None] = []
    through = upgrade._pass

    async def note(engine: Any, gate: Any, options: Any, timeout: float | None) -> asynclock.Lease:
        given.append(timeout)
        return await through(engine, gate, options, timeout)

    async with on.connect() as others:
        other = await others.rwlock("a").read().acquire()
        lock = on.locks.rwlock("a")
        reading = await lock.read().acquire()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upgrade, "_pass", note)
            for timeout, left in ((5.0, 3.0), (1.0, 0.0), (None, None)):
                given.clear()
                upgrading = start(lock.upgrade(reading, timeout=timeout))
                await asyncio.sleep(2.0 if timeout != 1.0 else 0.999)
                (gate,) = (lease for lease in on.locks.leases() if lease.part == "upgrade")
                assert isinstance(gate, asynclock.Lease)
                lose(gate)
                if timeout is None:
                    await asyncio.sleep(1)
                    await other.release()
                    await (await upgrading).release()
                else:
                    with pytest.raises(asynclock.AcquireTimeoutError):
                        await upgrading
                assert given[0] == timeout
                if left is None:
                    assert given[1] is None
                else:
                    assert given[1] == pytest.approx(left, abs=0.1)


@virtual_four
async def test_a_split_vote_at_the_gate_is_tried_again_until_the_timeout(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    reading = await lock.read().acquire()
    for node in on.nodes[:2]:
        await node.command("SET", GATE, "rival", "PX", 3000)
    began = _clock.now()
    assert await took(lock.upgrade(reading, timeout=1), asynclock.NotAcquiredError) >= 1
    before = on.locks.statistics().attempts
    writing = await lock.upgrade(reading)
    assert _clock.now() - began == pytest.approx(3, abs=0.2)
    assert on.locks.statistics().attempts - before < 2000
    await writing.release()


@virtual_four
async def test_an_upgrade_without_time_to_wait_ends_at_a_split_vote(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    reading = await lock.read().acquire()
    for node in on.nodes[:2]:
        await node.command("SET", GATE, "rival", "PX", 5000)
    assert await took(lock.upgrade(reading, timeout=0), asynclock.NotAcquiredError) < 1.8
    assert reading.held


@virtual
async def test_a_reader_that_has_expired_unnoticed_is_not_upgraded(on: Nodes) -> None:
    """The code kept the loop busy until its time was over."""
    loop: Any = asyncio.get_running_loop()
    lock = on.locks.rwlock("a")
    reading, writing = await lock.read().acquire(), await on.locks.rwlock("b").write().acquire()
    loop.now += TTL + 1
    with pytest.raises(asynclock.LeaseLostError):
        lock.upgrade(reading)
    with pytest.raises(asynclock.LeaseLostError):
        await on.locks.rwlock("b").downgrade(writing)


@virtual
async def test_the_write_lease_of_a_reader_that_was_lost_is_given_back(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    reading = await lock.read().acquire()
    on.slow(0.2)
    upgrading = start(lock.upgrade(reading))
    await asyncio.sleep(0.5)
    assert not upgrading.done()
    lose(reading)
    with pytest.raises(asynclock.LeaseLostError):
        await upgrading
    on.slow(0.0)
    await asyncio.sleep(0.5)
    async with on.connect() as others:
        assert await others.rwlock("a").write().try_acquire() is not None


@virtual
async def test_a_downgrade_in_an_outage_ends_before_the_write_lease_does(on: Nodes) -> None:
    lock = on.locks.rwlock("a", renew=False)
    writing = await lock.write().acquire()
    for node in on.nodes[1:]:
        node.freeze()
    began = _clock.now()
    with pytest.raises((asynclock.QuorumUnavailableError, asynclock.AcquireTimeoutError)):
        await lock.downgrade(writing)
    assert _clock.now() - began < TTL + 0.1


@virtual
async def test_writers_of_a_process_hand_over(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    for _ in range(2):
        first = await lock.write().acquire()
        second = start(lock.write().acquire())
        await asyncio.sleep(0.001)
        await first.release()
        await (await second).release()
    assert on.locks.statistics().handovers >= 1


@virtual
async def test_inspect_shows_each_reader_on_the_nodes_that_have_it(on: Nodes) -> None:
    reading = await on.locks.rwlock("a").read().acquire()
    await on.nodes[0].command("DEL", READERS)
    await on.nodes[0].command("SET", WRITER, "writer", "PX", 60_000)
    on.nodes[2].freeze()
    seen = await on.locks.rwlock("a").inspect()
    writer, reader = seen.parts
    assert [view.owner for view in writer.nodes] == ["writer", None, None]
    assert [view.owner for view in reader.nodes] == [None, reading.owner, None]
    assert reader.part == "read"
    assert reader.nodes[0].remaining is None
    assert reader.nodes[1].remaining == pytest.approx(TTL - 1, abs=0.1), "a second ago"
    assert [bool(view.error) for view in reader.nodes] == [False, False, True]


@virtual
async def test_inspect_shows_readers_in_the_order_of_their_owners(on: Nodes) -> None:
    owners = sorted([(await on.locks.rwlock("a").read().acquire()).owner for _ in range(6)])
    seen = await on.locks.rwlock("a").inspect()
    assert [part.nodes[0].owner for part in seen.parts[1:]] == owners


@virtual_single
async def test_inspect_says_who_waits_for_a_read_write_lock_and_in_which_order(on: Nodes) -> None:
    """After a writer come the readers that wait, then the next writer."""
    async with on.connect(label="first") as first, on.connect(label="second") as second:
        writing = await on.locks.rwlock("a").write().acquire()
        tasks = [start(first.rwlock("a").write().acquire())]
        await asyncio.sleep(0.1)
        tasks.append(start(second.rwlock("a").read().acquire()))
        await asyncio.sleep(0.1)
        seen = await on.locks.rwlock("a").inspect()
        assert [waiter.label for waiter in seen.waiting] == ["second", "first"]
        await writing.release()
        for task in tasks[::-1]:
            await (await task).release()


@virtual
async def test_the_second_upgrade_is_refused_at_once_also_while_one_node_is_down(
    on: Nodes,
) -> None:
    async with on.connect(label="there") as others:
        here, there = on.locks.rwlock("a"), others.rwlock("a")
        mine, theirs = await here.read().acquire(), await there.read().acquire()
        on.nodes[2].kill()
        waiting = start(there.upgrade(theirs))
        await asyncio.sleep(0.5)
        began = _clock.now()
        with pytest.raises(asynclock.NotAcquiredError, match="is being upgraded"):
            await here.upgrade(mine, timeout=5)
        assert _clock.now() - began < 1
        await mine.release()
        assert (await waiting).held


@virtual
async def test_a_downgrade_that_is_cancelled_leaves_no_reader(on: Nodes) -> None:
    """At whatever moment: at most the write lease is left, and its `held` says so."""
    for moment in (0.1, 0.3, 0.5, 0.7):
        name = f"a{moment}"
        lock = on.locks.rwlock(name)
        async with on.connect() as others:
            async with others.lock("warm"):
                pass
            writing = await lock.write().acquire()
            on.slow(0.2)
            changing = start(lock.downgrade(writing))
            await asyncio.sleep(moment)
            assert not changing.done()
            changing.cancel()
            await asyncio.wait([changing])
            await asyncio.sleep(1)
            on.slow(0.0)
            if writing.held:
                assert await others.rwlock(name).read().try_acquire() is None
                assert await writing.release()
            free = await others.rwlock(name).write().try_acquire()
            assert free is not None
            assert await free.release()


@virtual
async def test_a_downgrade_of_what_the_nodes_have_lost_leaves_no_reader(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    writing = await lock.write().acquire()
    for node in on.nodes:
        await node.command("DEL", "asynclock:a:#write")
    with pytest.raises(asynclock.LeaseLostError):
        await lock.downgrade(writing)
    await asyncio.sleep(0.1)
    assert on.locks.leases() == ()
    async with on.connect() as others:
        assert await others.rwlock("a").write().try_acquire() is not None


@virtual
async def test_the_second_upgrade_is_told_what_to_do_instead(on: Nodes) -> None:
    lock = on.locks.rwlock("a")
    first, second = await lock.read().acquire(), await lock.read().acquire()
    upgrading = start(lock.upgrade(first))
    await asyncio.sleep(0.1)
    with pytest.raises(asynclock.NotAcquiredError) as caught:
        await lock.upgrade(second)
    assert str(caught.value).endswith(
        "is being upgraded and waits for this one: release the read lease and lock to write"
    )
    assert second.held
    await second.release()
    assert await (await upgrading).release()
