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
