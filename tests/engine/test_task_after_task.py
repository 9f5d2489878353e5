"""What one task of a process leaves to the next: outages, turns, and no timers. In virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock, events
from asynclock._engine.attempt import Attempt
from tests.engine.test_queue import in_its_turn
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Nodes, start, virtual
from tests.engine.votes import HELD, OUT, QUEUED, SHORT, WON, answered
from tests.waiting import until


async def error(call: Any) -> Any:
    """Return the error that a call ends with."""
    with pytest.raises(asynclock.AsyncLockError) as caught:
        await call
    return caught.value


@virtual
async def test_a_task_with_too_little_time_to_ask_tells_the_outage_of_the_one_before(
    on: Nodes,
) -> None:
    """Its own answers are cut by the timeout, so they say nothing."""
    with answered(replace(OUT, took=NODE_TIMEOUT), SHORT) as asked:
        first = start(on.locks.semaphore("s", 1).acquire(timeout=0.9))
        await asyncio.sleep(0)
        second = start(on.locks.semaphore("s", 1).acquire(timeout=NODE_TIMEOUT + 0.1))
        for task in (first, second):
            found = await error(task)
            assert isinstance(found, asynclock.QuorumUnavailableError)
            assert found.nodes == {"memory://a": "down", "memory://b": "down"}
    assert len(asked) == 2


@virtual
async def test_a_task_whose_turn_does_not_come_tells_the_outage_of_the_one_that_asks(
    on: Nodes,
) -> None:
    with answered(OUT):
        asking = start(on.locks.semaphore("s", 1).acquire())
        await asyncio.sleep(0)
        found = await error(on.locks.semaphore("s", 1).acquire(timeout=0.5))
        assert isinstance(found, asynclock.QuorumUnavailableError)
        assert found.nodes == {"memory://a": "down", "memory://b": "down"}
        asking.cancel()
        await asyncio.wait([asking])


@virtual
async def test_after_a_win_nobody_tells_of_an_outage_before_it(on: Nodes) -> None:
    """The timeout of the last task ends while another one asks, and the nodes answer."""
    lock = on.locks.lock("a", handoff=False)
    first = await lock.acquire()
    second, third = start(lock.acquire()), start(lock.acquire())
    fourth = start(lock.acquire(timeout=2.0))
    await asyncio.sleep(0)
    (queue,) = on.locks._engine.queues.values()
    queue.search = SimpleNamespace(unanswered=Attempt(on.locks._engine, QUEUED, TTL))
    await first.release()
    lease = await second
    await asyncio.sleep(1.9)
    on.slow(0.2)
    await lease.release()
    assert type(await error(fourth)) is asynclock.AcquireTimeoutError
    assert not third.done()
    on.slow(0.0)
    await (await third).release()


@pytest.mark.parametrize(
    ("votes", "goes_on"), [((WON,), True), ((HELD, WON), False)], ids=["won at once", "refused"]
)
def test_a_turn_goes_on_only_if_nobody_came_in_between(votes: Any, *, goes_on: bool) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        async with on.connect(turn=60.0) as locks:
            held = await locks.lock("a").acquire()
            grant = held._grant
            assert grant is not None
            assert grant.queue is not None
            grant.queue.grants.clear()
            grant.queue.kept = grant
            began = grant.since
            await asyncio.sleep(1.0)
            with answered(*votes):
                call = asyncio.ensure_future(locks.lock("a").acquire())
                await asyncio.sleep(0.5)
                locks._engine.multiplexer.wakeups.wake(None)
                lease = await call
            assert lease._grant is not None
            assert (lease._grant.since == began) is goes_on
            assert lease._grant.since <= _clock.now()

    test()


@pytest.mark.parametrize("early", [True, False], ids=["made before", "made after"])
def test_a_turn_that_is_over_when_the_name_is_wanted_again_passes_on(*, early: bool) -> None:
    """Also if the call was made, but not awaited, while the turn lasted."""

    @virtual
    async def test(on: Nodes) -> None:
        async with in_its_turn(on) as (ours, lease, waiting):
            call = ours.lock("a").acquire() if early else None
            on.slow(0.1)  # the name is kept until the nodes have answered
            await lease.release()
            (queue,) = ours._engine.queues.values()
            queue.turn = 0.05
            assert queue.kept is not None
            queue.kept.since = _clock.now()
            await asyncio.sleep(0.06)
            again = start(call or ours.lock("a").acquire())
            done, _ = await asyncio.wait([again, waiting], return_when="FIRST_COMPLETED")
            assert done == {waiting}
            on.slow(0.0)
            await (await waiting).release()
            await (await again).release()

    test()


@virtual
async def test_a_call_that_is_over_leaves_no_timer_behind(on: Nodes) -> None:
    """Neither the one of its first request, nor that of its turn, nor that of its attempt."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def noted(delay: float, callback: Any, *args: Any, **more: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, callback, *args, **more))
        if callback.__name__ in {"_expire", "expire", "give_up"}:
            ours.append(timers[-1])
        return timers[-1]

    ours: list[asyncio.TimerHandle] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", noted)
        lease = await on.locks.lock("a").acquire(timeout=1.0)
        assert len(ours) == 1, "the first request ends by a timer"
        waiting = start(on.locks.lock("a").acquire(timeout=50.0))
        await asyncio.sleep(0)
        assert len(ours) == 2, "the turn must come in time"
        await lease.release()
        await (await waiting).release()
        await (await on.locks.semaphore("s", 1).acquire(timeout=1.0)).release()
        assert len(ours) == 3, "so must the attempt"
        assert all(timer.cancelled() for timer in ours)


