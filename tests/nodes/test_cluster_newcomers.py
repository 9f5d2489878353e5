"""Servers that a Cluster gets and loses, and what is asked of them meanwhile. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock._nodes.endpoint import TLS, Endpoint
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.test_cluster_in_time import LONG, kept
from tests.nodes.test_cluster_redirects import met
from tests.nodes.virtual_servers import (
    VirtualCluster,
    connect,
    key_of,
    name_on,
    node_of,
    slot_of,
)
from tests.waiting import in_virtual_time, until

NAME = name_on(0)


def half_known(cluster: VirtualCluster) -> list[Any]:
    """Let one server alone name another primary of the first slots; return the new shards."""
    shards = cluster.replaced(cluster.primaries[0], cluster.spare)
    cluster.tell(shards, epoch=2, to=[cluster.primaries[1]])
    return shards


@in_virtual_time
async def test_a_new_primary_is_asked_once_most_others_confirm_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call waits for that: the majority of the servers may know it a moment later."""
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        shards = half_known(cluster)
        node_of(locks).look_again()
        await until(lambda: node_of(locks).shards[-1].address == "spare:7000")
        waiting = start(locks.lock(NAME).try_acquire())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        cluster.tell(shards, epoch=2)
        lease = await waiting
        assert lease is not None
        assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner


@in_virtual_time
async def test_a_primary_that_few_confirm_gets_no_mark_and_the_cause_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await met(locks)
        half_known(cluster)
        cause = "spare:7000: only 1 of 3 primaries confirm it as a primary"
        assert await seconds_until(lambda: locks.nodes()[0].cause == cause) < 2.5
        await asyncio.sleep(5)
        assert locks.nodes()[0].cause == cause
        assert await cluster.spare.command("KEYS", "*") == []
        with pytest.raises(asynclock.QuorumUnavailableError, match="only 1 of 3 primaries"):
            await locks.lock(NAME).try_acquire()


@in_virtual_time
async def test_a_new_primary_that_answers_no_tls_is_reported_like_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the first connection to it is being made, too."""
    cluster = VirtualCluster(monkeypatch)
    opens = Endpoint.open

    async def silent(self: Endpoint, make: Callable[[], Any]) -> Any:
        if self.host == "spare":
            self.phase = TLS
            await asyncio.sleep(100)
        return await opens(self, make)

    monkeypatch.setattr(Endpoint, "open", silent)
    async with connect(cluster) as locks:
        await met(locks)
        shards = half_known(cluster)
        node_of(locks).look_again()
        await until(lambda: node_of(locks).shards[-1].address == "spare:7000")
        asking = start(locks.lock(NAME).try_acquire())
        await asyncio.sleep(0.5)
        cluster.tell(shards, epoch=2)
        with pytest.raises(asynclock.QuorumUnavailableError, match="TLS handshake within 1 s"):
            await asking


@in_virtual_time
async def test_a_command_is_asked_at_a_server_that_the_next_view_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slot moves to a server that came into the Cluster a moment ago."""
    cluster = VirtualCluster(monkeypatch)
    source = cluster.primaries[0]
    async with connect(cluster) as locks:
        await met(locks)
        cluster.tell(cluster.moved(slot_of(name_on(1)), cluster.spare), epoch=2)
        source.odd[slot_of(NAME)] = f"ASK {slot_of(NAME)} spare:7000"
        lease = await locks.lock(NAME).try_acquire()
        assert lease is not None
        assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner


@in_virtual_time
async def test_the_newest_of_all_views_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that of the server in the first place, which was cut off and replaced."""
    cluster = VirtualCluster(monkeypatch)
    first, *others = cluster.primaries
    cluster.tell(cluster.replaced(first, cluster.spare), epoch=2, to=[*others, cluster.spare])
    async with connect(cluster) as locks:
        async with locks.lock(NAME) as lease:
            assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner
        assert await first.command("GET", key_of(NAME)) is None


@in_virtual_time
async def test_a_frozen_server_does_not_make_the_others_doubtful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long a node timeout is, two looks end while the last confirmation counts."""
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, node_timeout=8.0, **LONG) as locks:
        await met(locks)
        cluster.primaries[2].freeze()
        for _ in range(40):
            lease = await locks.lock(NAME).try_acquire()
            assert lease is not None
            await lease.release()
            await asyncio.sleep(0.5)


