"""What a task of the process leaves to the next one, and what it finds at odd keys."""

from __future__ import annotations

import asyncio
import gc

import pytest

import asynclock
from tests.engine.virtual_nodes import KEY, Nodes, virtual


@virtual
async def test_a_lease_that_was_dropped_is_held_by_nobody(on: Nodes) -> None:
    lease = [await on.locks.lock("a").acquire()]
    assert on.locks.statistics().held == 1
    with pytest.warns(ResourceWarning, match="dropped"):
        lease.clear()
        gc.collect()
        await asyncio.sleep(0)
    assert on.locks.statistics().held == 0


@virtual
async def test_a_key_of_others_need_not_be_text(on: Nodes) -> None:
    for node in on.nodes:
        await node.command("SET", KEY, b"\xff\xfe", "PX", 3000)
    assert await on.locks.lock("a").try_acquire() is None
    with pytest.raises(asynclock.AcquireTimeoutError):
        await on.locks.lock("a").acquire(timeout=1)
    async with on.locks.lock("a"):
        pass
