"""What a user may rely on, whatever the deployment and the kind of lock (kinds.py)."""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest

import asynclock
from tests.contract.conftest import Connect
from tests.contract.faces import Face
from tests.contract.kinds import Kind
from tests.patient import LASTING
from tests.tables.inside import renew_now
from tests.waiting import PATIENCE, becomes, refused, until, waits

AT_ONCE = 10.0
"""Seconds for news that would otherwise come with the next renewal, after a third of LASTING."""


async def test_one_at_a_time(connect: Connect, of: Kind) -> None:
    here, there = connect(), connect()
    async with of(here) as lease:
        assert lease.held
        assert 0 < lease.remaining() <= LASTING
        assert await refused(of(there))
        if not of.reentrant:
            assert await refused(of(here))
        other = await of(there, "b").acquire(timeout=PATIENCE)
        assert await other.release()
    assert not lease.held
    assert lease.remaining() == 0
    again = await of(there).try_acquire()
    assert again is not None


async def test_nothing_is_left_behind(face: Face, connect: Connect, of: Kind) -> None:
    async with of(connect()) as lease:
        assert any("a" in key for key in await face.keys())
    assert lease.lost_reason is None
    await face.empty()  # a release needs the answers of a quorum only


async def test_fences_rise(connect: Connect, of: Kind) -> None:
    managers = connect(), connect()
    fences = []
    for number in range(8):
        async with of(managers[number % 2], timeout=PATIENCE) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))


async def test_awaited_entered_or_tried_is_the_same(locks: asynclock.LockManager, of: Kind) -> None:
    lease = await of(locks).acquire(timeout=PATIENCE)
    assert await lease.release() is True
    assert await lease.release() is True  # idempotent, with the same answer
    async with of(locks).acquire(timeout=PATIENCE) as entered:
        assert entered.held
    tried = await of(locks).try_acquire()
    assert tried is not None
    async with tried:
        assert tried.held
    assert not tried.held


async def test_timeout_says_who_has_it(connect: Connect, of: Kind) -> None:
    here, there = connect(label="billing"), connect()
    async with of(here) as lease:
        with pytest.raises(asynclock.AcquireTimeoutError) as caught:
            await of(there, timeout=0.1).acquire()
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert error.name in of.names
    assert (error.owner, error.holder) == (lease.owner, "billing")
    assert error.remaining is not None
    assert 0 < error.remaining <= LASTING
    assert 0 < error.retry_after <= error.remaining


async def test_a_waiter_gets_it_when_it_is_released(connect: Connect, of: Kind) -> None:
    here, there = connect(), connect()
    first = await of(here).acquire()
    waiter = asyncio.create_task(of(there, timeout=PATIENCE).acquire())
    await waits(there)
    assert not waiter.done()
    await first.release()
    second = await waiter
    assert second.fence > first.fence
    await second.release()


AT_LEAST = 5.0


async def test_it_rests_after_a_release(face: Face, connect: Connect, of: Kind) -> None:
    here, there = connect(label="job"), connect()
    if not of.rests:
        with pytest.raises(TypeError, match="at_least"):
            of(here, at_least=AT_LEAST)
        return
    now = asyncio.get_running_loop().time
    begin = now()
    async with of(here, at_least=AT_LEAST) as lease:
        ours = asyncio.create_task(of(here, timeout=PATIENCE).acquire())
        await until(lambda: here.statistics().waiting == 1, "the other task waits")
    assert await lease.release() is True
    assert not await lease.check()
    assert await refused(of(there))
    rests = r"rests for \d\.\d s \(last held by 'job'\)"
    with pytest.raises(asynclock.AcquireTimeoutError, match=rests) as e:
        await of(there, timeout=0.1).acquire()
    assert e.value.retry_after == e.value.remaining
    seen = await of.inspect(there)
    assert (seen.rests, seen.holder) == (True, "job")
    next_one = await ours
    assert AT_LEAST <= now() - begin < PATIENCE
    assert next_one.fence > lease.fence
    assert await next_one.release()
    await face.empty()


