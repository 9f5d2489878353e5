"""A lease that is lost inside an async generator: its consumer gets LeaseLostError."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asynclock
from asynclock.testing import lose
from tests.engine.test_closing import HELD, hold
from tests.waiting import cancellations, in_virtual_time


async def consume(kind: str, locks: asynclock.LockManager) -> None:
    async with contextlib.aclosing(hold(locks, kind)) as rows:  # type: ignore[type-var]
        async for held in rows:
            lose(held)
            await asyncio.Event().wait()


@pytest.mark.parametrize("kind", sorted(HELD.keys() - {"election"}))
@in_virtual_time
async def test_the_consumer_gets_the_loss(kind: str) -> None:
    async with asynclock.connect(f"memory://generator-{kind}") as locks:
        with pytest.raises(asynclock.LeaseLostError):
            await consume(kind, locks)
        assert cancellations() == 0


@in_virtual_time
async def test_a_cancellation_stays_one() -> None:
    async def rows(locks: asynclock.LockManager) -> AsyncIterator[Any]:
        async with locks.lock("a") as lease:
            yield lease

    async with asynclock.connect("memory://generator-cancelled") as locks:

        async def consume() -> None:
            async with contextlib.aclosing(rows(locks)) as found:  # type: ignore[type-var]
                async for held in found:
                    lose(held)
                    asyncio.current_task().cancel()  # type: ignore[union-attr]
                    await asyncio.Event().wait()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(consume())
