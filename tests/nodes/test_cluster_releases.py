"""Commands to a Cluster whose slots move, and releases to servers that come and go."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import seconds_until, start
from tests.nodes.virtual_servers import (
    VirtualCluster,
    connect,
    kept,
    key_of,
    meeting,
    met,
    name_on,
    played_on,
    slot_of,
)
from tests.tables.inside import now
from tests.waiting import go_through, until

LONG: dict[str, Any] = {"ttl": 100.0, "max_ttl": 100.0}
NAME = name_on(0)
SLOT = slot_of(NAME)
SPLIT = "TRYAGAIN Multiple keys request during rehashing of slot"


@pytest.mark.parametrize("newcomer", [False, True])
@played_on(VirtualCluster)
async def test_a_command_is_asked_at_the_server_that_gets_the_slot(
    cluster: VirtualCluster, *, newcomer: bool
) -> None:
    """For this once, so the next one begins where the slot still is.

    ASKING also goes before the script's source, which a server gets that doesn't know the script.
    A newcomer got all scripts when we connected.
    """
    source = cluster.primaries[0]
    target = cluster.spare if newcomer else cluster.primaries[1]
    async with meeting(cluster) as locks:
        if newcomer:  # it came into the Cluster a moment ago
            cluster.tell(cluster.moved(slot_of(name_on(1)), target), epoch=2)
        source.odd[SLOT] = f"ASK {SLOT} {target.host}:{target.port}"
        target.forget_scripts()
        began = len(target.asked)
        lease = await locks.lock(NAME).acquire()
        assert await target.command("GET", key_of(NAME)) == lease.owner
        words = [words[0] for words in target.asked[began:] if words[0] != b"CLUSTER"]
        scripts = [word for word in words if word in {b"ASKING", b"EVALSHA", b"EVAL"}]
        asked = [b"ASKING", b"EVALSHA"] + [b"ASKING", b"EVAL"] * (not newcomer)
        assert scripts[scripts.index(b"ASKING") :] == asked
        source.odd.clear()
        async with locks.lock(NAME) as other:
            assert await source.command("GET", key_of(NAME)) == other.owner


@played_on(VirtualCluster)
async def test_after_a_slot_moved_its_new_server_is_asked_first(cluster: VirtualCluster) -> None:
    """At once, before the next view."""
    source, target = cluster.primaries[:2]
    async with meeting(cluster) as locks:
        await asyncio.sleep(0.2)
        views = len(source.asked_for("CLUSTER", "SLOTS"))
        for server in cluster.servers:
            server.instead[b"CLUSTER"] = lambda _words: ReplyError("ERR not now")
        cluster.tell(cluster.moved(SLOT, target))
        began = now()
        async with locks.lock(NAME) as lease:
            assert await target.command("GET", key_of(NAME)) == lease.owner
        assert now() - began < 0.01
        asked = len(source.asked)
        await go_through(locks.lock(NAME))
        assert [words for words in source.asked[asked:] if words[0] != b"CLUSTER"] == []
        await asyncio.sleep(0.1)
        assert len(source.asked_for("CLUSTER", "SLOTS")) > views, "the view is read again soon"


@played_on(VirtualCluster)
async def test_a_slot_that_moved_to_a_server_outside_of_the_view_waits_for_the_next_one(
    cluster: VirtualCluster,
) -> None:
    async with meeting(cluster) as locks:
        cluster.tell(cluster.moved(SLOT, cluster.spare), epoch=2)
        began = now()
        async with locks.lock(NAME) as lease:
            assert await cluster.spare.command("GET", key_of(NAME)) == lease.owner
        assert now() - began < 0.2


@pytest.mark.parametrize("host", ["c1", ""])
@played_on(VirtualCluster)
async def test_redirects_in_a_circle_are_followed_seldom(
    cluster: VirtualCluster, host: str
) -> None:
    """A server that does not know its own name leaves it out: it means itself."""
    first, second = cluster.primaries[:2]
    async with meeting(cluster) as locks:
        first.odd[SLOT] = f"MOVED {SLOT} {host}:7000"
        second.odd[SLOT] = f"MOVED {SLOT} c0:7000"
        before = sum(len(server.asked_for("EVALSHA")) for server in (first, second))
        with pytest.raises(asynclock.QuorumUnavailableError, match="MOVED"):
            await locks.lock(NAME).try_acquire()
        after = sum(len(server.asked_for("EVALSHA")) for server in (first, second))
        assert 2 <= after - before <= 12
        assert any(key_of(NAME) in words for words in second.asked) is bool(host)


class Few(dict[int, str]):
    """An error for each slot, but only so often, or a loop without a pause would never end."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def get(self, _slot: int, _default: Any = None) -> Any:
        self._left -= 1
        return SPLIT if self._left > 0 else None