async def test_a_detached_lease_is_resumed_once(face: Face, connect: Connect, of: Kind) -> None:
    here, there = connect(), connect()
    async with of(here) as lease:
        if not of.detaches:
            with pytest.raises(asynclock.ConfigurationError, match="only those of lock"):
                await lease.detach()
            assert lease.held
            return
        waiting = asyncio.create_task(of(there, timeout=PATIENCE).acquire())
        await waits(there)
        ticket = await lease.detach()
        assert not lease.held
    assert (await lease.release(), lease.lost_reason, here.leases()) == (True, None, ())
    assert await refused(of(here))
    resumed = await there.resume(ticket)
    assert resumed.fence > lease.fence
    assert resumed.owner != lease.owner
    await resumed.extend()
    assert await resumed.check()
    for locks in (here, there):
        with pytest.raises(asynclock.LeaseLostError, match="another resume took it"):
            await locks.resume(ticket)
    assert not waiting.done()
    assert await resumed.check()
    assert await resumed.release()
    next_one = await waiting
    assert next_one.fence > resumed.fence
    assert await next_one.release()
    with pytest.raises(asynclock.LeaseLostError, match="it has ended"):
        await here.resume(ticket)
    await face.empty()


OUTLIVED = ("1-up", "3-dead", "1-memory", "acks1-tcp-up", "sentinel-tcp-up", "cluster-tcp-up")
"""Where keys are watched beyond their first ttl: one of each kind of deployment."""


async def test_renewal_keeps_it_beyond_its_ttl(face: Face, connect: Connect, of: Kind) -> None:
    outlived = face.name in OUTLIVED
    # A busy machine loses leases with a short ttl (docs/tuning.md).
    locks = connect(**({"ttl": 2.5} if outlived else {}))
    async with of(locks) as lease:
        if outlived:
            await asyncio.sleep(lease.remaining() + 0.1)
        else:
            renew_now(locks)
            await until(lambda: locks.statistics().renewed, "it is renewed")
        assert lease.held
        assert await refused(of(connect()))
    assert lease.lost_reason is None


async def test_without_renewal_it_ends_by_itself(connect: Connect, of: Kind) -> None:
    lease = await of(connect(ttl=1), renew=False).acquire()
    await asyncio.wait_for(lease.wait_lost(), PATIENCE)
    assert not lease.held
    assert lease.lost_reason == "its ttl ran out (renew=False)"
    assert await lease.release() is False


async def test_max_hold_ends_it(connect: Connect, of: Kind) -> None:
    lease = await of(connect(ttl=1), max_hold=1.1).acquire()
    await asyncio.wait_for(lease.wait_lost(), PATIENCE)
    assert lease.lost_reason == "its max_hold is over"


async def test_a_loss_ends_the_body(
    face: Face, connect: Connect, caplog: pytest.LogCaptureFixture, of: Kind
) -> None:
    locks = connect()
    with caplog.at_level(logging.ERROR, "asynclock"), pytest.raises(asynclock.LeaseLostError) as e:
        async with of(locks):
            await face.command("FLUSHALL")
            renew_now(locks)
            await asyncio.sleep(PATIENCE)
            pytest.fail("the body goes on")
    assert e.value.name in of.names
    # Not that its ttl ran out. The others of a multi-lock may only find it out when they end.
    assert e.value.reason in (
        "the nodes no longer hold it for us",
        "the nodes no longer held it for us when it was released",
    )
    losses = [record for record in caplog.records if "lost the lease" in record.message]
    told = [record.getMessage().partition("(")[0] for record in losses]
    assert told
    assert len(told) == len(set(told))  # of each name once


