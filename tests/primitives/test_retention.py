"""Counters of unused names expire, and the fences of these names rise all the same."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asynclock
from asynclock._rules.validity import LARGEST_STEP, fence_retention
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.engine.virtual_nodes import TTL, Nodes, Way, virtual
from tests.waiting import in_virtual_time

KEPT = fence_retention(TTL)


async def left(node: MemoryNode, counter: str = "a:#fence") -> float:
    """Return the seconds for which the node keeps a counter; negative if there is none."""
    return float(await node.command("PTTL", f"asynclock:{counter}")) / 1000


Acquire = Callable[[asynclock.LockManager], Awaitable[Any]]
KINDS: dict[str, tuple[str, Acquire]] = {
    "lock": ("a:#fence", lambda locks: locks.lock("a").acquire()),
    "multi": ("b:#fence", lambda locks: locks.multi_lock("a", "b").acquire()),
    "slot": ("a:#0:#fence", lambda locks: locks.semaphore("a", 1).acquire()),
    "read": ("a:#write:#fence", lambda locks: locks.rwlock("a").read().acquire()),
    "write": ("a:#write:#fence", lambda locks: locks.rwlock("a").write().acquire()),
    "fair": ("a:#fair:#fence", lambda locks: locks.fair_lock("a").acquire()),
}


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_counter_outlives_the_last_use_by_the_retention(on: Nodes, kind: str) -> None:
    """Each renewal counts as use: a lease may be held for longer than that."""
    counter, acquire = KINDS[kind]
    node = on.nodes[0]
    lease = await acquire(on.locks)
    assert await left(node, counter) == pytest.approx(KEPT, abs=0.1)
    await node.command("PEXPIRE", f"asynclock:{counter}", 5000)
    await lease.extend()
    assert await left(node, counter) == pytest.approx(KEPT, abs=0.1)
    await lease.release()
    await asyncio.sleep(KEPT - 1)
    assert await left(node, counter) == pytest.approx(1, abs=0.1)
    await (await acquire(on.locks)).release()
    assert await left(node, counter) == pytest.approx(KEPT, abs=0.1)


@virtual
async def test_a_setting_decides(on: Nodes) -> None:
    async with on.connect(fence_retention=100) as locks, locks.lock("a") as lease:
        await lease.extend()
        assert await left(on.nodes[0]) == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize("back", [0.0, LARGEST_STEP, KEPT + 2])
@in_virtual_time
async def test_fences_rise_unless_a_clock_falls_by_more_than_the_retention(back: float) -> None:
    node = MemoryNode("a")
    async with asynclock.connect(endpoint(node)) as locks, locks.lock("a") as first:
        pass
    await asyncio.sleep(KEPT + 1)
    assert await left(node) < 0, "the counter has expired"
    node.jump_clock(-back)
    async with asynclock.connect(endpoint(node)) as locks, locks.lock("a") as second:
        assert (second.fence > first.fence) is (back <= LARGEST_STEP)


def endpoint(node: MemoryNode) -> Any:
    """The node as an argument of `connect`."""
    return MemoryEndpoint(node.name, node, Way())
