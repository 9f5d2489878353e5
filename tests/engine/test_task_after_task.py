"""What one task of a process leaves to the next: outages, turns, and no timers. In virtual time."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import events
from tests.engine.test_queue import in_its_turn
from tests.engine.virtual_nodes import KEY, NODE_TIMEOUT, TTL, Nodes, seconds_until, start, virtual
from tests.tables.inside import now
from tests.waiting import call_off, until


async def error(call: Any) -> Any:
    """Return the error that a call ends with."""
    with pytest.raises(asynclock.AsyncLockError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
@pytest.mark.parametrize(
    ("first", "second"), [(5.0, 5.0 + NODE_TIMEOUT / 10), (9.0, 2 * NODE_TIMEOUT)]
)
@virtual
async def test_a_task_that_had_no_time_to_ask_tells_the_outage_of_the_one_before(
    on: Nodes, kind: str, first: float, second: float
) -> None:
    """Its turn did not come, or its own answers were cut by the timeout: they say nothing."""
    lock: Any = on.locks.lock("a") if kind == "lock" else on.locks.semaphore("a", 1)
    on.freeze("bc")
    calls = []
    for timeout in (first, second):
        calls.append(start(lock.acquire(timeout=timeout)))
        await asyncio.sleep(0)
    for call in calls:
        found = await error(call)
        assert isinstance(found, asynclock.QuorumUnavailableError)
        assert {*found.nodes} == {"memory://b", "memory://c"}


@virtual
async def test_after_a_win_nobody_tells_of_an_outage_before_it(on: Nodes) -> None:
    """The timeout of the last task ends while another one asks, and the nodes answer."""
    lock = on.locks.lock("a", handoff=False)
    on.freeze("bc")
    first, second = start(lock.acquire()), start(lock.acquire())
    third = start(lock.acquire(timeout=5.0))
    await asyncio.sleep(3.0)
    on.thaw("bc")
    lease = await first
    await asyncio.sleep(1.5)
    on.slow(0.45)
    await lease.release()
    assert type(await error(third)) is asynclock.AcquireTimeoutError
    on.slow(0.0)
    await (await second).release()


@virtual
async def test_after_a_refusal_nobody_tells_of_an_outage_before_it(on: Nodes) -> None:
    on.kill("ab")
    await until(lambda: [one.state for one in on.locks.nodes()][:2] == ["down"] * 2)
    asking = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.5)
    for node in on.nodes[:2]:
        node.restart()
        node.born_ago(3600)
    await on.ghost()
    await until(lambda: on.locks.statistics().refused)
    found = await error(on.locks.lock("a").acquire(timeout=1))
    assert type(found) is asynclock.AcquireTimeoutError
    asking.cancel()


@pytest.mark.parametrize("early", [True, False], ids=["made before", "made after"])
@virtual
async def test_a_turn_that_is_over_passes_on_though_wanted_again(on: Nodes, *, early: bool) -> None:
    """Also if the call was made, but not awaited, while the turn lasted."""
    async with in_its_turn(on, turn=0.25) as (ours, lease, waiting):
        call = ours.lock("a").acquire() if early else None
        await asyncio.sleep(0.2)
        on.slow(0.1)  # the name is kept until the nodes have answered
        await lease.release()
        await asyncio.sleep(0.1)
        again = start(call or ours.lock("a").acquire())
        done, _ = await asyncio.wait([again, waiting], return_when="FIRST_COMPLETED")
        assert done == {waiting}
        on.slow(0.0)
        await (await waiting).release()
        await (await again).release()


@virtual
async def test_a_call_that_is_over_leaves_no_timer_behind(on: Nodes) -> None:
    """Neither the one of its first request, nor that of its turn, nor that of its attempt."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def noted(delay: float, *call: Any, **more: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, *call, **more))
        return timers[-1]

    def pending(timeout: float) -> int:
        ends = loop.time() + timeout
        return sum(not one.cancelled() and abs(one.when() - ends) < 0.01 for one in timers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", noted)
        lease = await on.locks.lock("a").acquire(timeout=1.5)
        waiting = start(on.locks.lock("a").acquire(timeout=50.0))
        await asyncio.sleep(0)
        assert [pending(1.5), pending(50.0)] == [0, 1], "the turn must come in time"
        await lease.release()
        await (await waiting).release()
        await (await on.locks.semaphore("s", 1).acquire(timeout=1.5)).release()
        assert [pending(1.5), pending(50.0)] == [0, 0]


@virtual
async def test_each_call_in_vain_is_told_with_its_outcome_and_how_long_it_waited(on: Nodes) -> None:
    seen: list[Any] = []
    async with on.connect() as theirs, on.connect(observers=[seen.append]) as locks:
        held = await theirs.lock("a").acquire()
        lock = locks.lock("a")
        assert await lock.try_acquire() is None
        await error(lock.acquire(timeout=0.5))
        async with locks.lock("b"):
            await error(locks.lock("b").acquire())
        await held.release()
        on.kill()
        await until(lambda: all(node.state == "down" for node in locks.nodes()))
        await error(locks.lock("c").acquire(timeout=0.2))
    failed = [one for one in seen if isinstance(one, events.Failed)]
    assert [(one.name, one.outcome) for one in failed] == [
        ("a", "refused"),
        ("a", "timeout"),
        ("b", "error"),
        ("c", "outage"),
    ]
    assert [one.waited for one in failed] == [0, pytest.approx(0.5), 0, pytest.approx(0.2)]


@virtual
async def test_a_refusal_and_a_win_are_told_whole(on: Nodes) -> None:
    """A refusal with label and digest of the holder: with its id anyone could release the lock."""
    seen: list[Any] = []
    owner = "0123456789abcdef" * 2 + ":web"
    await on.ghost(owner, ttl=5.0)
    async with on.connect(observers=[seen.append]) as locks:
        assert await locks.lock("a").try_acquire() is None
        assert seen[-3:-1] == [
            events.Voted("a", dict.fromkeys(("memory://a", "memory://b", "memory://c"), "refused")),
            events.Contended("a", "web", pytest.approx(5.0, abs=0.01), events.holder_id(owner)),
        ]
        seen.clear()
        first = await locks.lock("b").acquire()
        waiting = start(locks.lock("b").acquire())
        await asyncio.sleep(0.05)
        await first.release()
        second = await waiting
        won = [one for one in seen if isinstance(one, events.Acquired)]
        assert won == [
            events.Acquired("b", first.owner, first.fence, 0.0, won[0].votes, False),
            events.Acquired("b", first.owner, second.fence, pytest.approx(0.05), 0, True),
        ]
        assert locks.statistics().handovers == 1
        assert won[0].votes >= 2
        await second.release()


@virtual
async def test_a_call_refused_its_turn_by_its_deadline_names_the_holder_here(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    found = await error(start(on.locks.lock("a").acquire(timeout=0.5)))
    assert type(found) is asynclock.AcquireTimeoutError
    assert str(found) == (
        "'a' was not free in time; other tasks of this process hold it or wait for it, and the "
        "call was number 1 of those that wait; the timeout was 0.5 s"
    )
    assert (found.name, found.owner, found.holder) == ("a", lease.owner, lease.owner[33:])
    assert found.remaining == pytest.approx(lease.remaining(), abs=0.01)
    assert await on.locks.lock("a").try_acquire() is None


@virtual
async def test_a_try_for_a_permit_asks_the_nodes_while_this_process_has_not_all(on: Nodes) -> None:
    semaphore = on.locks.semaphore("s", 2)
    first = await semaphore.acquire()
    tried = await semaphore.try_acquire()
    assert tried is not None
    await tried.release()
    second = await semaphore.acquire()
    before = on.locks.statistics().attempts
    assert await semaphore.try_acquire() is None
    assert on.locks.statistics().attempts == before, "this process knows that none is left"
    found = await error(start(semaphore.acquire(timeout=0.1)))
    assert found.owner == first.owner, "the one that has it for longest"
    await first.release()
    await second.release()


@virtual
async def test_a_permit_of_one_task_keeps_no_other_task_from_asking(on: Nodes) -> None:
    mine = await on.locks.semaphore("s", 2).acquire()
    async with on.connect() as others:
        theirs = await others.semaphore("s", 2).acquire()
        for _ in range(3):
            with pytest.raises(asynclock.AcquireTimeoutError):
                await on.locks.semaphore("s", 2).acquire(timeout=0.3)
        asks, waits = [start(on.locks.semaphore("s", 2).acquire()) for _ in range(2)]
        await asyncio.sleep(1)
        asks.cancel()
        await asyncio.sleep(1)
        await theirs.release()
        assert await seconds_until(waits.done) < NODE_TIMEOUT
        assert mine.held


@virtual
async def test_a_call_counts_its_time_from_when_it_was_made(on: Nodes) -> None:
    """As a coroutine as well, which a task drives."""
    held = await on.locks.lock("a").acquire()
    seen: list[Any] = []
    async with on.connect(observers=[seen.append]) as theirs:
        for drive in (lambda call: call, asyncio.create_task):
            call = theirs.lock("a").acquire(timeout=1.0)
            await asyncio.sleep(0.7)
            began = now()
            await error(drive(call))
            assert now() - began == pytest.approx(0.3)
    waited = [one.waited for one in seen if isinstance(one, events.Failed)]
    assert waited == pytest.approx([1.0, 1.0])
    await held.release()


@virtual
async def test_a_waiter_that_asks_with_other_terms_than_the_holder_is_next(on: Nodes) -> None:
    """The nodes are asked for it, and those behind it keep their order."""
    order: list[str] = []

    async def hold(name: str, call: Any) -> None:
        async with call:
            order.append(name)

    first = await on.locks.lock("a").acquire()
    tasks = [
        asyncio.create_task(hold("longer", on.locks.lock("a", ttl=TTL / 2).acquire())),
        asyncio.create_task(hold("same", on.locks.lock("a").acquire())),
        asyncio.create_task(hold("held back", on.locks.lock("a", max_hold=5.0).acquire())),
    ]
    await asyncio.sleep(0)
    await first.release()
    await asyncio.wait(tasks)
    assert order == ["longer", "same", "held back"]


@pytest.mark.parametrize("handoff", [True, False, "strict"])
@pytest.mark.parametrize("steps", range(6))
@virtual
async def test_a_cancelled_waiters_turn_goes_to_the_next(
    on: Nodes, steps: int, handoff: Any
) -> None:
    lock = on.locks.lock("a", handoff=handoff)
    lease = await lock.acquire()
    waiting, other = start(lock.acquire()), start(lock.acquire())
    await until(lambda: on.locks.statistics().waiting == 2)
    releasing = start(lease.release())
    for _ in range(steps):
        await asyncio.sleep(0)
    await call_off(waiting)
    if not waiting.cancelled():
        await waiting.result().release()
    assert await seconds_until(other.done) < NODE_TIMEOUT
    await (await other).release()
    await releasing


@virtual
async def test_a_release_while_the_next_waiter_is_being_cancelled_goes_to_nobody(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().waiting == 1)
    waiting.cancel()
    # No step of the loop in between: the waiter is cancelled and does not know it yet.
    await lease.release()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: not any(node.keys.get(KEY) for node in on.nodes))


@virtual
async def test_the_one_behind_a_waiter_being_cancelled_gets_its_own_terms(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    waiting, other = (start(on.locks.lock("a", ttl=ttl).acquire()) for ttl in (TTL, TTL / 2))
    await until(lambda: on.locks.statistics().waiting == 2)
    waiting.cancel()
    await lease.release()
    got = await other
    assert got.ttl == TTL / 2
    assert got.remaining() <= TTL / 2
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await got.release()


@virtual
async def test_what_a_task_asks_for_in_its_turn_is_what_its_lock_says(on: Nodes) -> None:
    """Although it asks alone, ahead of the waiters of other processes."""
    async with in_its_turn(on) as (ours, lease, waiting):
        await lease.release()
        again = await ours.lock("a", ttl=TTL / 4).acquire()
        assert again.ttl == TTL / 4
        assert again.remaining() == pytest.approx(TTL / 4, rel=0.05)
        assert not waiting.done()
        await again.release()
        await (await waiting).release()


@virtual
async def test_the_time_of_a_lease_counts_from_its_request(on: Nodes) -> None:
    on.slow(0.2)
    for wanted in (on.locks.lock("a"), on.locks.semaphore("s", 1)):
        began = now()
        lease = await wanted.acquire()
        assert now() - began == pytest.approx(0.4)
        assert lease.remaining() == pytest.approx(began + TTL * 0.99 - 0.002 - now())
        await asyncio.sleep(began + TTL / 3 - now() - 0.001)
        before = on.locks.statistics().renewed
        await asyncio.sleep(0.402)
        assert on.locks.statistics().renewed == before + 1, "so does the first renewal"
        await lease.release()