async def test_a_deleted_key_ends_the_body_at_once(face: Face, connect: Connect, of: Kind) -> None:
    """The next renewal is 40 s away."""
    locks = connect()
    with pytest.raises(asynclock.LeaseLostError, match=r"the nodes no longer h[eo]ld it for us"):
        async with asyncio.timeout(AT_ONCE), of(locks) as lease:
            await lease.extend()
            await face.delete()
            if face.name == "1-resp2":  # it can't push
                renew_now(locks)
            await asyncio.sleep(PATIENCE)


@pytest.mark.parametrize("error", [asynclock.LeaseLostError, KeyError])
async def test_a_loss_without_interrupt_raises_at_the_exit_and_replaces_no_error(
    face: Face, connect: Connect, of: Kind, error: type[Exception]
) -> None:
    locks = connect()
    finished = False
    with pytest.raises(error):
        async with of(locks, interrupt=False) as lease:
            await face.command("FLUSHALL")
            renew_now(locks)
            await lease.wait_lost()
            assert not lease.held
            finished = True
            if error is KeyError:
                raise KeyError
    assert finished


async def test_release_tells_a_loss_nobody_noticed(
    face: Face, locks: asynclock.LockManager, of: Kind
) -> None:
    with pytest.raises(asynclock.LeaseLostError):
        async with of(locks):
            await face.command("FLUSHALL")


async def test_extend(face: Face, connect: Connect, of: Kind) -> None:
    locks = connect()
    lease = await of(locks, ttl=5, renew=False).acquire()
    await lease.extend(ttl=9)
    assert lease.remaining() > 7
    await face.command("FLUSHALL")
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    assert await lease.release() is False


async def test_cancelled_waiting_leaves_nothing(face: Face, connect: Connect, of: Kind) -> None:
    here, there = connect(), connect(ticket_ttl=2 * PATIENCE)  # no ticket goes by expiring
    async with of(here), asyncio.TaskGroup() as group:
        tasks = [group.create_task(_hold(of(there))) for _ in range(5)]
        await waits(there, 5)
        for task in tasks:
            task.cancel()
    await face.empty()  # tickets are removed without waiting for an answer
    assert there.statistics().waiting == 0


async def _hold(lock: Any) -> None:
    async with lock:
        await asyncio.sleep(0)


@pytest.mark.parametrize("handoff", [True, "strict", False])
async def test_many_tasks_never_overlap(connect: Connect, handoff: bool, of: Kind) -> None:
    turn = 0.1  # with the default of 10 ms a busy machine hands nothing over
    managers = connect(turn=turn), connect(turn=turn)
    inside = 0
    fences: list[int] = []

    async def work(locks: asynclock.LockManager) -> None:
        nonlocal inside
        for _ in range(5):
            async with of(locks, handoff=handoff) as lease:
                inside += 1
                assert inside == 1
                fences.append(lease.fence)
                await asyncio.sleep(0.001)
                inside -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(work(managers[number % 2]))
    assert len(fences) == 50
    assert fences == sorted(set(fences))
    handed = sum(locks.statistics().handovers for locks in managers)
    assert (handed > 0) == bool(handoff and of.hands_on)


async def test_left_in_another_task_than_entered(locks: asynclock.LockManager, of: Kind) -> None:
    lease = await of(locks).acquire()
    entered = asyncio.create_task(lease.__aenter__())
    await entered
    assert lease.held
    await lease.__aexit__(None, None, None)
    assert not lease.held


async def test_waiting_for_oneself_is_an_error(locks: asynclock.LockManager, of: Kind) -> None:
    async with of(locks) as lease:
        if of.reentrant:
            async with of(locks) as again:
                assert again.fence == lease.fence
            assert lease.held
            return
        with pytest.raises(asynclock.AlreadyHeldError):
            await of(locks).acquire()
        assert await refused(of(locks))


async def test_a_lock_object_is_shared_by_tasks(locks: asynclock.LockManager, of: Kind) -> None:
    lock = of(locks)
    seen = []

    async def work(number: int) -> None:
        async with lock as lease:
            assert lease.held
            seen.append(number)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(work(number))
    assert sorted(seen) == list(range(6))


