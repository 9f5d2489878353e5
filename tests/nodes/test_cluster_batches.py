"""A tick's acquires and releases of several names that one server of a Cluster has."""

import asyncio
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import start
from tests.nodes.virtual_servers import (
    ClusterServer,
    VirtualCluster,
    connect,
    key_of,
    meeting,
    met,
    name_on,
    played_on,
    slot_of,
)
from tests.tables.inside import now
from tests.waiting import until

LONG: dict[str, Any] = {"ttl": 100.0, "max_ttl": 100.0}
NAMES = [name_on(0, number=number) for number in range(4)]
ODD = NAMES[1]
SLOT = slot_of(ODD)
MOVED, ASK = (f"{word} {SLOT} c1:7000" for word in ("MOVED", "ASK"))
SPLIT = "TRYAGAIN Multiple keys request during rehashing of slot"
DOWN = "CLUSTERDOWN Hash slot not served"


def pieces(server: ClusterServer, words: bytes) -> list[int]:
    """Return a list that gets, for each piece with these words, how often it has them."""
    found: list[int] = []
    admit = server.way.admit

    def count(stream: Any, data: bytes) -> bool:
        if words in data:
            found.append(data.count(words))
        return admit(stream, data)

    server.way.admit = count  # type: ignore[method-assign]
    return found


async def owners(server: ClusterServer) -> list[str | None]:
    return [await server.command("GET", key_of(name)) for name in NAMES]


@played_on(VirtualCluster)
async def test_each_server_gets_its_names_at_once(cluster: VirtualCluster) -> None:
    """No matter how many servers there are, and none gets the name of another."""
    names = [name_on(shard, number=number) for number in range(3) for shard in range(3)]
    async with meeting(cluster, **LONG) as locks:
        for operation in (b"acquire", b"release"):
            asked = [pieces(server, b"\r\n%s\r\n" % operation) for server in cluster.primaries]
            if operation == b"acquire":
                leases = await asyncio.gather(*(locks.lock(name).acquire() for name in names))
            else:
                assert all(await asyncio.gather(*(lease.release() for lease in leases)))
            assert asked == [[3], [3], [3]]


@pytest.mark.parametrize(
    ("odd", "there", "soon"),
    [(MOVED, 1, True), (ASK, 1, True), (SPLIT, 0, False), (DOWN, 0, False)],
)
@played_on(VirtualCluster)
async def test_an_odd_slot_delays_its_own_name_only(
    cluster: VirtualCluster, odd: str, there: int, *, soon: bool
) -> None:
    source, target = cluster.primaries[0], cluster.primaries[there]

    async def together(doing: list[asyncio.Task[Any]], operation: bytes, soon: bool) -> list[Any]:
        began, asked = now(), pieces(source, b"\r\n%s\r\n" % operation)
        await asyncio.gather(*doing[:1], *doing[2:])
        await asyncio.sleep(0.001)
        assert asked[0] >= 3, "they travel together"
        assert doing[1].done() is soon
        assert now() - began < 0.01
        source.odd = {}
        done = await asyncio.gather(*doing)
        assert now() - began < 1.2
        return done

    async with meeting(cluster, **LONG) as locks:
        if odd == MOVED:
            cluster.tell(cluster.moved(SLOT, target), to=[target])
        source.odd[SLOT] = odd
        acquiring = [start(locks.lock(name).acquire()) for name in NAMES]
        leases = await together(acquiring, b"acquire", soon)
        assert (await owners(target))[1] == leases[1].owner
        assert [lease.owner for lease in leases if lease is not leases[1]] == [
            owner for owner in await owners(source) if owner not in {None, leases[1].owner}
        ]
        source.odd = {SLOT: odd} if odd in {MOVED, ASK, SPLIT} else {}
        releasing = [start(lease.release()) for lease in leases]
        await together(releasing, b"release", soon or odd == DOWN)
        assert [await owners(server) for server in (source, target)] == [[None] * 4] * 2


