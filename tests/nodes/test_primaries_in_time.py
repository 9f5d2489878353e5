"""Servers that are met as primaries, whose replicas may have to acknowledge, in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import start
from tests.nodes.virtual_servers import Server, VirtualService, alone, played_on
from tests.waiting import go_through, until

URL, MARK = "redis://p0:6379", "asynclock::#primary"
MONTH_MS = 30 * 24 * 3600 * 1000
FULL = ReplyError("OOM command not allowed when used memory > 'maxmemory'")
NO_INFO = ReplyError("NOPERM no right to INFO")


def connect(url: str = URL, **settings: Any) -> asynclock.LockManager:
    usual = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0, "restart_guard": False, "acks": 1}
    return asynclock.connect(url, **{**usual, **settings})


# ---- a replica
@pytest.mark.parametrize("watched", [False, True])
@played_on(VirtualService)
async def test_a_replica_is_a_mistake_where_nobody_will_name_another_server(
    service: VirtualService, *, watched: bool
) -> None:
    """Sentinels will name the next one."""
    old, new = service.servers
    old.info["role"] = "slave"
    service.name(old, epoch=1, replicas={})
    async with connect(service.url if watched else URL) as locks:
        waiting = start(locks.lock("a").acquire(timeout=30))
        if not watched:
            with pytest.raises(asynclock.ConfigurationError, match="it is a replica, not the"):
                await waiting
        await asyncio.sleep(3)
        assert old.connections == 0
        if watched:
            assert not waiting.done()
            assert "it is a replica" in locks.nodes()[0].cause
            service.name(new, epoch=2, replicas={old: "slave"})
            assert await waiting


@played_on(alone, replicas=1)
async def test_an_address_that_led_to_a_primary_once_may_do_so_again(server: Server) -> None:
    """The address of a managed service moves to the next primary, without anybody who says so."""
    async with connect() as locks:
        await go_through(locks.lock("a"))
        server.info["role"] = "slave"
        server.cut()
        await asyncio.sleep(1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="it is a replica"):
            await locks.lock("a").acquire(timeout=3)
        server.info["role"] = "master"
        await go_through(locks.lock("a", timeout=10))


# ---- what is waited for
@pytest.mark.parametrize(
    ("settings", "waits", "asks"),
    [
        ({"acks": "all"}, [(b"3", b"500")], True),
        ({"acks": "majority"}, [(b"2", b"500")], True),
        ({"acks": 1}, [(b"1", b"500")], False),
        ({"acks": 0}, [], False),
        ({"acks": 1, "node_timeout": 0.5}, [(b"1", b"250")], False),
    ],
)
@played_on(alone, replicas=3)
async def test_the_first_grant_needs_all_replicas_that_the_primary_has(
    server: Server, settings: dict[str, Any], waits: list[tuple[bytes, ...]], asks: bool
) -> None:
    server.freeze()
    async with connect(**settings) as locks:
        await asyncio.sleep(5)  # attempts to connect get more time after each that failed
        server.thaw()
        async with locks.lock("a", timeout=10):
            assert [words[1:] for words in server.asked_for("WAIT")] == waits
            assert bool(server.asked_for("INFO", "replication")) is asks
            await asyncio.gather(*(locks.lock(name).acquire() for name in "bc"))
            assert len(server.operations("batch")) == 1
            assert len(server.asked_for("WAIT")) == 2 * len(waits), "one wait for both grants"


@played_on(alone)
async def test_a_primary_without_replicas_is_a_mistake_and_one_that_had_some_an_outage(
    server: Server,
) -> None:
    for acks in ("majority", "all"):
        async with connect(acks=acks) as locks:
            told = f"acks={acks!r} needs 1 replica, and it has none"
            with pytest.raises(asynclock.UnsupportedDeploymentError, match=told):
                await locks.lock("a").acquire()
            assert told in locks.nodes()[0].cause
    async with connect() as locks:
        with pytest.raises(asynclock.ConfigurationError, match="needs 1 replica, and it has none"):
            await locks.lock("a").acquire()
        assert await server.command("KEYS", "*") == []
        server.info["connected_slaves"] = 1
        await asyncio.sleep(2)
        await go_through(locks.lock("a", timeout=10))
        server.info["connected_slaves"] = 0
        server.cut()
        await asyncio.sleep(1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await locks.lock("a").acquire(timeout=3)


@pytest.mark.parametrize(("version", "able"), [("7.0.15", False), ("7.2.0", True), (None, True)])
@played_on(alone, replicas=1)
async def test_durable_needs_a_server_that_is_new_enough(
    server: Server, version: str | None, able: bool
) -> None:
    if version is None:
        server.instead[b"INFO"] = lambda _words: NO_INFO
    else:
        server.info["redis_version"] = version
    server.instead[b"WAITAOF"] = lambda _words: [1, 0]
    async with connect(acks=0, durable=True) as locks:
        if able:
            async with locks.lock("a", timeout=5):
                assert [words[1:3] for words in server.asked_for("WAITAOF")] == [(b"1", b"0")]
                return
        with pytest.raises(asynclock.ConfigurationError, match=r"Redis 7\.2 or later; it is 7\.0"):
            await locks.lock("a").acquire(timeout=5)


# ---- the mark
def unmarked(server: Server) -> Callable[[Any], Any]:
    """Return what a server replies to scripts that has no memory for a mark."""
    return lambda words: FULL if words[3] == MARK.encode() else server.answer(None, words)


@played_on(alone, replicas=1)
async def test_the_mark_outlives_the_last_connection_by_weeks(server: Server) -> None:
    async with connect() as locks, locks.lock("a"):
        mark = await server.command("GET", MARK)
        assert mark.split()[0] == f"{server.run_id}.0"
        assert await server.command("PTTL", MARK) == pytest.approx(MONTH_MS, abs=60_000)


@pytest.mark.parametrize("place", ["first", "later"])
@played_on(alone, replicas=1)
async def test_a_primary_without_memory_for_a_mark_counts_as_new(
    server: Server, place: str
) -> None:
    """It stays usable for all that needs no memory."""
    async with connect(restart_guard=True) as locks:
        if place == "later":
            await until(lambda: locks.nodes()[0].state == "quarantined")
            await asyncio.sleep(12)
            assert locks.nodes()[0].state == "up"
        for word in (b"EVALSHA", b"EVAL"):
            server.instead[word] = lambda _words: FULL
        server.cut()
        await asyncio.sleep(3)
        assert locks.nodes()[0].state == "quarantined"
        assert 5 < locks.nodes()[0].votes_in < 11


SAID = b"aof_enabled:1\r\nuptime_in_seconds:5000\r\nrole:master\r\n"


@pytest.mark.parametrize(
    ("acks", "durable", "info", "full", "marked"),
    [
        (0, True, None, False, True),
        (0, False, None, False, False),
        (0, True, SAID, False, False),
        (0, True, None, True, False),
        (1, False, NO_INFO, False, False),
    ],
    ids=["saves each write", "does not", "names no process", "has no memory", "tells nothing"],
)
@played_on(alone, replicas=1)
async def test_which_servers_are_marked(
    server: Server, acks: int, durable: bool, info: Any, full: bool, marked: bool
) -> None:
    """A mark tells whose data a server started with; a server that can't be marked is used."""
    server.durable = durable
    if info is not None:
        server.instead[b"INFO"] = lambda _words: info
    if full:
        server.instead[b"EVALSHA"] = unmarked(server)
    async with connect(acks=acks, restart_guard=acks == 0) as locks, locks.lock("a", timeout=2):
        mark = await server.command("GET", MARK)
        assert (mark or "").split()[:1] == [server.run_id] * marked


