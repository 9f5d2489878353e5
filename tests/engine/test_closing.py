"""A manager that is closed while tasks of it are about to win leaves no lease and no key."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer, until
from tests import patient
from tests.engine.kinds import kinds
from tests.tables.inside import now
from tests.waiting import go_through, in_virtual_time


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", range(8))
async def test_closed_in_any_step_of_an_acquire(
    asynclock_nodes: list[LocalServer], n: int, steps: int
) -> None:
    nodes = asynclock_nodes[:n]
    locks = patient.connect(*(node.url for node in nodes), restart_guard=False, ttl=60)
    await go_through(locks.lock("warm"))
    leases: list[asynclock.Lease] = []

    async def acquire() -> None:
        leases.append(await locks.lock("a").acquire())

    task = asyncio.create_task(acquire())
    for _ in range(steps):
        await asyncio.sleep(0)
    await locks.aclose()
    try:
        await asyncio.wait_for(task, 10)
    except asynclock.ConfigurationError:
        assert not leases
    assert not any(lease.held for lease in leases)

    async def free() -> bool:
        return not any([await node.command("EXISTS", "asynclock:a") for node in nodes])

    await until(free, "the key is gone")


WAITED_FOR = kinds("strict", "reentrant_lock", "one of two", "several")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", WAITED_FOR)
@in_virtual_time
async def test_closing_wakes_all_who_wait(kind: str, n: int) -> None:
    urls = [f"memory://closing-{kind}-{n}-{number}" for number in range(n)]
    async with asynclock.connect(*urls) as ours:
        theirs = asynclock.connect(*urls)
        await theirs.ready(voting=True)
        async with WAITED_FOR["write" if kind == "read" else kind](ours):
            waiting = asyncio.ensure_future(WAITED_FOR[kind](theirs).acquire())
            await asyncio.sleep(1.05)
            await theirs.aclose()
            closed = now()
            with pytest.raises(asynclock.ConfigurationError):
                await waiting
            assert now() - closed < 0.1


HELD = kinds("strict", "one of two", election=lambda locks: locks.election("a").campaign())


async def hold(locks: asynclock.LockManager, kind: str) -> AsyncIterator[Any]:
    async with HELD[kind](locks) as held:
        yield held


@pytest.mark.parametrize("kind", HELD)
@in_virtual_time
async def test_a_task_that_closes_the_manager_goes_on(kind: str) -> None:
    """The task left a generator inside a lock, so its own lease ends with the manager."""
    async with asynclock.connect(f"memory://own-{kind}") as locks:
        async for _held in (kept := hold(locks, kind)):
            break
    await asyncio.sleep(1)
    assert not _held.held
    await kept.aclose()


@pytest.mark.parametrize("kind", HELD)
@in_virtual_time
async def test_the_exit_tells_a_task_that_closed_the_manager_of_the_loss(kind: str) -> None:
    locks, done = asynclock.connect(f"memory://stack-{kind}"), False
    with pytest.raises(asynclock.LeaseLostError):
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(HELD[kind](locks))
            await locks.aclose()
            await asyncio.sleep(1)
            done = True
    assert done


@pytest.mark.parametrize("kind", HELD)
@in_virtual_time
async def test_a_close_interrupts_the_bodies_of_other_tasks(kind: str) -> None:
    locks, entered = asynclock.connect(f"memory://other-{kind}"), asyncio.Event()

    async def body() -> None:
        async with HELD[kind](locks):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await entered.wait()
    await locks.aclose()
    with pytest.raises(asynclock.LeaseLostError):
        await task
