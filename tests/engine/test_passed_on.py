"""What a task of the process leaves to the next one, and what it finds at odd keys."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

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


async def test_what_another_thread_wants_done_wakes_an_idle_loop() -> None:
    """As when a garbage collection there drops a call."""
    done = asyncio.Event()
    slow = {"node_timeout": 60.0, "ttl": 1000.0, "max_ttl": 1000.0}  # so that no timer wakes it
    async with asynclock.connect("memory://idle", **slow) as locks:
        async with locks.lock("a"):
            pass
        thread = threading.Timer(0.1, locks._engine.soon, [done.set])
        thread.start()
        began = time.monotonic()
        await asyncio.wait_for(done.wait(), 30)
        assert time.monotonic() - began < 20
        thread.join()