@pytest.mark.parametrize("primaries", [7, 8])
@in_virtual_time
async def test_at_least_one_replica_is_asked_for_the_view(
    monkeypatch: pytest.MonkeyPatch, primaries: int
) -> None:
    """Besides all primaries, and in a large Cluster no more than one."""
    cluster = VirtualCluster(monkeypatch, primaries=primaries, replicas=1)
    async with connect(cluster) as locks:
        async with locks.lock("a"):
            pass
        await asyncio.sleep(3)
        sources = [server for server in kept() if server.startswith("r")]
        assert len(sources) == 1
        assert len(kept()) == 2 * primaries + 1


@in_virtual_time
async def test_a_server_that_left_is_asked_nothing_and_left_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = VirtualCluster(monkeypatch)
    old = cluster.primaries[0]
    async with connect(cluster) as locks:
        await met(locks)
        cluster.tell(cluster.replaced(old, cluster.spare), epoch=2)
        await asyncio.sleep(3)
        assert sorted(server.address for server in node_of(locks)._reader) == [
            "c1:7000",
            "c2:7000",
            "spare:7000",
        ]
    assert not caplog.records


# clocks


@in_virtual_time
async def test_the_largest_jump_of_a_clock_ends_leases_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lease may be on that server, whatever the clocks of the others say."""
    cluster = VirtualCluster(monkeypatch, replicas=1)
    async with connect(cluster, ttl=60, max_ttl=60) as locks:
        await met(locks)
        lease = await locks.lock(NAME, renew=False).acquire()
        left = lease.remaining()
        asked = [len(server.asked_for("TIME")) for server in cluster.servers[3:]]
        cluster.primaries[0].jump_clock(5)
        node_of(locks).check_clock()
        await asyncio.sleep(0.05)
        assert lease.remaining() == pytest.approx(left - 5, abs=0.2)
        after = [len(server.asked_for("TIME")) for server in cluster.servers[3:]]
        assert after == asked, "leases are on no replica"


@in_virtual_time
async def test_the_clock_of_a_server_that_came_later_counts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    name = name_on(1)
    async with connect(cluster, ttl=60, max_ttl=60) as locks:
        await met(locks)
        cluster.primaries[0].jump_clock(5)
        node_of(locks).check_clock()
        await asyncio.sleep(2)
        cluster.tell(cluster.moved(slot_of(name), cluster.spare), epoch=2)
        await until(lambda: len(node_of(locks).shards) == 4)
        lease = await locks.lock(name, renew=False).acquire()
        left = lease.remaining()
        cluster.spare.jump_clock(7)
        asked = [len(server.asked_for("TIME")) for server in cluster.servers]
        node_of(locks).shards[3].check_clock()
        await asyncio.sleep(0.05)
        assert lease.remaining() == pytest.approx(left - 7, abs=0.2)
        pairs = zip(cluster.servers, asked, strict=True)
        assert all(len(server.asked_for("TIME")) > before for server, before in pairs)


@in_virtual_time
async def test_the_clock_of_a_server_that_left_ends_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, ttl=60, max_ttl=60) as locks:
        await met(locks)
        shard = node_of(locks).shards[0]
        cluster.tell(cluster.replaced(cluster.primaries[0], cluster.spare), epoch=2)
        lease = await locks.lock(name_on(1), renew=False).acquire()
        await until(lambda: shard not in node_of(locks).shards)
        left = lease.remaining()
        shard.on_jump(shard, 5.0)
        assert lease.remaining() == pytest.approx(left, abs=0.01)