@played_on(alone, replicas=1)
async def test_a_young_group_waits_even_if_it_is_the_only_node(server: Server) -> None:
    """Its servers replace each other, so any of them may lack grants; a plain server does not."""
    for acks, state in ((1, "quarantined"), (0, "up")):
        async with connect(acks=acks, restart_guard=True) as locks:
            await locks.ready()
            assert (locks.nodes()[0].state, server.connections) == (state, 1)


@pytest.mark.parametrize("acks", [0, 1, "all", None], ids=["plain", "acks", "all", "Sentinels"])
@played_on(VirtualService)
async def test_a_handshake_in_vain_leaves_no_connection(service: VirtualService, acks: Any) -> None:
    """Here while the mark is left; of a plain server only if it saves each write."""
    loop = asyncio.get_running_loop()
    server = service.servers[0]
    server.durable, server.info["connected_slaves"] = acks is not None, 1

    def late(_words: Any) -> Any:
        server.way.seconds = 1000.0  # for the reply alone
        loop.call_later(0.01, setattr, server.way, "seconds", 0.0)
        return ReplyError("ERR no")

    server.instead[b"EVALSHA"] = late
    locks = connect(URL if acks is not None else service.url, acks=acks or 0)
    asking = start(locks.lock("a").try_acquire())
    await asyncio.sleep(0.5)
    assert server.connections == 1
    await locks.aclose()
    with pytest.raises(asynclock.AsyncLockError):
        await asking
    await asyncio.sleep(0.05)
    assert server.connections == 0
