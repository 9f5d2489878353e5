"""The record of the set where a node is a primary with replicas, or a group behind Sentinels."""

from functools import partial
from typing import Any

import pytest

import asynclock
from asynclock.fleet import Fleet
from asynclock.testing import Replicated, SentinelGroup
from asynclock.testing.plugin import StartServers
from tests.conftest import Connect
from tests.waiting import until

KEY = "asynclock::#set"
SETTINGS: dict[str, Any] = {"ttl": 60, "max_ttl": 60, "node_timeout": 5, "restart_guard": False}


async def refused(locks: asynclock.LockManager) -> None:
    with pytest.raises(asynclock.ConfigurationError, match="the fleet uses"):
        await locks.lock("x").acquire(timeout=30)


async def works(locks: asynclock.LockManager) -> None:
    async with locks.lock("x", timeout=30) as lease:
        assert lease.held


async def test_a_group_behind_sentinels_is_one_node_of_the_set(
    service: SentinelGroup, asynclock_servers: StartServers, connecting: Connect
) -> None:
    """Whichever of its servers is the primary, and whichever Sentinels a client names."""
    (group,) = service.addresses
    others = [server.url for server in await asynclock_servers(2)]
    async with Fleet(group, *others, **SETTINGS) as fleet:
        state = await fleet.record()
    assert state.record is not None
    assert len(state.record.nodes) == 3
    assert any(name.startswith("mymaster@") for name in state.record.nodes)
    await works(connecting(group, *others, **SETTINGS))
    sentinel = service.sentinels[0]
    await works(
        connecting(
            f"redis+sentinel://{sentinel.host}:{sentinel.port}/mymaster", *others, **SETTINGS
        )
    )
    await refused(connecting(group, **SETTINGS))
    for server in service.servers:
        await until(partial(server.command, "HGET", KEY, "value"), "it has the record")
    await service.fail_over()
    await refused(connecting(group, **SETTINGS))
    await works(connecting(group, *others, **SETTINGS))


async def test_a_primary_whose_replicas_acknowledge_is_one_node_of_the_set(
    group: Replicated, asynclock_servers: StartServers, connecting: Connect
) -> None:
    """A client with `acks` compares its nodes like any other."""
    (primary,) = group.addresses
    others = [server.url for server in await asynclock_servers(2)]
    async with Fleet(primary, acks=1, **SETTINGS) as fleet:
        state = await fleet.record()
    assert state.record is not None
    assert len(state.record.nodes) == 1
    await works(connecting(primary, acks=1, **SETTINGS))
    await refused(connecting(primary, *others, **SETTINGS))
    async with Fleet(primary, acks=1, **SETTINGS) as fleet:
        with pytest.raises(asynclock.ConfigurationError, match="acks=1 needs 1 replica"):
            await fleet.add(others[0])
