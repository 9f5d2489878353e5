"""A Cluster whose servers the test makes up: views, primaries, clocks, acknowledgements."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.virtual_servers import (
    ClusterServer,
    Server,
    VirtualCluster,
    connect,
    kept,
    key_of,
    meeting,
    name_on,
    played_on,
    slot_of,
)
from tests.tables.inside import now, renew_now
from tests.waiting import go_through, in_virtual_time, until

LONG: dict[str, Any] = {"ttl": 100.0, "max_ttl": 100.0}
"""So that no renewal and no expiry is in the way."""
NAME = name_on(0)
CONFIRMED = 2.0
"""Seconds for which the word of a majority counts (docs/guarantees.md)."""


def acquires(server: Server) -> int:
    return len(server.operations("acquire"))


def looks(server: Server) -> int:
    return len(server.asked_for("CLUSTER", "SLOTS"))


@played_on(VirtualCluster)
async def test_each_name_is_locked_where_its_slot_is(cluster: VirtualCluster) -> None:
    """A Cluster keeps no record of the fleet's nodes: its key would be on one server of it."""
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
        assert health.round_trip is not None
        assert [server.asked_for("HMGET") for server in cluster.primaries] == [[], [], []]
    assert [server.connections for server in cluster.servers] == [0, 0, 0]
    assert kept() == []


@pytest.mark.parametrize("redirect", ["MOVED", "ASK"])
@played_on(VirtualCluster)
async def test_a_mark_that_moves_delays_only_its_server(
    cluster: VirtualCluster, redirect: str
) -> None:
    """The server is not used without its mark, and no other command follows that redirect."""
    source, target = cluster.primaries[:2]
    source.odd[0] = f"{redirect} 0 {target.host}:7000"
    async with connect(cluster) as locks:
        acquiring = start(locks.lock(NAME).acquire())
        await until(lambda: "slot of its mark" in locks.nodes()[0].cause)
        cluster.tell(cluster.moved(0, target), epoch=2)
        lease = await acquiring
        assert await source.command("GET", key_of(NAME)) == lease.owner
        assert len(await source.command("KEYS", "*:#primary")) == 1


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("redirect", ["MOVED", "ASK"])
@played_on(VirtualCluster)
async def test_a_plain_url_of_a_server_is_a_mistake(
    cluster: VirtualCluster, redirect: str, acks: int
) -> None:
    """With `acks` the mark is redirected first."""
    _, server, _ = cluster.primaries
    server.info["connected_slaves"] = 1
    server.odd[1236] = f"{redirect} 1236 c0:7000"  # the slot of all names
    async with asynclock.connect("redis://c1:7000", prefix="{locks}:", acks=acks) as locks:
        began = now()
        with pytest.raises(asynclock.ConfigurationError, match=r"write redis\+cluster:// instead"):
            await locks.lock("a").acquire(timeout=20)
        assert now() - began < 0.01


@played_on(VirtualCluster, primaries=1)
async def test_each_lease_is_renewed_alone(cluster: VirtualCluster) -> None:
    """The keys of a command must be in one slot, also if one server has both slots."""
    (server,) = cluster.primaries
    async with connect(cluster) as locks:
        leases = [await locks.lock(name).acquire() for name in "ab"]
        renew_now(locks)
        await until(lambda: len(server.operations("extend")) >= 2)
        found = [words for words in server.asked_for("EVALSHA") if b"extend" in words]
        assert [len(words) - words.index(b"extend") for words in found] == [4, 4]
        assert all(lease.held for lease in leases)


@pytest.mark.parametrize("pushes", [True, False])
@played_on(VirtualCluster)
async def test_a_release_wakes_the_waiter(cluster: VirtualCluster, *, pushes: bool) -> None:
    """Where one server sends no pushes, no waiter counts on them."""
    name = name_on(1)
    server = cluster.primaries[1]
    if not pushes:
        server.instead[b"CLIENT"] = lambda _words: ReplyError("ERR unknown command")
    async with connect(cluster, **LONG) as here, connect(cluster, **LONG) as there:
        lease = await here.lock(name).acquire()
        waiting = start(there.lock(name).acquire())
        await asyncio.sleep(3)
        asked = acquires(server)
        await asyncio.sleep(4)
        assert (acquires(server) - asked <= 8) is pushes, "it keeps its place, but nothing wakes it"
        await lease.release()
        assert await seconds_until(waiting.done) < (0.05 if pushes else 2)


