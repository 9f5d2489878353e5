"""What a node in quarantine may say about a lease that is held already."""

import asyncio
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import KEY, old
from tests.waiting import go_through, in_virtual_time

# Nothing else may be sent after a flush: it would push the delayed request on.
SETTINGS: dict[str, Any] = {"ttl": 30, "max_ttl": 30, "node_timeout": 0.25, "set_guard": False}


@in_virtual_time
async def test_a_node_that_forgot_extends_only_what_it_had_granted_before() -> None:
    """Its flush may have freed another's key, in whose place a late request set ours."""
    on = old("abc")
    nodes = on.nodes
    async with on.connect(**SETTINGS) as locks:
        await go_through(locks.lock("warm"))
        on.ways[0].seconds = 0.2  # the flush comes first
        lease = await locks.lock("a").acquire()
        on.ways[0].seconds = 0.0
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
    on = old("abc")
    async with on.connect(**SETTINGS) as locks, locks.lock("a") as lease:
        for number, node in enumerate(on.nodes):
            node.jump_clock(-5.0 - number)
        await lease.extend()
        assert {node.state for node in locks.nodes()} == {"quarantined"}
        await lease.extend()
        assert lease.held
