"""A Cluster that the test makes up and changes, in virtual time; the real one: tests/replicated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.cluster.node import LOOK_GAP
from asynclock._nodes.cluster.view_reader import MAX_SOURCES
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.virtual_servers import (
    Server,
    VirtualCluster,
    connect,
    key_of,
    name_on,
    node_of,
    slot_of,
)
from tests.waiting import in_virtual_time, until

LONG: dict[str, Any] = {"ttl": 100.0, "max_ttl": 100.0}
"""So that no renewal and no expiry is in the way."""


def kept() -> list[str]:
    """Return the servers that tasks keep connected, each once per task."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return sorted(
        name.split()[-1].split(":")[0]
        for name in names
        if name.startswith("asynclock: keep ") and "cluster" not in name
    )


def acquires(server: Server) -> int:
    return sum(b"acquire" in words for words in server.asked)


@in_virtual_time
async def test_each_name_is_locked_where_its_slot_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        for number, server in enumerate(cluster.primaries):
            name = name_on(number)
            async with locks.lock(name) as lease:
                assert await server.command("GET", key_of(name)) == lease.owner
            assert await server.command("GET", key_of(name)) is None
            (mark,) = await server.command("KEYS", "*:#primary")
            assert (await server.command("GET", mark)).split()[0].startswith(server.run_id)
        (health,) = locks.nodes()
        assert (health.state, health.cause, health.version) == ("up", "", "7.0.0")
        assert node_of(locks).round_trip is not None
    assert [server.connections for server in cluster.servers] == [0, 0, 0]
    assert kept() == []


@in_virtual_time
async def test_a_release_on_a_cluster_wakes_the_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    name = name_on(1)
    async with connect(cluster, **LONG) as here, connect(cluster, **LONG) as there:
        lease = await here.lock(name).acquire()
        waiting = start(there.lock(name).acquire())
        await asyncio.sleep(3)
        asked = acquires(cluster.primaries[1])
        await asyncio.sleep(4)
        assert acquires(cluster.primaries[1]) - asked <= 8, (
            "it keeps its place, but nothing wakes it"
        )
        await lease.release()
        assert await seconds_until(waiting.done) < 0.05


@in_virtual_time
async def test_where_one_server_sends_no_pushes_no_waiter_counts_on_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.primaries[1].instead[b"CLIENT"] = lambda _words: ReplyError("ERR unknown command")
    async with connect(cluster, **LONG) as here, connect(cluster, **LONG) as there:
        lease = await here.lock(name_on(1)).acquire()
        assert not node_of(here).tracking
        waiting = start(there.lock(name_on(1)).acquire())
        await asyncio.sleep(3)
        await lease.release()
        assert await seconds_until(waiting.done) < 2


@pytest.mark.parametrize("epoch", [1, 2])
@in_virtual_time
async def test_waiters_ask_again_when_a_slot_moves_and_only_then(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """The new server pushes nothing to a connection that asked for it elsewhere."""
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, **LONG) as locks:
        for number in range(3):
            async with locks.lock(name_on(number)):
                pass
        woken: list[str | None] = []
        node_of(locks).on_wake = woken.append
        await asyncio.sleep(5)
        assert woken == []
        cluster.tell(cluster.moved(slot_of("a"), cluster.primaries[0]), epoch=epoch)
        assert await seconds_until(lambda: woken) < 1.1
        await asyncio.sleep(5)
        assert woken == [None]