@pytest.mark.parametrize("epoch", [1, 2])
@played_on(VirtualCluster)
async def test_waiters_ask_again_only_when_a_slot_moves(
    cluster: VirtualCluster, epoch: int
) -> None:
    """The new server pushes nothing to a connection that asked for it elsewhere."""
    server = cluster.primaries[0]
    async with meeting(cluster, **LONG) as here, connect(cluster, **LONG) as there:
        await here.lock(NAME).acquire()
        waiting = start(there.lock(NAME).acquire())
        await asyncio.sleep(5)

        def after_a_look() -> set[int]:
            """Return the numbers of the looks behind which an acquire followed at once."""
            pairs = list(zip(server.asked, server.asked_at, strict=True))
            looked = [at for words, at in pairs if words[0] == b"CLUSTER"]
            asked = [at for words, at in pairs if b"acquire" in words]
            return {n for n, at in enumerate(looked) if any(0 <= one - at < 1e-4 for one in asked)}

        before = after_a_look()
        cluster.tell(cluster.moved(slot_of("a"), server), epoch=epoch)
        await asyncio.sleep(1.1)
        assert len(after_a_look()) > len(before)
        waiting.cancel()


@played_on(VirtualCluster)
async def test_a_deleted_key_is_noticed_before_all_servers_are_met(cluster: VirtualCluster) -> None:
    """And messages are read."""
    server, _, dead = cluster.primaries
    dead.kill()
    async with connect(cluster, **LONG) as locks:
        lease = await locks.lock(NAME).acquire()
        assert await lease.publish("40 %")
        assert (await locks.inspect(NAME)).message == "40 %"
        await lease.extend()
        await server.command("DEL", key_of(NAME))
        assert await seconds_until(lambda: not lease.held) < 1


# ---- views
@played_on(VirtualCluster)
async def test_a_view_is_read_about_once_a_second(cluster: VirtualCluster) -> None:
    """Also after somebody wanted one sooner, which takes a moment each time."""
    server = cluster.primaries[0]
    async with meeting(cluster) as locks:
        server.odd[slot_of(NAME)] = "CLUSTERDOWN Hash slot not served"
        before = looks(server)
        for _ in range(100):
            start(locks.lock(NAME).try_acquire()).add_done_callback(lambda one: one.exception())
            await asyncio.sleep(0.01)
        assert 5 <= looks(server) - before <= 24
        server.odd.clear()
        await asyncio.sleep(1)
        before = looks(server)
        await asyncio.sleep(10)
        assert 8 <= looks(server) - before <= 15


@pytest.mark.parametrize("why", ["dead", "not confirmed"])
@played_on(VirtualCluster)
async def test_while_a_primary_may_have_been_replaced_the_view_is_read_often(
    cluster: VirtualCluster, why: str
) -> None:
    old, watcher, other = cluster.primaries
    async with meeting(cluster):
        await asyncio.sleep(3)
        if why == "dead":
            old.kill()
        else:
            cluster.tell(cluster.replaced(old, cluster.spare), to=[watcher, other])
        before = looks(watcher)
        await asyncio.sleep(3)
        assert looks(watcher) - before >= 6


@played_on(VirtualCluster)
async def test_a_slot_that_nobody_serves_is_waited_for(cluster: VirtualCluster) -> None:
    whole = cluster.shards
    async with meeting(cluster) as locks:
        cluster.tell(cluster.without(slot_of(NAME)), epoch=2)
        await asyncio.sleep(1.1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="no server has its slot"):
            await locks.lock(NAME).try_acquire()
        await go_through(locks.lock(name_on(1)))
        cluster.tell(whole, epoch=3)
        began = now()
        async with locks.lock(NAME):
            assert now() - began < 0.2, "the view is read as soon as somebody wants it"


@played_on(VirtualCluster)
async def test_an_acquire_waits_for_the_first_view_and_not_longer(cluster: VirtualCluster) -> None:
    shards = cluster.shards
    cluster.tell([])
    async with connect(cluster) as locks:
        began = now()
        with pytest.raises(asynclock.QuorumUnavailableError, match="none are assigned"):
            await locks.lock("a").try_acquire()
        assert now() - began <= 1.01
        assert locks.nodes()[0].state == "connecting"
        assert "none are assigned" in locks.nodes()[0].cause
        waiting = start(locks.lock("a").acquire(timeout=30))
        await asyncio.sleep(0.3)
        cluster.tell(shards)
        assert await seconds_until(waiting.done) < 1.1
        assert await waiting


