"""Keys that a broken connection leaves on a server must not wait for the end of their ttl there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing._wire import Route
from asynclock.testing.memory import MemoryEndpoint, MemoryNode

LATE = 0.4
NODE_TIMEOUT = 0.1
KEY = b"asynclock:a"


class Detour(Route):
    """Takes as long as it is told to."""

    seconds = 0.0

    def delay(self) -> float:
        return self.seconds


def endpoints(nodes: list[MemoryNode], detour: Detour) -> list[Any]:
    """The first node is reached by the detour."""
    routes = [detour, Route(), Route()]
    return [
        MemoryEndpoint(node.name, node, route) for node, route in zip(nodes, routes, strict=True)
    ]


def connect(nodes: list[MemoryNode], detour: Detour, ttl: float) -> asynclock.LockManager:
    return asynclock.connect(
        *endpoints(nodes, detour),
        ttl=ttl,
        max_ttl=60,
        node_timeout=NODE_TIMEOUT,
        restart_guard=False,
    )


@pytest.fixture
def nodes() -> list[MemoryNode]:
    return [MemoryNode(name) for name in "abc"]


async def vanishes(node: MemoryNode) -> None:
    while node.keys.get(KEY) is not None:
        await asyncio.sleep(0.01)


async def test_a_lease_released_before_its_own_request_arrives_leaves_no_key(
    nodes: list[MemoryNode],
) -> None:
    """Won by the others' votes, released on the next connection; then the old one delivers."""
    detour = Detour()
    async with asyncio.timeout(20), connect(nodes, detour, ttl=60) as locks:
        async with locks.lock("warm"):
            pass
        node = locks._engine.multiplexer.nodes[0]
        broken = node.link
        detour.seconds = LATE
        lease = await locks.lock("a").acquire()
        detour.seconds = 0.0
        nodes[0].cut()
        while node.link is None or node.link is broken:
            await asyncio.sleep(0.001)
        await lease.release()
        while nodes[0].keys.get(KEY + b":fence") is None:
            await asyncio.sleep(0.01)
        await vanishes(nodes[0])


async def test_a_release_is_owed_for_longer_to_a_node_whose_clock_was_set_back(
    nodes: list[MemoryNode],
) -> None:
    """It comes back when the lease would have ended by every other clock, not by its own."""
    async with asyncio.timeout(20), connect(nodes, Detour(), ttl=0.5) as locks:
        lease = await locks.lock("a").acquire()
        assert nodes[0].keys.get(KEY) is not None
        nodes[0].freeze()
        nodes[0].jump_clock(-3600)
        await lease.release()
        await asyncio.sleep(0.6)
        nodes[0].restart(keep_data=True)
        assert nodes[0].keys.get(KEY) is not None
        await vanishes(nodes[0])