@in_virtual_time
async def test_a_view_is_read_about_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after somebody wanted one sooner, which takes a moment each time."""
    cluster = VirtualCluster(monkeypatch)
    server = cluster.primaries[0]
    async with connect(cluster) as locks:
        async with locks.lock("a"):
            pass
        for _ in range(100):
            node_of(locks).look_again()
            await asyncio.sleep(0.01)
        assert 10 <= len(server.asked_for("CLUSTER", "SLOTS")) <= 1.0 / LOOK_GAP + 4
        before = len(server.asked_for("CLUSTER", "SLOTS"))
        await asyncio.sleep(10)
        assert 8 <= len(server.asked_for("CLUSTER", "SLOTS")) - before <= 15


@in_virtual_time
async def test_a_slot_that_nobody_serves_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    name, whole = name_on(0), cluster.shards
    async with connect(cluster) as locks:
        async with locks.lock(name):
            pass
        parts = cluster.moved(slot_of(name), cluster.spare)
        cluster.tell([part for part in parts if part[2] != [cluster.spare]], epoch=2)
        await asyncio.sleep(1.1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="no server has its slot"):
            await locks.lock(name).try_acquire()
        async with locks.lock(name_on(1)):
            pass
        cluster.tell(whole, epoch=3)
        began = _clock.now()
        async with locks.lock(name):
            assert _clock.now() - began < 0.2, "the view is read as soon as somebody wants it"


@in_virtual_time
async def test_what_a_server_of_a_cluster_lacks_is_told_until_it_votes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    name, server = name_on(1), cluster.primaries[1]
    async with connect(cluster) as locks:
        async with locks.lock(name):
            pass
        server.instead[b"EVALSHA"] = lambda _words: ReplyError("OOM command not allowed")
        with pytest.raises(asynclock.QuorumUnavailableError, match="c1:7000: OOM"):
            await locks.lock(name).acquire(timeout=1.5)
        assert locks.nodes()[0].cause == "c1:7000: OOM command not allowed"
        lack = node_of(locks).lack
        assert lack is not None
        assert lack.code == "OOM"
        del server.instead[b"EVALSHA"]
        async with locks.lock(name):
            assert locks.nodes()[0].cause == ""
            assert node_of(locks).lack is None


@in_virtual_time
async def test_an_acquire_waits_for_the_first_view_and_not_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    shards = cluster.shards
    cluster.tell([])
    async with connect(cluster) as locks:
        began = _clock.now()
        with pytest.raises(asynclock.QuorumUnavailableError, match="none are assigned"):
            await locks.lock("a").try_acquire()
        assert _clock.now() - began <= 1.01
        assert locks.nodes()[0].state == "connecting"
        assert "none are assigned" in locks.nodes()[0].cause
        waiting = start(locks.lock("a").acquire(timeout=30))
        await asyncio.sleep(0.3)
        cluster.tell(shards)
        assert await seconds_until(waiting.done) < 1.1
        assert await waiting


@in_virtual_time
async def test_a_wrong_password_of_a_cluster_is_a_mistake_and_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    for server in cluster.servers:
        server.instead[b"HELLO"] = lambda _words: ReplyError("WRONGPASS invalid")
    began = _clock.now()
    async with connect(cluster) as locks:
        assert _clock.now() - began < 0.2, "the end of the first attempt is noticed at once"
        for _ in range(2):  # the second time, the cause is known
            began = _clock.now()
            with pytest.raises(asynclock.ConfigurationError, match="WRONGPASS"):
                await locks.lock("a").acquire(timeout=30)
            assert _clock.now() - began < 0.2
        assert locks.nodes()[0].state == "down"


@in_virtual_time
async def test_an_older_view_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that was cut off, and is the only one that answers."""
    cluster = VirtualCluster(monkeypatch)
    old, (first, second, third) = cluster.shards, cluster.primaries
    cluster.tell(cluster.replaced(first, cluster.spare), epoch=2)
    cluster.tell(old, to=[third])
    name = name_on(0)
    async with connect(cluster) as locks:
        async with locks.lock(name):
            assert await cluster.spare.command("GET", key_of(name))
        cluster.spare.kill()
        second.kill()
        await asyncio.sleep(5)
        shard = node_of(locks).owner(slot_of(name))
        assert shard is not None
        assert shard.address == "spare:7000"


@in_virtual_time
async def test_a_primary_is_confirmed_from_the_question_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    told: list[float] = []
    for server in cluster.servers:
        tells = server.instead[b"CLUSTER"]

        def noting(words: Any, tells: Any = tells) -> Any:
            told.append(_clock.now())
            return tells(words)

        server.instead[b"CLUSTER"] = noting
    async with connect(cluster, node_timeout=2.0) as locks:
        async with locks.lock("a"):
            pass
        for server in cluster.servers:
            server.way.seconds = 0.4
        await asyncio.sleep(10)
        before = len(told)
        await until(lambda: len(told) > before)
        for server in cluster.servers:
            server.instead[b"CLUSTER"] = lambda _words: ReplyError("NOPERM no right")
        asked = max(told) - 0.4
        await asyncio.sleep(asked + 1.9 - _clock.now())
        assert locks.nodes()[0].state == "up"
        await asyncio.sleep(0.2)
        assert locks.nodes()[0].state == "down"
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock("a").try_acquire()