@pytest.mark.parametrize("met_before", [False, True])
@played_on(VirtualCluster)
async def test_a_wrong_password_is_a_mistake_and_no_wait(
    cluster: VirtualCluster, *, met_before: bool
) -> None:
    """Also for a call that came before the servers were met; the second time, it is known."""
    for server in cluster.servers:
        server.instead[b"HELLO"] = lambda _words: ReplyError("WRONGPASS invalid")
    locks, began = connect(cluster), now()
    if met_before:
        await locks.ready()
        assert now() - began < 0.2, "the end of the first attempt is noticed at once"
    for _ in range(2):
        began = now()
        with pytest.raises(asynclock.ConfigurationError, match="WRONGPASS"):
            await locks.lock("a").acquire(timeout=30)
        assert now() - began < 0.2
    assert locks.nodes()[0].state == "down"
    await locks.aclose()


@played_on(VirtualCluster)
async def test_the_newest_view_counts_and_no_older_one_is_followed(cluster: VirtualCluster) -> None:
    """Of a server that was cut off, and is the only one that answers."""
    old, (first, second, third) = cluster.shards, cluster.primaries
    cluster.tell(cluster.replaced(first, cluster.spare), epoch=2)
    cluster.tell(old, to=[third])
    async with connect(cluster) as locks:
        async with locks.lock(NAME) as lease:
            assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner
            assert await first.command("GET", key_of(NAME)) is None
        cluster.spare.kill()
        second.kill()
        await asyncio.sleep(5)
        with pytest.raises(asynclock.QuorumUnavailableError, match="spare:7000"):
            await locks.lock(NAME).try_acquire()


# ---- primaries
@played_on(VirtualCluster, replicas=2)
async def test_a_primary_that_most_others_do_not_name_is_not_used(cluster: VirtualCluster) -> None:
    """Its own replicas may name it: they are cut off together with it."""
    async with meeting(cluster) as locks:
        for server in cluster.primaries[1:]:
            server.kill()
        await asyncio.sleep(2.1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="only 1 of 3 primaries confirm"):
            await locks.lock(NAME).try_acquire()


@pytest.mark.parametrize("becomes_known", [True, False])
@played_on(VirtualCluster)
async def test_a_new_primary_is_asked_once_most_others_confirm_it(
    cluster: VirtualCluster, *, becomes_known: bool
) -> None:
    """A call waits for that: most servers may know it a moment later. Until then, no mark."""
    shards = cluster.replaced(cluster.primaries[0], cluster.spare)
    cause = "spare:7000: only 1 of 3 primaries confirm it as a primary"
    async with meeting(cluster) as locks:
        cluster.tell(shards, epoch=2, to=[cluster.primaries[1]])
        await until(lambda: cluster.spare.connections, every=0.001)
        waiting = start(locks.lock(NAME).try_acquire())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        if becomes_known:
            cluster.tell(shards, epoch=2)
            lease = await waiting
            assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner
        else:
            with pytest.raises(asynclock.QuorumUnavailableError):
                await waiting
            await asyncio.sleep(5)
            assert locks.nodes()[0].cause == cause
            assert await cluster.spare.command("KEYS", "*") == []
            with pytest.raises(asynclock.QuorumUnavailableError, match=cause):
                await locks.lock(NAME).try_acquire()


@played_on(VirtualCluster)
async def test_a_demoted_primary_is_replaced_soon_and_no_mistake(cluster: VirtualCluster) -> None:
    cluster.primaries[0].info["role"] = "slave"
    async with connect(cluster) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match="c0:7000: it is a replica"):
            await locks.lock(NAME).acquire(timeout=2)
        await go_through(locks.lock(name_on(1)))


@played_on(VirtualCluster)
async def test_a_frozen_server_does_not_make_the_others_doubtful(cluster: VirtualCluster) -> None:
    """However long a node timeout is, two looks end while the last confirmation counts."""
    async with meeting(cluster, node_timeout=8.0, **LONG) as locks:
        cluster.primaries[2].freeze()
        for _ in range(40):
            lease = await locks.lock(NAME).try_acquire()
            assert lease is not None
            await lease.release()
            await asyncio.sleep(0.5)


