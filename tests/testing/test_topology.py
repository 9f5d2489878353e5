"""Deployments are ready when they say so, and a failover is one."""

import asyncio
from typing import Any

import pytest

import asynclock.testing
from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing import LocalServer, Quorum, RedisCluster, SentinelGroup, Single

# Failovers wait for timeouts on purpose long enough for a busy machine.
pytestmark = pytest.mark.timeout(120)


def test_the_public_names_are_there():
    for name in asynclock.testing.__all__:
        assert getattr(asynclock.testing, name).__doc__
    assert dir(asynclock.testing) == asynclock.testing.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        asynclock.testing.nonsense  # noqa: B018 - the access is the test


async def role(server: LocalServer) -> str:
    return (await server.command("ROLE"))[0]


async def test_single_and_quorum():
    async with Single() as single, Quorum(3) as quorum:
        assert single.addresses == [single.servers[0].url]
        assert len(set(quorum.addresses)) == 3
        with pytest.raises(UnsupportedDeploymentError, match="Single"):
            await single.fail_over()
        await quorum.servers[0].kill()
        await quorum.servers[1].freeze()
        await quorum.repair()
        assert [await role(server) for server in quorum.servers] == ["master"] * 3


async def primary_of(sentinel: LocalServer, service: str) -> int:
    address = await sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    return int(address[1])


async def test_sentinels_know_everything_when_ready():
    settings: Any = {"service": "orders", "down_after": 10.0}
    async with SentinelGroup(replicas=2, sentinels=3, **settings) as group:
        ports = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        assert group.addresses == [f"redis+sentinel://{ports}/orders"]
        for sentinel in group.sentinels:
            assert await primary_of(sentinel, "orders") == group.primary.port
            assert len(await sentinel.command("SENTINEL", "SENTINELS", "orders")) == 2
            assert len(await sentinel.command("SENTINEL", "REPLICAS", "orders")) == 2
            assert "3 usable" in await sentinel.command("SENTINEL", "CKQUORUM", "orders")
            words = await sentinel.command("SENTINEL", "MASTER", "orders")
            told = dict(zip(words[::2], words[1::2], strict=True))
            wanted = {"quorum": "2", "down-after-milliseconds": "10000", "parallel-syncs": "3"}
            assert wanted.items() <= told.items()
            assert told["failover-timeout"] == "4000"


async def test_a_cluster_is_not_ready_while_it_moves_slots_and_a_repair_calls_that_off():
    async with RedisCluster(primaries=3, replicas=0) as cluster:
        source, target = marked = cluster.servers[:2]
        names = [await node.command("CLUSTER", "MYID") for node in marked]
        await target.command("CLUSTER", "SETSLOT", 7, "IMPORTING", names[0])
        await source.command("CLUSTER", "SETSLOT", 7, "MIGRATING", names[1])
        waiting = asyncio.ensure_future(cluster.ready())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await cluster.repair()
        await waiting


async def test_nothing_is_left_of_a_deployment():
    async with SentinelGroup(replicas=1) as group:
        await group.primary.freeze()
        await group.sentinels[0].freeze()
    assert not any(server.alive for server in [*group.servers, *group.sentinels])
