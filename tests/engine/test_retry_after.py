"""When a refused caller should come back: about when the name is free, and not after a ttl.

In virtual time, on three nodes, with two processes as far as locks can tell.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asynclock
from asynclock import AcquireTimeoutError, LockManager
from tests.engine.kinds import LOCKS, kinds
from tests.engine.virtual_nodes import Nodes, start, virtual
from tests.tables.inside import chance, now
from tests.waiting import call_off, until

KINDS = kinds(
    "strict", "semaphore", "several", full=lambda locks: locks.semaphore("a", 2).several(2)
)
KINDS["too few"] = LOCKS["several"]
each_kind = pytest.mark.parametrize("kind", KINDS)


@contextlib.asynccontextmanager
async def looping(wish: Any, body: float, tasks: int = 1) -> AsyncIterator[None]:
    """Tasks that take the name again and again."""

    async def loop() -> None:
        while True:
            async with wish:
                await asyncio.sleep(body)
            await asyncio.sleep(0)

    running = [asyncio.create_task(loop()) for _ in range(tasks)]
    try:
        yield
    finally:
        await call_off(*running)


async def advice(wish: Any, timeout: float) -> float | None:
    """Return what a refusal advises; None if the call got the name."""
    try:
        async with wish.acquire(timeout=timeout):
            return None
    except AcquireTimeoutError as error:
        refused = error
    assert refused.remaining is None or refused.retry_after <= refused.remaining
    return refused.retry_after


def held_by(kind: str, locks: LockManager) -> Any:
    return KINDS[{"read": "write", "one of two": "full"}.get(kind, kind)](locks)


@each_kind
@pytest.mark.parametrize("ttl", [10.0, 30.0])
@virtual
async def test_short_bodies_are_soon_over(on: Nodes, kind: str, ttl: float) -> None:
    """Whatever the ttl is, also if the holder has another one.

    A call that is refused again and again may be told to stay away for as long as that lasts.
    """
    async with on.connect(ttl=10, max_ttl=30) as holder, on.connect(ttl=ttl, max_ttl=30) as one:
        refused, first = 0, 0.0
        async with looping(held_by(kind, holder), 0.05):
            for _ in range(12):
                await asyncio.sleep(0.113)
                asked = now()
                pause = await advice(KINDS[kind](one), 0.005)
                first = asked if pause is None or not first else first
                if pause is not None:
                    refused += 1
                    assert pause <= max(0.05, now() - first) + 0.001
        assert refused >= 3


@each_kind
@pytest.mark.parametrize("ttl", [10.0, 30.0])
@virtual
async def test_a_long_body_is_asked_for_seldom(on: Nodes, kind: str, ttl: float) -> None:
    """A caller that does what the errors say sends few requests, and comes soon after the end."""
    async with on.connect(ttl=10, max_ttl=30) as holder, on.connect(ttl=ttl, max_ttl=30) as one:
        calls, wish = 0, KINDS[kind](one)
        held = await held_by(kind, holder).acquire()
        ends = now() + 8.0
        asyncio.get_running_loop().call_at(ends, lambda: start(held.release()))
        while (pause := await advice(wish, 0.005)) is not None:
            calls += 1
            await asyncio.sleep(pause)
        assert calls < 25
        assert now() < ends + 8.0


@each_kind
@virtual
async def test_the_time_of_a_wait_counts(on: Nodes, kind: str) -> None:
    async with on.connect() as holder, held_by(kind, holder):
        chance(on.locks, lambda: 0.0)
        assert await advice(KINDS[kind](on.locks), 0.5) == pytest.approx(0.5, abs=0.02)


@virtual
async def test_the_rank_in_the_queue_counts(on: Nodes) -> None:
    """A process that never held the name learns the pace of the queue while it waits in it."""
    async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as others:
        for _ in range(8):
            locks = await stack.enter_async_context(on.connect(turn=0.01))
            await others.enter_async_context(looping(locks.lock("a"), 0.3))
        await asyncio.sleep(0.1)
        started = now()
        chance(on.locks, lambda: 0.5)
        pause = await advice(on.locks.lock("a"), 1.5)
        assert now() == pytest.approx(started + 1.5, abs=0.01)
    # Of the eight before us, three or four are left at the last look, and each needs 0.3 s.
    assert pause is not None
    assert 3 * 0.3 / 2 < pause < 6 * 0.3


@virtual
async def test_tasks_of_one_process_are_told_how_long_bodies_last(on: Nodes) -> None:
    """The nodes are not asked for that."""
    wish = on.locks.lock("a", timeout=0.05)
    async with looping(on.locks.lock("a"), 2.0):
        await asyncio.sleep(0.5)
        pauses = [await advice(wish, 0.05) for _ in range(8)]
        assert all(pause is not None and 0.25 < pause < 1.0 for pause in pauses), "as it has lasted"
        assert len(set(pauses)) == 8, "drawn at random"
        await asyncio.sleep(2.0)  # the first body has ended
        pause = await advice(wish, 0.05)
    assert pause is not None
    assert 1.0 < pause <= 2.0


@virtual
async def test_more_waiters_of_one_process_come_back_later(on: Nodes) -> None:
    async with looping(on.locks.lock("a"), 1.0):
        await asyncio.sleep(0.5)
        waiting = [start(on.locks.lock("a").acquire()) for _ in range(9)]
        await until(lambda: on.locks.statistics().waiting == 9)
        pause = await advice(on.locks.lock("a"), 0.1)
        await call_off(*waiting)
    assert pause is not None
    assert 10 * 0.6 / 2 <= pause <= 10 * 0.61


@virtual
async def test_a_loss_is_no_hold(on: Nodes) -> None:
    """The time until a loss says nothing of how long others hold the name."""
    async with on.connect() as holder:
        held = await holder.lock("a").acquire()
        assert await advice(on.locks.lock("a"), 0.005)
        assert await advice(holder.lock("a"), 0.005)
        await asyncio.sleep(5)
        await on.command("DEL", "asynclock:a")
        await held.wait_lost()
        async with on.locks.lock("a"):
            pause = await advice(holder.lock("a"), 0.005)
    assert pause is not None
    assert pause < 1.0


@virtual
async def test_an_upgrade_in_vain_says_when_to_come_back(on: Nodes) -> None:
    first, second = on.locks.rwlock("a"), on.locks.rwlock("a")
    async with first.read() as one, second.read() as other:
        waiting = start(first.upgrade(one))
        await asyncio.sleep(1.0)
        with pytest.raises(asynclock.NotAcquiredError) as caught:
            await second.upgrade(other, timeout=1.0)
        assert 0 < caught.value.retry_after < 2.0
        await other.release()
        await (await waiting).release()
