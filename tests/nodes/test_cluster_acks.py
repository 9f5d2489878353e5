"""Primaries of a Cluster that may be replaced, and their replicas. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock._nodes.watched import CONFIRMED
from asynclock.testing.memory.keyspace import ReplyError
from tests.nodes.virtual_servers import ClusterServer, VirtualCluster, connect, name_on, node_of
from tests.waiting import in_virtual_time, until

NAME = name_on(0)


def acknowledge(cluster: VirtualCluster, count: int) -> None:
    for server in (*cluster.servers, cluster.spare):
        server.instead[b"WAIT"] = lambda _words: count


def with_replicas(cluster: VirtualCluster, *replicas: ClusterServer) -> None:
    """Let the view of all servers show other replicas of the first primary."""
    (first, last, servers), *others = cluster.shards
    cluster.tell([(first, last, [servers[0], *replicas]), *others])


@in_virtual_time
async def test_the_replicas_that_the_view_shows_must_acknowledge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch, replicas=2)
    primary, (one, two) = cluster.primaries[0], cluster.replicas[0]
    acknowledge(cluster, 2)

    async def waits_for(count: str) -> bool:
        primary.asked.clear()
        async with locks.lock(NAME):
            return primary.asked_for("WAIT")[0][1] == count.encode()

    async with connect(cluster, acks="all") as locks:
        assert await waits_for("2")
        with_replicas(cluster, one)
        await until(lambda: waits_for("1"), "one has gone", timeout=2)
        with_replicas(cluster, one, two)
        await until(lambda: waits_for("2"), "it is back", timeout=2)
        acknowledge(cluster, 1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="1 of 2 replicas acknowledged"):
            await locks.lock(NAME).try_acquire()


@in_virtual_time
async def test_replicas_that_any_primary_had_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a failover, the new primary has fewer."""
    cluster = VirtualCluster(monkeypatch, replicas=1)
    acknowledge(cluster, 1)
    heir = cluster.replicas[0][0]
    async with connect(cluster, acks=1) as locks:
        async with locks.lock(NAME):
            pass
        shards = [(first, last, servers[:1]) for first, last, servers in cluster.shards]
        shards[0] = (shards[0][0], shards[0][1], [heir])
        acknowledge(cluster, 0)
        cluster.tell(shards, epoch=2)
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await locks.lock(NAME).acquire(timeout=5)


@in_virtual_time
async def test_a_cluster_without_replicas_can_acknowledge_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connect(VirtualCluster(monkeypatch), acks=1) as locks:
        with pytest.raises(asynclock.ConfigurationError, match="needs 1 replica, and it has none"):
            await locks.lock(NAME).acquire(timeout=5)


@in_virtual_time
async def test_a_primary_that_was_demoted_is_replaced_soon_and_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.primaries[0].info["role"] = "slave"
    async with connect(cluster) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match="c0:7000: it is a replica"):
            await locks.lock(NAME).acquire(timeout=2)
        async with locks.lock(name_on(1)):
            pass


@in_virtual_time
async def test_a_grant_that_is_told_after_the_confirmation_has_ended_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By then another server may be the primary."""
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, node_timeout=8.0, ttl=60, max_ttl=60) as locks:
        async with locks.lock(NAME):
            pass
        assert {shard.trust.facts.lag for shard in node_of(locks).shards if shard.trust.facts} == {
            CONFIRMED
        }
        for server in cluster.servers:
            server.instead[b"CLUSTER"] = lambda _words: ReplyError("ERR not now")
        cluster.primaries[0].way.seconds = CONFIRMED
        with pytest.raises(asynclock.QuorumUnavailableError, match="not confirmed"):
            await locks.lock(NAME).try_acquire()


@pytest.mark.parametrize("why", ["dead", "not confirmed"])
@in_virtual_time
async def test_while_a_primary_may_have_been_replaced_the_view_is_read_often(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    cluster = VirtualCluster(monkeypatch)
    old, watcher, other = cluster.primaries
    async with connect(cluster) as locks:
        async with locks.lock(NAME):
            pass
        await asyncio.sleep(3)
        if why == "dead":
            old.kill()
        else:
            for server in (watcher, other):
                cluster.tell(cluster.replaced(old, cluster.spare), to=[server])
        before = len(watcher.asked_for("CLUSTER", "SLOTS"))
        await asyncio.sleep(3)
        assert len(watcher.asked_for("CLUSTER", "SLOTS")) - before >= 6


@in_virtual_time
async def test_a_dead_primary_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view may soon name another one."""
    cluster = VirtualCluster(monkeypatch)
    frozen = cluster.primaries[0]
    frozen.freeze()
    opened, reach = 0, frozen.open

    async def counting(*args: Any) -> Any:
        nonlocal opened
        opened += 1
        return await reach(*args)

    monkeypatch.setattr(frozen, "open", counting)
    async with connect(cluster, node_timeout=0.25) as locks:
        await asyncio.sleep(20)
        before = opened
        await asyncio.sleep(10)
        # As a source, it is dialled for two seconds each time.
        assert opened - before >= 14
        assert "c0:7000: no answer to the login within 0.5 s" in locks.nodes()[0].cause