@played_on(VirtualCluster)
async def test_while_a_slot_is_split_a_command_is_tried_again(cluster: VirtualCluster) -> None:
    source = cluster.primaries[0]
    async with meeting(cluster, node_timeout=2.0) as locks:
        source.odd = Few(200)
        before = len(source.asked_for("EVALSHA"))
        waiting = start(locks.lock(NAME).acquire())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        assert 10 <= len(source.asked_for("EVALSHA")) - before <= 52, "every 20 ms"
        source.odd = {}
        assert await seconds_until(waiting.done) < 0.1
        assert await waiting


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
@played_on(VirtualCluster)
async def test_an_acquire_that_was_given_up_is_not_sent(cluster: VirtualCluster, kind: str) -> None:
    """Its release was answered already: the name would be locked for a ttl, with no owner.

    A semaphore's acquire looks at more keys than its release.
    """
    source = cluster.primaries[0]
    async with meeting(cluster, node_timeout=5.0, **LONG) as locks:
        source.odd[SLOT] = SPLIT
        wanted: Any = locks.lock(NAME) if kind == "lock" else locks.semaphore(NAME, 2)
        waiting = start(wanted.acquire())
        await asyncio.sleep(0.31)
        waiting.cancel()
        await asyncio.sleep(0)
        source.odd.clear()
        await asyncio.sleep(1)
        keys = await source.command("KEYS", f"asynclock:{{{NAME}}}*")
        assert [key for key in keys if not key.endswith(":#fence")] == []


# ---- releases
@pytest.mark.parametrize("how", ["dead", "frozen", "frozen a moment ago"])
@played_on(VirtualCluster)
async def test_a_release_goes_to_the_heir_of_its_primary(cluster: VirtualCluster, how: str) -> None:
    """As soon as the next view names it."""
    old, other, *_ = cluster.primaries
    heir = other if how == "frozen a moment ago" else cluster.spare
    async with meeting(cluster, **LONG) as locks:
        lease = await locks.lock(NAME).acquire()
        await heir.command("SET", key_of(NAME), lease.owner)
        if how == "dead":
            old.kill()
        else:
            old.freeze()
        releasing = start(lease.release())
        await asyncio.sleep(0.1 if how == "frozen a moment ago" else 2)
        shards = [
            (first, last, [heir if one is old else one for one in servers])
            for first, last, servers in cluster.shards
        ]
        cluster.tell(shards, epoch=2)
        await until(lambda: heir.connections == 2, "as a voter and as a source", every=0.001)

        async def free() -> bool:
            return await heir.command("GET", key_of(NAME)) is None

        # After the next look, a server frozen a moment ago has a node timeout to end its link.
        assert await seconds_until(free) < (2.2 if how == "frozen a moment ago" else 0.1)
        await releasing


@played_on(VirtualCluster)
async def test_a_release_that_is_sent_again_follows_its_slot(cluster: VirtualCluster) -> None:
    """Before the client has read the view in which the slot has moved."""
    source, target = cluster.primaries[:2]
    async with connect(cluster, **LONG) as locks:
        lease = await locks.lock(NAME).acquire()
        await target.command("SET", key_of(NAME), lease.owner)
        source.freeze()
        releasing = start(lease.release())
        await asyncio.sleep(0.1)
        cluster.tell(cluster.moved(SLOT, target), to=[target])
        source.odd[SLOT] = f"MOVED {SLOT} c1:7000"
        source.cut()
        source.frozen = False
        await asyncio.sleep(3)
        assert await target.command("GET", key_of(NAME)) is None
        await releasing


