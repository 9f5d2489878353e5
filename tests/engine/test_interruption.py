"""One cancellation ends the body of a lease that was lost, and is never confused with others."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing import lose
from tests.engine.kinds import kinds
from tests.engine.virtual_nodes import TTL, Nodes, virtual_single
from tests.waiting import cancellations

LOST = asynclock.LeaseLostError


async def was_cancelled() -> None:
    """Cancel this task, and go on, as a task may that has to clean up."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(10)


@pytest.mark.parametrize("error", [LOST, KeyError])
@virtual_single
async def test_a_body_that_is_just_leaving_is_left_alone(on: Nodes, error: type[Exception]) -> None:
    with pytest.raises(error):
        async with on.locks.lock("a") as lease:
            lose(lease)
            if error is KeyError:
                raise KeyError
    assert cancellations() == 0
    await asyncio.sleep(0)


HELD = kinds(
    *("strict", "semaphore", "several"),
    acquire=lambda locks: locks.lock("a").acquire(),
    once=lambda locks: locks.once("a", keep=60),
    campaign=lambda locks: locks.election("a").campaign("me"),
)


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("error", [LOST, KeyError])
@virtual_single
async def test_a_block_that_leaves_late_without_an_await_is_left_alone(
    on: Nodes, kind: str, error: type[Exception]
) -> None:
    """As after a body that blocks the loop until its lease has run out."""
    with pytest.raises(error):
        async with HELD[kind](on.locks):
            loop: Any = asyncio.get_running_loop()
            loop.now += 2 * TTL
            if error is KeyError:
                raise KeyError
    for _ in range(5):
        await asyncio.sleep(0)
    assert cancellations() == 0


@virtual_single
async def test_a_body_may_swallow_it_and_is_told_at_its_end(on: Nodes) -> None:
    with pytest.raises(LOST):
        async with on.locks.lock("a") as lease:
            lose(lease)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(10)
    assert cancellations() == 0
    await asyncio.sleep(0)


@pytest.mark.parametrize("struck", [True, False])
@virtual_single
async def test_somebody_elses_cancellation_stays_theirs(on: Nodes, *, struck: bool) -> None:
    begun = asyncio.Event()

    async def body() -> None:
        async with on.locks.lock("a") as lease:
            if struck:
                lose(lease)
            begun.set()
            await asyncio.sleep(10)

    task = asyncio.create_task(body())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@virtual_single
async def test_nested_each_ends_its_own(on: Nodes) -> None:
    with pytest.raises(LOST, match="'outer'"):
        async with on.locks.lock("outer") as outer:
            with pytest.raises(LOST, match="'inner'"):
                async with on.locks.lock("inner") as inner:
                    lose(inner)
                    await asyncio.sleep(10)
            assert cancellations() == 0
            async with on.locks.lock("inner"):
                lose(outer)
                await asyncio.sleep(10)
    assert cancellations() == 0


@virtual_single
async def test_a_timeout_around_or_inside_keeps_its_own(on: Nodes) -> None:
    with pytest.raises(TimeoutError) as around:
        async with asyncio.timeout(0.01), on.locks.lock("a"):
            await asyncio.sleep(10)
    assert not isinstance(around.value, asynclock.AsyncLockError)
    with pytest.raises(LOST):
        async with on.locks.lock("a") as lease:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(10)
            async with asyncio.timeout(10):
                lose(lease)
                await asyncio.sleep(10)
    assert cancellations() == 0


@virtual_single
async def test_left_in_another_task_it_cancels_nobody_there(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await asyncio.create_task(lease.__aenter__())
    lose(lease)
    await asyncio.sleep(0.01)
    with pytest.raises(LOST):
        await lease.__aexit__(None, None, None)
    assert cancellations() == 0


@virtual_single
async def test_a_cancellation_from_before_the_body_is_not_taken_for_a_second_one(on: Nodes) -> None:
    async def work() -> None:
        await was_cancelled()
        with pytest.raises(LOST):
            async with on.locks.lock("a") as lease:
                lose(lease)
                await asyncio.sleep(10)
        assert cancellations() == 1

    await asyncio.create_task(work())


@virtual_single
async def test_a_body_that_moved_to_a_task_that_was_cancelled_before_ends_there(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await asyncio.create_task(lease.__aenter__())

    async def go_on() -> None:
        await was_cancelled()
        lease.adopt()
        lose(lease)
        with pytest.raises(asyncio.CancelledError) as ending:
            await asyncio.sleep(10)
        with pytest.raises(LOST):
            await lease.__aexit__(asyncio.CancelledError, ending.value, None)
        assert cancellations() == 1

    await asyncio.create_task(go_on())


@virtual_single
async def test_an_error_that_the_body_makes_of_its_interruption_stays(on: Nodes) -> None:
    with pytest.raises(KeyError):
        async with on.locks.lock("a") as lease:
            lose(lease)
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise KeyError from None
    assert cancellations() == 0


@virtual_single
async def test_left_in_another_task_it_takes_no_cancellation_back(on: Nodes) -> None:
    lease, ready, left = await on.locks.lock("a").acquire(), asyncio.Event(), asyncio.Event()
    counts: list[int] = []

    async def entered() -> None:
        await lease.__aenter__()
        ready.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
        await left.wait()
        counts.append(cancellations())

    task = asyncio.create_task(entered())
    await ready.wait()
    lose(lease)
    while not task.cancelling():
        await asyncio.sleep(0)
    with pytest.raises((LOST, asyncio.CancelledError)):
        await lease.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
        raise asyncio.CancelledError
    left.set()
    await task
    assert counts == [1], "the task may still ask why it was cancelled"
