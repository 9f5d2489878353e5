"""When a node that does not know its name counts as a stranger, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory import MemoryEndpoint
from tests.engine.virtual_nodes import TTL, Way
from tests.guards.test_set_compared import recorded, said
from tests.guards.test_set_in_time import SETTINGS, TRIP
from tests.waiting import in_virtual_time


@in_virtual_time
async def test_a_client_is_not_refused_before_it_has_met_the_node_that_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded()
    servers[0].restart(keep_data=False)
    tunnel: Any = MemoryEndpoint("tunnel", servers[0], Way())
    nodes[2]._route.seconds = 3 * TRIP
    async with asynclock.connect(tunnel, *nodes[1:], **SETTINGS) as locks:
        async with locks.lock("x", timeout=5):
            assert [node.state for node in locks.nodes()] == ["quarantined", "up", "up"]
    assert said(caplog, logging.ERROR) == []


@in_virtual_time
async def test_a_node_that_is_away_is_compared_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its address may lead to the right node again."""
    servers, nodes = await recorded()
    servers[2].restart(keep_data=False)
    tunnel: Any = MemoryEndpoint("tunnel", servers[2], Way())
    async with asynclock.connect(*nodes[:2], tunnel, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(2)
        servers[2].kill()
        for _ in range(2):
            await asyncio.sleep(TTL)
            async with locks.lock("x", timeout=5):
                pass
        servers[2].restart(keep_data=False)
        async with asynclock.connect(*nodes, **SETTINGS) as other:  # it tells the node its name
            await other.ready()
        await asyncio.sleep(2 * TTL)
        assert [node.state for node in locks.nodes()] == ["up"] * 3
    assert said(caplog, logging.ERROR) == []


@in_virtual_time
async def test_nodes_that_came_back_empty_at_their_own_addresses_are_no_strangers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers, nodes = await recorded()
    for server in servers[:2]:
        server.restart(keep_data=False)
    async with asynclock.connect(*nodes, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(1)
        states = [node.state for node in locks.nodes()]
        assert states == ["quarantined", "quarantined", "up"]
    assert said(caplog, logging.ERROR) == []
