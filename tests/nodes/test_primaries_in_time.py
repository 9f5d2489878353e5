"""Servers that are met as primaries without anybody who watches them, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock._nodes.info import parse_info, read_facts
from asynclock._nodes.primary import older
from asynclock._rules.trust import Facts
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import Way, start
from tests.nodes.virtual_servers import Server, reach
from tests.waiting import in_virtual_time, until

URL, MARK = "redis://p0:6379", "asynclock::#primary"
YEAR_MS = 365 * 24 * 3600 * 1000


def primary(patch: pytest.MonkeyPatch, *, replicas: int = 1) -> Server:
    """A server with so many replicas, each of which acknowledges everything."""
    server = Server("p0", 6379)
    server.info["connected_slaves"] = replicas
    server.instead[b"WAIT"] = lambda _words: server.info["connected_slaves"]
    reach(patch, [server])
    return server


def connect(**settings: Any) -> asynclock.LockManager:
    usual = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0, "restart_guard": False, "acks": 1}
    return asynclock.connect(URL, **{**usual, **settings})


@in_virtual_time
async def test_a_replica_is_no_primary_and_gets_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody will name another server."""
    server = primary(monkeypatch)
    server.info["role"] = "slave"
    async with connect() as locks:
        with pytest.raises(asynclock.ConfigurationError, match="it is a replica, not the primary"):
            await locks.lock("a").acquire(timeout=30)
        assert server.connections == 0


@in_virtual_time
async def test_replicas_are_counted_when_the_primary_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first grant needs all of them."""
    server = primary(monkeypatch, replicas=3)
    async with connect(acks="all") as locks, locks.lock("a"):
        assert [words[1] for words in server.asked_for("WAIT")] == [b"3"]


@in_virtual_time
async def test_a_primary_without_replicas_is_a_mistake_and_one_that_had_some_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = primary(monkeypatch, replicas=0)
    async with connect() as locks:
        with pytest.raises(asynclock.ConfigurationError, match="needs 1 replica, and it has none"):
            await locks.lock("a").acquire(timeout=30)
        server.info["connected_slaves"] = 1
        await asyncio.sleep(2)
        async with locks.lock("a", timeout=10):
            pass
        server.info["connected_slaves"] = 0
        server.cut()
        await asyncio.sleep(1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await locks.lock("a").acquire(timeout=3)


@pytest.mark.parametrize(("version", "able"), [("7.0.15", False), ("7.2.0", True), (None, True)])
@in_virtual_time
async def test_durable_needs_a_server_that_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, version: str | None, able: bool
) -> None:
    server = primary(monkeypatch)
    if version is None:
        server.instead[b"INFO"] = lambda _words: ReplyError("NOPERM no right")
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


@pytest.mark.parametrize(
    ("version", "is_older"),
    [
        ("6.2.14", True),
        ("7.0.15", True),
        ("7.2.0", False),
        ("7.2.4", False),
        ("8.0.1", False),
        ("7.x", True),
        ("unknown", True),
    ],
)
def test_which_servers_can_save_before_they_reply(version: str, is_older: bool) -> None:
    assert older(version) is is_older


@in_virtual_time
async def test_the_mark_outlives_the_last_connection_by_weeks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = primary(monkeypatch)
    async with connect() as locks, locks.lock("a"):
        mark = await server.command("GET", MARK)
        assert mark.split()[0] == f"{server.run_id}.0"
        assert YEAR_MS / 25 < await server.command("PTTL", MARK) < YEAR_MS


@pytest.mark.parametrize("place", ["first", "later"])
@in_virtual_time
async def test_a_primary_without_memory_for_a_mark_counts_as_just_promoted(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It stays usable for all that needs no memory."""
    server = primary(monkeypatch)
    async with connect(restart_guard=True) as locks:
        if place == "later":
            await until(lambda: locks.nodes()[0].state == "quarantined")
            await asyncio.sleep(12)
            assert locks.nodes()[0].state == "up"
        full = ReplyError("OOM command not allowed when used memory > 'maxmemory'")
        for word in (b"EVALSHA", b"EVAL"):
            server.instead[word] = lambda _words: full
        server.cut()
        await asyncio.sleep(3)
        assert locks.nodes()[0].state == "quarantined"
        assert 5 < locks.nodes()[0].votes_in < 11


