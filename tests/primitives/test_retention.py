"""Counters of unused names expire, and the fences of these names rise all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asynclock
from asynclock._primitives import lock, readwrite
from asynclock._rules.retention import FLOOR_BEHIND, LARGEST_STEP, fence_retention, least_retention
from asynclock._rules.validity import quarantine
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.engine.virtual_nodes import COUNTER, KEY, TTL, Nodes, Way, virtual

KEPT = fence_retention(TTL)
US = 1_000_000


def test_the_sum() -> None:
    assert quarantine(10) + FLOOR_BEHIND + LARGEST_STEP == KEPT < 18 * 60
    assert least_retention(10) == quarantine(10) + FLOOR_BEHIND


def test_a_retention_that_is_too_short_is_refused() -> None:
    asynclock.connect("redis://localhost", fence_retention=71)
    with pytest.raises(asynclock.ConfigurationError, match="at least 70"):
        asynclock.connect("redis://localhost", fence_retention=70)
    with pytest.raises(asynclock.ConfigurationError, match="must outlive its lease"):
        asynclock.connect("redis://localhost", fence_retention=71, max_ttl=60)


async def left(node: MemoryNode) -> float:
    """Return the seconds for which the node keeps the counter; negative if there is none."""
    return float(await node.command("PTTL", COUNTER)) / 1000


@virtual
async def test_a_counter_outlives_the_last_use_by_the_retention(on: Nodes) -> None:
    async with on.locks.lock("a"):
        pass
    assert await left(on.nodes[0]) == pytest.approx(KEPT, abs=0.1)
    await asyncio.sleep(KEPT - 1)
    assert await left(on.nodes[0]) == pytest.approx(1, abs=0.1)
    async with on.locks.lock("a"):
        assert await left(on.nodes[0]) == pytest.approx(KEPT, abs=0.1)


@virtual
async def test_a_setting_decides(on: Nodes) -> None:
    async with on.connect(fence_retention=100) as locks, locks.lock("a") as lease:
        await lease.extend()
        assert await left(on.nodes[0]) == pytest.approx(100, abs=0.1)


QUEUE = KEY + b":#queue"
AHEAD = 500.0
"""Seconds that a counter is ahead of the node's clock."""


async def take(node: MemoryNode, owner: str, floor: int = 0) -> int:
    """Acquire on one node, with a floor; return the fence."""
    source = lock.SCRIPT.source
    words = ("acquire", owner, 5000, floor, 0, int(KEPT * 1000))
    reply = await node.command("EVAL", source, 3, KEY, COUNTER, QUEUE, *words)
    return int(reply[1])


async def raised(node: MemoryNode) -> None:
    """Put a counter ahead of the clock, by a write-back from a node whose clock is ahead."""
    fence = int((node.wall() + AHEAD) * US)
    source = lock.SCRIPT.source
    await take(node, "x")
    await node.command("EVAL", source, 2, KEY, COUNTER, "raise", "x", fence, int(KEPT * 1000))


async def extended(node: MemoryNode) -> None:
    """The same, and then a renewal."""
    await raised(node)
    source = lock.SCRIPT.source
    await node.command("EVAL", source, 2, KEY, COUNTER, "extend", 5000, int(KEPT * 1000), "x")


async def taken(node: MemoryNode) -> None:
    """The same, and then another acquire."""
    await raised(node)
    await node.command("DEL", KEY)
    await take(node, "y")


@pytest.mark.parametrize("write", [raised, extended, taken])
def test_a_counter_ahead_of_the_clock_stays_until_the_clock_is_past_it(
    write: Callable[[MemoryNode], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        node = MemoryNode("a")
        await write(node)
        assert await left(node) == pytest.approx(KEPT + AHEAD, abs=0.1)

    run_virtual(scenario())


@virtual
async def test_a_counter_from_a_floor_ahead_of_the_clock_stays_for_longer(on: Nodes) -> None:
    """The floor of a client comes from the other nodes' clocks."""
    node = on.nodes[0]
    floor = int((node.wall() + 30) * US)
    assert await take(node, "x", floor) == floor
    assert await left(node) == pytest.approx(KEPT + 30, abs=0.1)
    keys = ("asynclock:b:#write", COUNTER, "asynclock:b:#phases", "asynclock:b:#readers")
    words = ("acquire", "y", 5000, floor + 10, 0, int(KEPT * 1000))
    await node.command("DEL", COUNTER)
    reply = await node.command("EVAL", readwrite.WRITE.source, 4, *keys, *words)
    assert reply[1] == floor + 10, "by a writer"
    assert await left(node) == pytest.approx(KEPT + 30, abs=0.1)


def test_a_wrong_clock_keeps_a_counter_for_a_day_at_most() -> None:
    async def scenario() -> None:
        node = MemoryNode("a")
        await take(node, "x")
        fence = int((node.wall() + 10 * 86400) * US)
        words = ("raise", "x", fence, int(KEPT * 1000))
        await node.command("EVAL", lock.SCRIPT.source, 2, KEY, COUNTER, *words)
        assert await left(node) == pytest.approx(KEPT + 86400, abs=0.1)

    run_virtual(scenario())


@pytest.mark.parametrize("floor", [0, 1, 2**52], ids=["none", "behind", "ahead"])
def test_without_a_counter_a_wrong_floor_is_not_believed(floor: int) -> None:
    """Whatever the client says: the counter that has expired was further back."""

    async def scenario() -> None:
        node = MemoryNode("a")
        fence = await take(node, "x", floor)
        assert fence == pytest.approx((node.wall() - FLOOR_BEHIND) * US, abs=US)

    run_virtual(scenario())


@pytest.mark.parametrize("back", [0.0, LARGEST_STEP, KEPT + 2])
def test_fences_rise_unless_the_clock_was_set_back_by_more_than_the_retention(back: float) -> None:
    async def scenario() -> None:
        node = MemoryNode("a")
        async with asynclock.connect(endpoint(node)) as locks, locks.lock("a") as first:
            pass
        await asyncio.sleep(KEPT + 1)
        assert await left(node) < 0, "the counter has expired"
        node.jump_clock(-back)
        async with asynclock.connect(endpoint(node)) as locks, locks.lock("a") as second:
            assert (second.fence > first.fence) is (back <= LARGEST_STEP)

    run_virtual(scenario())


def endpoint(node: MemoryNode) -> Any:
    """The node as an argument of `connect`."""
    return MemoryEndpoint(node.name, node, Way())
