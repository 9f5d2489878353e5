"""One cancellation ends the body, and is never confused with other cancellations."""

from __future__ import annotations

import asyncio
from types import TracebackType

import pytest

from asynclock._engine.interruption import Interruption


class Ended(Exception):
    """The body was ended by its own interruption."""


class Body:
    """The least user of an Interruption: what a lease does around a body."""

    async def __aenter__(self) -> Interruption:
        self.interruption = Interruption()
        return self.interruption

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.interruption.leave(kind):
            raise Ended from error


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_struck_body_ends_where_it_awaits() -> None:
    with pytest.raises(Ended):
        async with Body() as interruption:
            interruption.interrupt()
            interruption.interrupt()
            await asyncio.sleep(10)
    assert cancellations() == 0
    await asyncio.sleep(0)  # nothing is left behind


async def test_a_body_that_is_just_leaving_is_left_alone() -> None:
    async with Body() as interruption:
        interruption.interrupt()
    assert cancellations() == 0
    await asyncio.sleep(0)
    with pytest.raises(KeyError):
        async with Body() as interruption:
            interruption.interrupt()
            raise KeyError
    await asyncio.sleep(0)


async def test_a_body_may_swallow_it() -> None:
    async with Body() as interruption:
        interruption.interrupt()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
    assert cancellations() == 0
    await asyncio.sleep(0)


async def test_somebody_elses_cancellation_stays_theirs() -> None:
    async def body() -> None:
        async with Body() as interruption:
            begun.set()
            interruption.interrupt()
            await asyncio.sleep(10)

    begun = asyncio.Event()
    task = asyncio.create_task(body())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_without_a_strike_a_cancellation_passes() -> None:
    async def body() -> None:
        async with Body():
            await asyncio.sleep(10)

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nested_each_ends_its_own() -> None:
    with pytest.raises(Ended):
        async with Body() as outer:
            with pytest.raises(Ended):
                async with Body() as inner:
                    inner.interrupt()
                    await asyncio.sleep(10)
            assert cancellations() == 0
            async with Body():
                outer.interrupt()
                await asyncio.sleep(10)
    assert cancellations() == 0


async def test_a_timeout_around_or_inside_keeps_its_own() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Body():
            await asyncio.sleep(10)
    with pytest.raises(Ended):
        async with Body() as interruption:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(10)
            async with asyncio.timeout(10):
                interruption.interrupt()
                await asyncio.sleep(10)
    assert cancellations() == 0


async def test_left_in_another_task_it_cancels_nobody_there() -> None:
    body = Body()
    interruption = await asyncio.create_task(body.__aenter__())
    interruption.interrupt()
    await asyncio.sleep(0.01)
    await body.__aexit__(None, None, None)
    assert cancellations() == 0


async def test_outside_a_task_it_is_refused() -> None:
    loop = asyncio.get_running_loop()
    refused: asyncio.Future[str] = loop.create_future()

    def make() -> None:
        try:
            Interruption()
        except RuntimeError as error:
            refused.set_result(str(error))

    loop.call_soon(make)
    assert "inside a task" in await asyncio.wait_for(refused, 5)


async def test_a_cancellation_from_before_the_body_is_not_taken_for_a_second_one() -> None:
    """The task was cancelled and went on, as a task may that has to clean up."""

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
        with pytest.raises(Ended):
            async with Body() as interruption:
                interruption.interrupt()
                await asyncio.sleep(10)
        assert task.cancelling() == 1

    await asyncio.create_task(work())


async def test_a_body_that_moved_to_a_task_that_was_cancelled_before_ends_there() -> None:
    body = Body()
    interruption = await asyncio.create_task(body.__aenter__())

    async def go_on() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
        interruption.move()
        interruption.interrupt()
        with pytest.raises(asyncio.CancelledError) as ending:
            await asyncio.sleep(10)
        with pytest.raises(Ended):
            await body.__aexit__(asyncio.CancelledError, ending.value, None)
        assert task.cancelling() == 1

    await asyncio.create_task(go_on())


async def test_an_error_that_the_body_makes_of_its_interruption_stays() -> None:
    with pytest.raises(KeyError):
        async with Body() as interruption:
            interruption.interrupt()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise KeyError from None
    assert cancellations() == 0


async def test_left_in_another_task_it_takes_no_cancellation_back() -> None:
    body = Body()
    ready, left = asyncio.Event(), asyncio.Event()
    counts: list[int] = []

    async def entered() -> None:
        await body.__aenter__()
        ready.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
        await left.wait()
        counts.append(cancellations())

    task = asyncio.create_task(entered())
    await ready.wait()
    body.interruption.interrupt()
    while not task.cancelling():
        await asyncio.sleep(0)
    await body.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    left.set()
    await task
    assert counts == [1], "the task may still ask why it was cancelled"