@pytest.mark.parametrize(("ttl", "sent"), [(1.5, 0), (60.0, 1)])
@played_on(VirtualCluster)
async def test_a_release_is_kept_for_as_long_as_it_matters(
    cluster: VirtualCluster, ttl: float, sent: int
) -> None:
    server, whole = cluster.primaries[0], cluster.shards
    async with meeting(cluster, node_timeout=0.3, max_ttl=100) as locks:
        lease = await locks.lock(NAME, ttl=ttl, renew=False).acquire()
        cluster.tell(cluster.without(SLOT), epoch=2)
        await asyncio.sleep(1.1)
        server.asked.clear()
        start(lease.release())
        await asyncio.sleep(3)
        cluster.tell(whole, epoch=3)
        await asyncio.sleep(2.2)
        assert server.operations("release", "batch") == [f"release {lease.owner}"] * sent


@pytest.mark.parametrize("place", ["waits for a view", "is kept for later", "server is away"])
@played_on(VirtualCluster)
async def test_a_close_waits_for_the_server_of_a_release(
    cluster: VirtualCluster, place: str
) -> None:
    """It has the lease still, and gets its release."""
    server, whole = cluster.primaries[0], cluster.shards
    server.durable = True
    locks = connect(cluster, node_timeout=2.0, **LONG)
    await met(locks)
    lease = await locks.lock(NAME).acquire()
    if place == "server is away":
        server.kill()
        releasing = start(lease.release())
        await asyncio.sleep(0.1)
    else:
        cluster.tell(cluster.without(SLOT), epoch=2)
        await asyncio.sleep(1.1)
        releasing = start(lease.release())
        await asyncio.sleep(2.1 if place == "is kept for later" else 0.1)
    closing = start(locks.aclose())
    await asyncio.sleep(0.5)
    assert not closing.done()
    assert await server.command("GET", key_of(NAME)) == lease.owner
    if place == "server is away":
        server.restart()
        await closing
    else:
        cluster.tell(whole, epoch=3)
        assert await seconds_until(closing.done) < 0.2
    assert await server.command("GET", key_of(NAME)) is None
    await releasing


@played_on(VirtualCluster)
async def test_closing_what_never_met_its_cluster_takes_no_time(cluster: VirtualCluster) -> None:
    """Each command is answered at once; no task stays, not even of a server that is frozen."""
    cluster.tell([])
    cluster.primaries[0].freeze()
    locks = connect(cluster, node_timeout=2.0)
    await locks.ready()
    looking = start(locks.inspect("a"))
    await asyncio.sleep(0.1)
    began = now()
    await locks.aclose()
    assert now() - began < 0.5
    assert kept() == []
    found = await looking
    assert "the manager is closed" in str(found.nodes[0].error)
    assert now() - began < 0.5


NAMES = [name_on(0, number=number) for number in range(4)]
MOVED, ASK = (f"{word} {SLOT} c1:7000" for word in ("MOVED", "ASK"))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("odd", [SPLIT, "CLUSTERDOWN The cluster is down", MOVED, ASK])
@played_on(VirtualCluster)
async def test_a_release_that_is_refused_is_sent_until_it_is_done(
    cluster: VirtualCluster, odd: str, *, late: bool, many: bool
) -> None:
    """`late`: the refusal comes after the node timeout."""
    source, target = cluster.primaries[:2]
    async with meeting(cluster, **LONG) as locks:
        names = NAMES if many else NAMES[:1]
        leases = await asyncio.gather(*(locks.lock(name).acquire() for name in names))
        there = target if "c1" in odd else source
        if there is target:
            await target.command("SET", key_of(NAME), leases[0].owner)
            await source.command("DEL", key_of(NAME))
            cluster.tell(cluster.moved(SLOT, target), to=[target])
        source.odd[SLOT] = odd
        source.way.seconds = 0.6 if late else 0.0
        await asyncio.gather(*(lease.release() for lease in leases))
        await asyncio.sleep(2)
        source.way.seconds = 0.0
        await asyncio.sleep(1)
        if there is source:
            source.odd.clear()
        await asyncio.sleep(20)
        assert await there.command("GET", key_of(NAME)) is None