@played_on(VirtualCluster)
async def test_what_a_server_lacks_is_told_until_it_votes_again(cluster: VirtualCluster) -> None:
    """Also to callers whose time is over before it says so again; not to those of other servers."""
    name, (other, server, _) = name_on(1), cluster.primaries
    async with meeting(cluster) as locks:
        other.instead[b"EVALSHA"] = lambda _words: ReplyError("BUSY a script")
        with pytest.raises(asynclock.QuorumUnavailableError, match="c0:7000: BUSY"):
            await locks.lock(name_on(0)).try_acquire()
        server.instead[b"EVALSHA"] = lambda _words: ReplyError("OOM command not allowed")
        server.way.seconds = 0.2
        with pytest.raises(asynclock.QuorumUnavailableError, match="c1:7000: OOM"):
            await locks.lock(name).acquire(timeout=1.5)
        assert locks.nodes()[0].cause.endswith("; c1:7000: OOM command not allowed")
        del server.instead[b"EVALSHA"]
        async with locks.lock(name):
            assert locks.nodes()[0].cause == "c0:7000: BUSY a script"
        server.freeze()
        call = locks.lock(name).acquire(timeout=0)
        await asyncio.sleep(0.05)  # its time ends before that of the server
        with pytest.raises(asynclock.QuorumUnavailableError, match="no answer before"):
            await call


@played_on(VirtualCluster)
async def test_a_cluster_votes_when_its_last_server_does(cluster: VirtualCluster) -> None:
    young = cluster.primaries[1]
    async with connect(cluster, restart_guard=True) as locks:
        await until(lambda: locks.nodes()[0].state == "up", timeout=60)
        young.restart()
        ready = start(locks.ready(voting=True))
        await until(lambda: locks.nodes()[0].state == "quarantined")
        (health,) = locks.nodes()
        assert health.votes_in > 9
        for call in (
            locks.ready(voting=True, timeout=5),
            locks.lock(name_on(1)).acquire(timeout=5),
        ):
            with pytest.raises(asynclock.QuorumUnavailableError) as failed:
                await call
            assert failed.value.retry_after > 4
        assert health.cause.startswith("c1:7000: ")
        await go_through(locks.lock(NAME))
        await until(lambda: locks.nodes()[0].state == "up", timeout=60, every=0.001)
        assert await seconds_until(ready.done) < 0.01


@played_on(VirtualCluster)
async def test_a_server_that_evicts_is_refused_in_a_cluster_too(cluster: VirtualCluster) -> None:
    cluster.primaries[2].info = {"maxmemory": 1000, "maxmemory_policy": "allkeys-lru"}
    locks = connect(cluster, strict=True)
    with pytest.raises(asynclock.ConfigurationError, match="evict"):
        await locks.lock(name_on(2)).acquire(timeout=5)
    await locks.aclose()


# ---- servers that come and go
@played_on(VirtualCluster)
async def test_servers_that_left_the_cluster_are_left(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    old = cluster.primaries[0]
    async with meeting(cluster) as locks:
        assert kept() == ["c0", "c0", "c1", "c1", "c2", "c2"], "each as a voter and as a source"
        cluster.tell(cluster.replaced(old, cluster.spare), epoch=2)
        old.freeze()
        await asyncio.sleep(1.1 + 1.0)  # until the view is read, and one node timeout
        assert kept() == ["c1", "c1", "c2", "c2", "spare", "spare"]
        old.thaw()
        await asyncio.sleep(0.01)
        assert old.connections == 0
        async with locks.lock(NAME) as lease:
            assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner
        dialled = len(old.dialled)
        await asyncio.sleep(3)
        assert len(old.dialled) == dialled
    assert not [one for one in caplog.records if "c0" not in one.message]


@pytest.mark.parametrize(
    ("primaries", "replicas", "sources"), [(3, 3, 7), (7, 1, 8), (8, 1, 9), (9, 0, 9)]
)
@in_virtual_time
async def test_only_servers_of_the_view_are_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, primaries: int, replicas: int, sources: int
) -> None:
    """All primaries and at least one replica; no seed that is in no view."""
    cluster = VirtualCluster(monkeypatch, primaries=primaries, replicas=replicas)
    cluster.url += ",spare:7000,nobody:7000"
    async with connect(cluster) as locks:
        await go_through(locks.lock("a"))
        await asyncio.sleep(3)
        found = kept()
        for number in range(primaries):
            found.remove(f"c{number}")  # as a voter
        assert len(found) == sources
        assert {f"c{number}" for number in range(primaries)} <= set(found)
        assert not {"spare", "nobody"} & set(found)
        assert cluster.spare.connections == 0