@pytest.mark.parametrize("odd", [MOVED, ASK, SPLIT])
@played_on(VirtualCluster)
async def test_an_acquire_that_was_given_up_meanwhile_is_not_sent_again(
    cluster: VirtualCluster, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    """Its release was sent already. A redirect is no fault of the server."""
    source, target = cluster.primaries[:2]
    async with meeting(cluster, **LONG) as locks:
        source.odd[SLOT], source.way.seconds = odd, 0.05
        doing = [start(locks.lock(name).acquire()) for name in NAMES]
        await asyncio.sleep(0.02)
        doing[1].cancel()
        await asyncio.sleep(0.03)
        cluster.tell(cluster.moved(SLOT, target), to=[target])
        await asyncio.sleep(1)
        assert target.operations("acquire") == []
        assert await owners(target) == [None] * 4
        assert [task.done() and not task.cancelled() for task in doing] == [True, False, True, True]
        assert (locks.nodes()[0].cause, "does not vote" in caplog.text) == ("", False)


@played_on(VirtualCluster)
async def test_a_server_that_forgot_the_scripts_does_all_names(cluster: VirtualCluster) -> None:
    server = cluster.primaries[0]
    async with meeting(cluster, **LONG) as locks:
        server.forget_scripts()
        leases = await asyncio.gather(*(locks.lock(name).acquire(timeout=0) for name in NAMES))
        assert await owners(server) == [lease.owner for lease in leases]
        server.forget_scripts()
        assert all(await asyncio.gather(*(lease.release() for lease in leases)))
        assert await owners(server) == [None] * 4


@played_on(VirtualCluster)
async def test_no_acquire_is_without_a_limit(cluster: VirtualCluster) -> None:
    """Also while the clock of another server is not known."""
    server = cluster.primaries[0]
    cluster.primaries[2].kill()
    async with connect(cluster, **LONG) as locks:
        for name in (NAMES[0], name_on(1)):
            await locks.lock(name).acquire()
        await asyncio.gather(*(locks.lock(name).acquire() for name in NAMES[1:]))
        asked = [words for words in server.asked if b"acquire" in words]
        limits = [int(words[words.index(b"acquire") + 4]) for words in asked]
        assert len(limits) == 4
        assert all(limits)


@played_on(VirtualCluster)
async def test_no_acquire_is_without_a_limit_after_a_failover(cluster: VirtualCluster) -> None:
    """The clock of the new primary is not known yet."""
    server = cluster.primaries[0]
    async with meeting(cluster, **LONG) as locks:
        cluster.spare.kill()
        cluster.tell(cluster.replaced(cluster.primaries[2], cluster.spare), epoch=2)
        await asyncio.sleep(3)
        await asyncio.gather(*(locks.lock(name).acquire() for name in NAMES))
        asked = [words for words in server.asked if b"acquire" in words][-4:]
        limits = [int(words[words.index(b"acquire") + 4]) for words in asked]
        assert len(limits) == 4
        assert all(limits)


@played_on(VirtualCluster)
async def test_a_server_that_does_not_answer_may_have_an_heir(cluster: VirtualCluster) -> None:
    """The view is read again at once."""
    server, watcher, _ = cluster.primaries

    def looks() -> int:
        return len(watcher.asked_for("CLUSTER", "SLOTS"))

    def admit(stream: Any, data: bytes) -> bool:
        return b"acquire" not in data

    async with meeting(cluster, **LONG, node_timeout=0.3) as locks:
        before = looks()
        await until(lambda: looks() > before)
        server.way.admit = admit  # type: ignore[method-assign]
        before = looks()
        doing = [start(locks.lock(name).try_acquire()) for name in NAMES]
        await asyncio.wait(doing)
        assert all(isinstance(one.exception(), asynclock.QuorumUnavailableError) for one in doing)
        await asyncio.sleep(0.06)
        assert looks() > before


@pytest.mark.parametrize("names", [NAMES, [ODD]])
@played_on(VirtualCluster)
async def test_a_refusal_counts_whose_reply_shows_that_a_clock_has_jumped(
    cluster: VirtualCluster, names: list[str]
) -> None:
    """A guard takes only the server's grants."""
    server = cluster.primaries[0]
    async with connect(cluster) as locks, connect(cluster) as others:
        await met(locks)
        await asyncio.gather(*(others.lock(name).acquire() for name in NAMES))
        await asyncio.sleep(0.5)
        server.jump_clock(-5)
        assert await asyncio.gather(*(locks.lock(name).try_acquire() for name in names)) == [
            None for _ in names
        ]


@pytest.mark.parametrize("held", [False, True])
@played_on(VirtualCluster)
async def test_no_grant_counts_whose_reply_shows_that_a_clock_has_jumped(
    cluster: VirtualCluster, *, held: bool
) -> None:
    """Also beside a name that is refused."""
    server = cluster.primaries[0]
    async with connect(cluster) as locks, connect(cluster) as others:
        await met(locks)
        if held:
            await others.lock(ODD).acquire()
        await asyncio.sleep(0.5)
        server.jump_clock(-5)
        began = now()
        doing = [
            start(locks.lock(name).acquire(timeout=30)) for name in NAMES if name != ODD or held
        ]
        await doing[0]
        assert now() - began > 2
        for task in doing:
            task.cancel()