@in_virtual_time
async def test_a_primary_that_most_others_do_not_name_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own replicas may name it: they are cut off together with it."""
    cluster = VirtualCluster(monkeypatch, replicas=2)
    async with connect(cluster) as locks:
        async with locks.lock(name_on(0)):
            pass
        for server in cluster.primaries[1:]:
            server.kill()
        await asyncio.sleep(2.1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="only 1 of 3 primaries confirm"):
            await locks.lock(name_on(0)).try_acquire()


@in_virtual_time
async def test_servers_that_left_the_cluster_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    old = cluster.primaries[0]
    async with connect(cluster) as locks:
        async with locks.lock(name_on(0)):
            pass
        assert kept() == ["c0", "c0", "c1", "c1", "c2", "c2"], "each as a voter and as a source"
        cluster.tell(cluster.replaced(old, cluster.spare), epoch=2)
        old.freeze()
        await asyncio.sleep(1.1 + 1.0)  # until the view is read, and one node timeout
        assert kept() == ["c1", "c1", "c2", "c2", "spare", "spare"]
        assert len(list(node_of(locks)._kept)) == 6
        assert len(node_of(locks).shards) == 3
        old.thaw()
        await asyncio.sleep(0.01)
        assert old.connections == 0
        async with locks.lock(name_on(0)) as lease:
            assert await cluster.spare.command("GET", key_of(name_on(0))) == lease.owner


@in_virtual_time
async def test_only_servers_of_the_view_are_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch, replicas=3)
    cluster.url += ",spare:7000,nobody:7000"
    async with connect(cluster) as locks:
        async with locks.lock("a"):
            pass
        await asyncio.sleep(3)
        sources = kept()
        for number in range(3):
            sources.remove(f"c{number}")  # as a voter
        assert len(sources) == MAX_SOURCES
        assert {"c0", "c1", "c2"} < set(sources)
        assert not {"spare", "nobody"} & set(sources)
        assert cluster.spare.connections == 0


@in_virtual_time
async def test_the_jump_of_one_servers_clock_ends_leases_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the other servers are asked for theirs: perhaps our own clock stood still."""
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, ttl=60, max_ttl=60) as locks:
        leases = [await locks.lock(name_on(n), renew=False).acquire() for n in range(3)]
        left = leases[0].remaining()
        for server in cluster.servers:
            server.jump_clock(5)
        asked = [len(server.asked_for("TIME")) for server in cluster.servers]
        node_of(locks).shards[1].check_clock()
        await asyncio.sleep(0.05)
        pairs = zip(cluster.servers, asked, strict=True)
        assert all(len(server.asked_for("TIME")) > before for server, before in pairs)
        assert leases[0].remaining() == pytest.approx(left - 5, abs=0.2)


@in_virtual_time
async def test_a_cluster_votes_when_its_last_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster, restart_guard=True, **LONG) as elder:
        await until(lambda: elder.nodes()[0].state == "quarantined")
        node = node_of(elder)
        await until(lambda: len([s for s in node.shards if s.link]) == 3)
        shards = list(node.shards)
        shards[0].trust.votes_from = shards[2].trust.votes_from = 0.0
        assert node.votes_from == shards[1].trust.votes_from > _clock.now()
        assert node.state(_clock.now()) == "quarantined"
        assert node.cause(_clock.now()).startswith("c1:7000: ")
        assert "c0" not in node.cause(_clock.now())


@in_virtual_time
async def test_a_server_that_may_evict_keys_is_refused_in_a_cluster_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = VirtualCluster(monkeypatch)
    cluster.primaries[2].info = {"maxmemory": 1000, "maxmemory_policy": "allkeys-lru"}
    locks = connect(cluster, strict=True)
    with pytest.raises(asynclock.ConfigurationError, match="evict"):
        await locks.lock(name_on(2)).acquire(timeout=5)
    await locks.aclose()


@in_virtual_time
async def test_the_clock_of_each_server_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(monkeypatch)
    async with connect(cluster) as locks:
        await until(lambda: locks.nodes()[0].state == "up")
        before = [len(server.asked_for("TIME")) for server in cluster.servers]
        node_of(locks).check_clock()
        await asyncio.sleep(0.01)
        assert [len(one.asked_for("TIME")) for one in cluster.servers] == [n + 1 for n in before]