@in_virtual_time
async def test_a_primary_that_tells_nothing_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a managed service that refuses INFO: there is no process to name."""
    server = primary(monkeypatch)
    server.instead[b"INFO"] = lambda _words: ReplyError("NOPERM no right to INFO")
    server.instead[b"WAIT"] = lambda _words: 1
    async with connect() as locks, locks.lock("a", timeout=2):
        assert await server.command("GET", MARK) is None
        facts = locks._engine.multiplexer.nodes[0].trust.facts
        assert facts is not None
        assert not facts.promoted


@in_virtual_time
async def test_a_young_group_waits_even_if_it_is_the_only_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its servers replace each other, so any of them may lack grants; a plain server does not."""
    primary(monkeypatch)
    for acks, states in ((1, {"quarantined"}), (0, {"up"})):
        async with connect(acks=acks, restart_guard=True) as locks:
            await locks.ready()
            assert {node.state for node in locks.nodes()} == states


@pytest.mark.parametrize("acks", [0, 1])
@in_virtual_time
async def test_a_handshake_that_is_given_up_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """Here while the mark is left; of a plain server only if it saves each write."""
    server, loop = primary(monkeypatch), asyncio.get_running_loop()
    server.durable = True

    def late(_words: Any) -> Any:
        server.way.seconds = 1000.0  # for the reply alone
        loop.call_later(0.01, setattr, server.way, "seconds", 0.0)
        return ReplyError("ERR no")

    server.instead[b"EVALSHA"] = late
    locks = connect(acks=acks)
    asking = start(locks.lock("a").try_acquire())
    await asyncio.sleep(0.5)
    assert server.connections == 1
    await locks.aclose()
    with pytest.raises(asynclock.AsyncLockError):
        await asking
    await asyncio.sleep(0.05)
    assert server.connections == 0


@pytest.mark.parametrize(
    ("durable", "role", "marked"),
    [(True, "master", True), (False, "master", False), (True, "slave", False)],
)
@in_virtual_time
async def test_only_a_plain_server_that_saves_each_write_is_marked(
    durable: bool, role: str, marked: bool
) -> None:
    """The mark tells whose data it started with, which matters for nobody else."""
    server = Server("one", 1)
    server.durable, server.info["role"] = durable, role
    places: list[Any] = [MemoryEndpoint("one", server, Way())]
    async with asynclock.connect(*places, ttl=10, node_timeout=1) as locks:
        await locks.ready()
        mark = await server.command("GET", MARK)
        assert mark.split()[0] == server.run_id if marked else mark is None
        (node,) = locks._engine.multiplexer.nodes
        assert node.trust.facts is not None
        assert node.trust.facts.after == ("-" if marked else None)


INFO = (
    b"# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\nuptime_in_seconds:17\r\n"
    b"role:master\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n"
    b"connected_slaves:2\r\naof_enabled:1\r\nmaster_host:fe80::1\r\n"
)
ALWAYS = {b"appendfsync": b"always"}


def test_what_a_server_tells_about_itself() -> None:
    assert read_facts(INFO, ALWAYS, tracking=True) == Facts(
        run_id="abc",
        uptime=17.0,
        version="7.2.4",
        role="master",
        maxmemory=100,
        maxmemory_policy="allkeys-lru",
        durable=True,
        tracking=True,
        replicas=2,
    )
    valkey = read_facts(INFO + b"valkey_version:8.1.0\r\n", ALWAYS, tracking=False)
    assert (valkey.version, valkey.tracking) == ("8.1.0", False)


@pytest.mark.parametrize(
    ("info", "fsync"),
    [
        (INFO, {b"appendfsync": b"everysec"}),
        (INFO, None),
        (INFO, ReplyError("NOPERM")),
        (INFO.replace(b"aof_enabled:1", b"aof_enabled:0"), ALWAYS),
        (INFO.replace(b"aof_enabled:1\r\n", b""), ALWAYS),
    ],
)
def test_a_server_is_durable_only_if_it_certainly_saves_each_write(info: bytes, fsync: Any) -> None:
    assert not read_facts(info, fsync, tracking=True).durable


def test_what_a_server_does_not_tell_is_unknown() -> None:
    assert read_facts(ReplyError("NOPERM"), None, tracking=True) == Facts(tracking=True)
    some = read_facts(b"redis_version:7.2.4\r\n", None, tracking=False)
    assert some == Facts(version="7.2.4", maxmemory=0, replicas=0)


def test_odd_lines_of_info_are_no_obstacle() -> None:
    text = b"# Server\r\n\r\nmaster_host:fe80::1\r\nname:\xff\r\nno colon\r\n"
    assert parse_info(text) == {"master_host": "fe80::1", "name": "\ufffd"}
    assert parse_info("a:1\r\n") == {"a": "1"}
    assert parse_info(None) == {}


@in_virtual_time
async def test_three_young_servers_wait_and_one_does_not() -> None:
    for names, state in (("a", "up"), ("abc", "quarantined")):
        places: list[Any] = [MemoryEndpoint(name, MemoryNode(name), Way()) for name in names]
        async with asynclock.connect(*places, ttl=10, node_timeout=1) as locks:
            await locks.ready()
            assert {node.state for node in locks.nodes()} == {state}