@virtual
async def test_a_win_narrows_the_pauses_between_rivals(on: Nodes) -> None:
    """Whether it was won with others of the tick or alone."""
    spread = on.locks._engine.spread
    for wanted in (on.locks.lock("a"), on.locks.semaphore("s", 1)):
        spread.width = 0.1
        async with wanted.acquire():
            assert spread.width == pytest.approx(0.08)


@virtual
async def test_each_call_in_vain_is_told_with_its_outcome_and_how_long_it_waited(
    on: Nodes,
) -> None:
    seen: list[Any] = []
    async with on.connect() as theirs, on.connect(observers=[seen.append]) as locks:
        held = await theirs.lock("a").acquire()
        lock = locks.lock("a")
        assert await lock.try_acquire() is None
        await error(lock.acquire(timeout=0.5))
        async with locks.lock("b"):
            await error(locks.lock("b").acquire())
        await held.release()
        for node in on.nodes:
            node.kill()
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
    seen: list[Any] = []
    owner = "0123456789abcdef" * 2 + ":web"
    await on.ghost(owner, ttl=5.0)
    async with on.connect(observers=[seen.append]) as locks:
        assert await locks.lock("a").try_acquire() is None
        assert seen[-3:-1] == [
            events.Voted("a", dict.fromkeys(("memory://a", "memory://b", "memory://c"), "refused")),
            events.Contended("a", "web", pytest.approx(5.0, abs=0.01)),
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
async def test_a_call_that_is_refused_its_turn_by_its_deadline_names_the_holder_here(
    on: Nodes,
) -> None:
    lease = await on.locks.lock("a").acquire()
    found = await error(start(on.locks.lock("a").acquire(timeout=0.5)))
    assert type(found) is asynclock.AcquireTimeoutError
    assert str(found) == (
        "'a' was not free in time; other tasks of this process hold it or wait for it"
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
async def test_a_call_counts_its_time_from_when_it_was_made(on: Nodes) -> None:
    """As a coroutine as well, which a task drives."""
    held = await on.locks.lock("a").acquire()
    seen: list[Any] = []
    async with on.connect(observers=[seen.append]) as theirs:
        for drive in (lambda call: call, asyncio.create_task):
            call = theirs.lock("a").acquire(timeout=1.0)
            await asyncio.sleep(0.7)
            began = _clock.now()
            await error(drive(call))
            assert _clock.now() - began == pytest.approx(0.3)
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
async def test_the_time_of_a_lease_counts_from_its_request_and_its_turn_from_the_answer(
    on: Nodes,
) -> None:
    on.slow(0.2)
    for wanted in (on.locks.lock("a"), on.locks.semaphore("s", 1)):
        began = _clock.now()
        lease = await wanted.acquire()
        now = _clock.now()
        assert now - began == pytest.approx(0.4)
        assert lease.remaining() == pytest.approx(began + TTL * 0.99 - 0.002 - now)
        assert lease._grant is not None
        assert (lease._grant.asked_since, lease._grant.since) == (began, now)
        assert lease._grant.alarm == pytest.approx(began + TTL / 3), "the first renewal"
        await lease.release()
    on.slow(0.0)
