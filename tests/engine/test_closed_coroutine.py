"""A coroutine that is closed, as one is whose task was dropped, leaves its place and its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing import until as found
from tests.waiting import until

LOCKS: dict[str, Callable[[asynclock.LockManager], Any]] = {
    "lock": lambda locks: locks.lock("a"),
    "reentrant": lambda locks: locks.reentrant_lock("a"),
    "multi": lambda locks: locks.multi_lock("a", "b"),
    "name by name": lambda locks: locks.multi_lock("a", "b"),
}


def connect(nodes: list[LocalServer], kind: str = "", **settings: Any) -> asynclock.LockManager:
    if kind == "name by name":  # as on Cluster
        settings["prefix"] = "asynclock:{"
    return asynclock.connect(*(node.url for node in nodes), restart_guard=False, ttl=60, **settings)


async def nothing_left(locks: asynclock.LockManager, nodes: list[LocalServer]) -> None:
    async def free() -> bool:
        keys = [key for node in nodes for key in await node.command("KEYS", "*")]
        return all(key.endswith(":#fence") for key in keys)

    await found(free, "no key is left")
    assert locks.leases() == ()
    assert locks.statistics().waiting == 0
    assert locks._engine.queues == {}


@pytest.mark.parametrize("kind", LOCKS)
@pytest.mark.parametrize("given", [False, True])
async def test_closed_while_it_waits_in_the_local_queue(
    asynclock_nodes: list[LocalServer], kind: str, given: bool
) -> None:
    """`given`: it was its turn already, but the coroutine had not run since."""
    async with connect(asynclock_nodes, kind) as locks:
        holder = await asyncio.create_task(LOCKS[kind](locks).acquire())
        waiting = LOCKS[kind](locks).acquire(timeout=50)
        waiting.send(None)
        next_one = asyncio.create_task(LOCKS[kind](locks).acquire(timeout=10))
        await until(lambda: locks.statistics().waiting == 2, "both wait")
        if given:
            await holder.release()
        waiting.close()
        if not given:
            await holder.release()
        lease = await next_one
        assert lease.held
        await lease.release()
        await nothing_left(locks, asynclock_nodes)


@pytest.mark.parametrize("kind", LOCKS)
async def test_closed_in_any_step(asynclock_nodes: list[LocalServer], kind: str) -> None:
    async with connect(asynclock_nodes, kind) as locks:
        async with locks.lock("warm"):
            pass

        async def body() -> None:
            async with LOCKS[kind](locks):
                await asyncio.sleep(0)

        for steps in range(1, 12):
            coroutine = body()
            try:
                for _ in range(steps):
                    awaited = coroutine.send(None)
                    if awaited is not None:
                        awaited._asyncio_future_blocking = False
                        await asyncio.wait([awaited])
            except StopIteration:
                break
            coroutine.close()
            await nothing_left(locks, asynclock_nodes)
        else:
            pytest.fail("the body never ends")
        await nothing_left(locks, asynclock_nodes)