async def test_inspect(connect: Connect, of: Kind) -> None:
    locks = connect(label="web-1")
    nobody = await of.inspect(locks)
    assert nobody.owner is None
    assert nobody.agreed
    async with of(locks) as lease:
        found = await of.inspect(connect())
        assert (found.owner, found.holder) == (lease.owner, "web-1")
        # Of several names that are locked one by one, each has a fence of its own.
        assert found.fence == getattr(lease, "fences", {}).get("a", lease.fence)
        assert found.remaining is not None
        assert 0 < found.remaining <= LASTING


async def test_a_holder_publishes_a_message(face: Face, connect: Connect, of: Kind) -> None:
    here, there = connect(), connect()
    async with of(here) as lease:
        for wrong in ("x" * 201, b"bytes", None):
            with pytest.raises(asynclock.ConfigurationError, match="at most 200"):
                await lease.publish(wrong)
        assert await lease.publish("x" * 200)
        assert await lease.publish("40 %")
        assert (await of.inspect(there)).message == "40 %"
        with pytest.raises(asynclock.AcquireTimeoutError, match="40 %") as caught:
            await of(there, timeout=0.5).acquire()
        assert caught.value.holder_message == "40 %"
        assert await lease.publish("")
        await becomes(partial(_message, of, there), None)  # also where a node is late
        assert await lease.publish("41 %")
    await face.empty()
    with pytest.raises(asynclock.LeaseLostError):
        await lease.publish("too late")


async def _message(of: Kind, locks: asynclock.LockManager) -> str | None:
    found: asynclock.Inspection = await of.inspect(locks)
    return found.message


async def test_a_holder_is_asked_and_its_lock_is_taken_back(connect: Connect, of: Kind) -> None:
    here, there = connect(), connect(label="boss")
    assert not await there.ask_back("a")
    assert not await there.release_held("a", force=True)
    lease = await of(here).acquire()
    asked = asyncio.create_task(lease.wanted())
    assert await there.ask_back("a")
    assert await asyncio.wait_for(asked, PATIENCE) == "boss"
    assert lease.held
    for wrong in (None, b"owner", 5):
        with pytest.raises(asynclock.ConfigurationError):
            await there.release_held("a", owner=wrong)  # type: ignore[arg-type]
    label = (await of.inspect(there)).holder
    with pytest.raises(asynclock.ConfigurationError, match="label"):
        await there.release_held("a", owner=label)
    assert not await there.release_held("a", owner="0" * 32)
    waiter = asyncio.create_task(of(there, timeout=PATIENCE).acquire())
    await waits(there)
    owner = (await of.inspect(there)).owner
    assert owner is not None
    assert await there.release_held("a", owner=owner)
    assert not await lease.check()
    await lease.release()  # of several names the others
    second = await waiter
    waiting = asyncio.create_task(second.wanted())
    assert await second.release()
    assert await waiting is None


async def test_a_dead_holders_lock_is_free_after_its_ttl(connect: Connect, of: Kind) -> None:
    # Simulate a holder that vanished: no renewal and no release.
    # The nodes keep its key for a second from some moment after it asked.
    begin = asyncio.get_running_loop().time()
    lease = await of(connect(ttl=1), renew=False).acquire()
    async with of(connect(), timeout=20) as next_one:
        assert not lease.held
        assert next_one.fence > lease.fence
        assert asyncio.get_running_loop().time() - begin > 0.95


async def test_closing_ends_what_is_held(face: Face, connect: Connect, of: Kind) -> None:
    locks = connect()
    lease = await of(locks).acquire()
    other = asyncio.create_task(_hold(of(locks)))
    await until(lambda: locks.statistics().waiting == 1, "the other task waits")
    await locks.aclose()
    await locks.aclose()
    assert not lease.held
    with pytest.raises(asynclock.ConfigurationError):
        await other
    with pytest.raises(asynclock.ConfigurationError):
        await of(locks, "b").acquire()
    await face.empty()  # a place in a queue is given up without waiting for an answer