# ---- clocks
@pytest.mark.parametrize("jumping", ["all", "one", "a newcomer"])
@played_on(VirtualCluster, replicas=1)
async def test_one_servers_jump_ends_leases_sooner(cluster: VirtualCluster, jumping: str) -> None:
    """A lease may be on that server. All are asked: perhaps our own clock stood still."""
    name = name_on(1)
    async with meeting(cluster, ttl=60, max_ttl=60) as locks:
        servers: list[ClusterServer] = cluster.primaries[:1]
        if jumping == "all":
            servers = cluster.primaries
        elif jumping == "a newcomer":
            servers, name = [cluster.spare], NAME
            cluster.tell(cluster.moved(slot_of(NAME), cluster.spare), epoch=2)
            await asyncio.sleep(1.1)
            await (await locks.lock(NAME, timeout=3).acquire()).release()
        lease = await locks.lock(name, renew=False).acquire()
        left = lease.remaining()
        asked = [len(server.asked_for("TIME")) for server in cluster.servers]
        for server in servers:
            server.jump_clock(5)
        await locks.inspect(NAME)
        await asyncio.sleep(0.05)
        assert lease.remaining() == pytest.approx(left - 5, abs=0.2)
        pairs = zip(cluster.servers, asked, strict=True)
        more = [len(server.asked_for("TIME")) > before for server, before in pairs]
        assert more[1:3] == [True, True]
        assert more[3:] == [False] * 3, "leases are on no replica"


# ---- acknowledgements
def acknowledge(cluster: VirtualCluster, count: int) -> None:
    for server in (*cluster.servers, cluster.spare):
        server.instead[b"WAIT"] = lambda _words: count


@played_on(VirtualCluster, replicas=1)
async def test_replicas_that_any_primary_had_may_come_back(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover, the new primary has fewer. A Cluster without any is a mistake."""
    acknowledge(cluster, 1)
    heir = cluster.replicas[0][0]
    async with connect(cluster, acks=1) as locks:
        await go_through(locks.lock(NAME))
        shards = [(first, last, servers[:1]) for first, last, servers in cluster.shards]
        shards[0] = (shards[0][0], shards[0][1], [heir])
        acknowledge(cluster, 0)
        cluster.tell(shards, epoch=2)
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await locks.lock(NAME).acquire(timeout=5)
    async with connect(VirtualCluster(monkeypatch), acks=1) as locks:
        with pytest.raises(asynclock.ConfigurationError, match="needs 1 replica, and it has none"):
            await locks.lock(NAME).acquire(timeout=5)


@pytest.mark.parametrize("timeout", [0, 0.05, 0.9])
@pytest.mark.parametrize("slow", ["all", "the second", "the last"])
@played_on(VirtualCluster)
async def test_a_timeout_for_several_names_is_kept_and_no_key_is_left(
    cluster: VirtualCluster, timeout: float, slow: str
) -> None:
    """The servers are slow, and each name is on another one."""
    trip, patience = 0.35, 0.5
    names = [name_on(number) for number in range(3)]
    slowed = {"all": [0, 1, 2], "the second": [1], "the last": [2]}[slow]

    async def left() -> list[Any]:
        pairs = zip(cluster.primaries, names, strict=True)
        owners = [await server.command("GET", key_of(name)) for server, name in pairs]
        return [owner for owner in owners if owner is not None]

    async def free() -> bool:
        return not await left()

    async with meeting(cluster, node_timeout=patience, **LONG) as locks:
        for number in slowed:
            # One round trip fits into a node timeout, two do not.
            whole = trip if slow == "all" else max(timeout, patience) + 0.3
            cluster.primaries[number].way.seconds = whole / 2
        began = now()
        if slow == "all" and not timeout:  # of calls that don't wait, each has its own time
            lease = await locks.multi_lock(*names).acquire(timeout=0)
            assert now() - began < 3 * patience
            await lease.release()
        else:
            with pytest.raises((asynclock.AcquireTimeoutError, asynclock.QuorumUnavailableError)):
                await locks.multi_lock(*names).acquire(timeout=timeout)
            assert now() - began < max(timeout, patience) + 0.3
        await until(free)
        for server in cluster.primaries:
            server.way.seconds = 0.0
        async with locks.multi_lock(*names, timeout=20):
            assert len(await left()) == 3
        await until(free)
