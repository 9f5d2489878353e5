"""A request that outlives its connection: executed by the server after its sender gave it up."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing._wire import Route
from asynclock.testing.memory import MemoryEndpoint, MemoryNode

LATE = 0.4
NODE_TIMEOUT = 0.1


class Detour(Route):
    """Takes as long as it is told to."""

    seconds = 0.0

    def delay(self) -> float:
        return self.seconds


async def test_a_lease_released_before_its_own_request_arrives_leaves_no_key() -> None:
    """Won by the others' votes, released on the next connection; then the old one delivers."""
    nodes = [MemoryNode(name) for name in "abc"]
    detour = Detour()
    endpoints = [MemoryEndpoint(node.name, node, detour) for node in nodes[:1]]
    endpoints += [MemoryEndpoint(node.name, node) for node in nodes[1:]]
    settings = {"ttl": 60.0, "max_ttl": 60.0, "node_timeout": NODE_TIMEOUT, "restart_guard": False}
    async with asynclock.connect(*endpoints, **settings) as locks:  # type: ignore[arg-type]
        async with locks.lock("warm"):
            pass
        node = locks._engine.multiplexer.nodes[0]
        broken = node.link
        detour.seconds = LATE
        lease = await locks.lock("a").acquire()
        detour.seconds = 0.0
        nodes[0].cut()
        async with asyncio.timeout(20):
            while node.link is None or node.link is broken:
                await asyncio.sleep(0.001)
            await lease.release()
            while nodes[0].keys.get(b"asynclock:a:fence") is None:
                await asyncio.sleep(0.01)
            while nodes[0].keys.get(b"asynclock:a") is not None:
                await asyncio.sleep(0.01)
