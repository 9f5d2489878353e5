"""A manager that is closed while tasks of it are about to win leaves no lease and no key."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock.testing import LocalServer, until
from tests import patient


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", range(8))
async def test_closed_in_any_step_of_an_acquire(
    asynclock_nodes: list[LocalServer], n: int, steps: int
) -> None:
    nodes = asynclock_nodes[:n]
    locks = patient.connect(*(node.url for node in nodes), restart_guard=False, ttl=60)
    async with locks.lock("warm"):
        pass
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
