"""What a node in quarantine may say about a lease that is held already."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock.testing.memory import MemoryNode
from tests.nodes.test_late_acquires import Detour, endpoints
from tests.waiting import in_virtual_time

KEY = b"asynclock:a"


def seasoned() -> list[MemoryNode]:
    nodes = [MemoryNode(name) for name in "abc"]
    for node in nodes:
        node.born_ago(3600)
    return nodes


def connect(nodes: list[MemoryNode], detour: Detour) -> asynclock.LockManager:
    # Nothing else may be sent after a flush: it would push the delayed request on.
    return asynclock.connect(
        *endpoints(nodes, detour), ttl=30, max_ttl=30, node_timeout=0.25, set_guard=False
    )


@in_virtual_time
async def test_a_node_that_forgot_extends_only_what_it_had_granted_before() -> None:
    """Its flush may have freed another's key, in whose place a late request set ours."""
    nodes, detour = seasoned(), Detour()
    async with connect(nodes, detour) as locks:
        async with locks.lock("warm"):
            pass
        detour.seconds = 0.2  # the flush comes first
        lease = await locks.lock("a").acquire()
        detour.seconds = 0.0
        nodes[0].flush()
        while nodes[0].keys.get(KEY) is None:
            await asyncio.sleep(0.01)
        nodes[2].freeze()
        with pytest.raises(asynclock.QuorumUnavailableError) as raised:
            await lease.extend()
        assert "won without it" in raised.value.nodes["memory://a"]
        nodes[2].thaw()
        while locks.nodes()[2].state != "up":
            await asyncio.sleep(0.01)
        await lease.extend()
        await lease.release()


@in_virtual_time
async def test_a_node_whose_clock_jumped_extends_what_it_granted() -> None:
    """It does not vote, but it has kept the key: no lease is lost to a correction of a clock."""
    nodes = seasoned()
    async with connect(nodes, Detour()) as locks:
        async with locks.lock("a") as lease:
            for number, node in enumerate(nodes):
                node.jump_clock(-5.0 - number)
            await lease.extend()
            assert {node.state for node in locks.nodes()} == {"quarantined"}
            await lease.extend()
            assert lease.held
