"""What `connect` makes of the addresses of one server, a group or a Cluster, in virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from redis.asyncio.connection import RedisSSLContext

import asynclock
from asynclock import _clock
from asynclock._nodes import endpoint
from asynclock._nodes.endpoint import Endpoint
from asynclock.testing.memory import MemoryEndpoint
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import Way
from tests.nodes.virtual_servers import (
    Server,
    VirtualCluster,
    VirtualService,
    known,
    name_on,
    reach,
)
from tests.nodes.virtual_servers import connect as connect_cluster
from tests.tables.inside import renew_now
from tests.waiting import in_virtual_time, until

SETTINGS: dict[str, Any] = {"ttl": 10.0, "max_ttl": 10.0, "node_timeout": 1.0}
URL, MARK = "redis://p0:6379", "asynclock::#primary"


def alone(patch: pytest.MonkeyPatch) -> Server:
    """One server with an address, and one replica that acknowledges everything."""
    server = Server("p0", 6379)
    server.info["connected_slaves"] = 1
    server.instead[b"WAIT"] = lambda _words: 1
    reach(patch, [server])
    return server


def renewals(server: Server) -> list[Any]:
    """Return the owners in each renewal command that the server got."""
    found = [words for words in server.asked_for("EVALSHA") if b"extend" in words]
    return [words[words.index(b"extend") + 3 :] for words in found]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis+cluster://a,b", "cluster a:6379,b:6379"),
        ("rediss+cluster://a,b", "cluster a:6379,b:6379"),
        ("redis+sentinel://a,b/mine", "mine@a:26379,b:26379"),
        ("rediss+sentinel://a,b/mine", "mine@a:26379,b:26379"),
        ("rediss://a", "a:6379"),
    ],
)
def test_a_deployment_may_speak_tls(url: str, name: str) -> None:
    assert [node.node for node in asynclock.connect(url).nodes()] == [name]


def test_the_nodes_of_a_manager_load_the_authorities_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It blocks the event loop for tens of milliseconds each time."""
    loaded: list[Any] = []
    load = RedisSSLContext.get

    def counted(self: Any) -> Any:
        loaded.append(self)
        return load(self)

    monkeypatch.setattr(RedisSSLContext, "get", counted)
    asynclock.connect("rediss://a", "rediss://b", "rediss://c").nodes()
    assert len(loaded) == 1


@in_virtual_time
async def test_a_renewal_of_many_leases_takes_a_server_no_long_time() -> None:
    """Others wait while a server executes a command."""
    server = Server("one", 1)
    places: list[Any] = [MemoryEndpoint("one", server, Way())]
    async with asynclock.connect(*places, **SETTINGS) as locks:
        leases = [await locks.lock(f"a{number}").acquire() for number in range(101)]
        renew_now(locks)
        await until(lambda: sum(map(len, renewals(server))) >= 101)
        assert sorted(map(len, renewals(server))) == [1, 100]
        assert all(lease.held for lease in leases)


@in_virtual_time
async def test_each_lease_of_a_cluster_is_renewed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a command must be in one slot, also if one server has both slots."""
    cluster = VirtualCluster(monkeypatch, primaries=1)
    (server,) = cluster.primaries
    async with connect_cluster(cluster) as locks:
        leases = [await locks.lock(name).acquire() for name in "ab"]
        renew_now(locks)
        await until(lambda: sum(map(len, renewals(server))) >= 2)
        assert sorted(map(len, renewals(server))) == [1, 1]
        assert all(lease.held for lease in leases)


@in_virtual_time
async def test_a_cluster_keeps_no_record_of_the_fleets_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key of the record would be on one server of it."""
    cluster = VirtualCluster(monkeypatch)
    async with connect_cluster(cluster) as locks, locks.lock(name_on(1)):
        assert [server.asked_for("HMGET") for server in cluster.primaries] == [[], [], []]
    server = alone(monkeypatch)
    for acks in (0, 1):
        server.asked.clear()
        async with asynclock.connect(URL, acks=acks, restart_guard=False, **SETTINGS) as locks:
            await locks.ready()
            assert server.asked_for("HMGET"), "others do"


@in_virtual_time
async def test_a_node_has_its_timeout_also_on_a_connection_that_took_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attempts to connect get more time after each that failed."""
    server = alone(monkeypatch)
    server.freeze()
    async with asynclock.connect(URL, **{**SETTINGS, "node_timeout": 0.25}) as locks:
        await locks.ready()
        await asyncio.sleep(5)
        server.thaw()
        await until(lambda: locks.nodes()[0].state == "up")
        server.freeze()
        began = _clock.now()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock("a").try_acquire()
        assert _clock.now() - began == pytest.approx(0.25, abs=0.05)


def mute(patch: pytest.MonkeyPatch, speaking: Mapping[str, Server] | None = None) -> None:
    """Let every host take connections and then be silent, except for those that are `speaking`."""

    async def taken(_found: object) -> None:
        pass

    async def some(make: Callable[[], Any], *, server_hostname: str, **_more: Any) -> Any:
        server = (speaking or {}).get(server_hostname)
        if server is None:
            await asyncio.Event().wait()
        return None, await server.open(make)

    patch.setattr(Endpoint, "look_up", known)
    patch.setattr(endpoint, "first_to_answer", taken)
    patch.setattr(asyncio.get_running_loop(), "create_connection", some)


@pytest.mark.parametrize("acks", [0, 1])
@in_virtual_time
async def test_a_port_that_does_not_speak_tls_is_told_from_a_server_that_is_down(
    monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    mute(monkeypatch)
    locks = asynclock.connect("rediss://h", acks=acks, **SETTINGS)
    with pytest.raises(asynclock.QuorumUnavailableError, match="does this port speak TLS"):
        await locks.lock("a").try_acquire()  # which waits for as long as the first attempt
    await locks.aclose()


@pytest.mark.parametrize("names_itself", [True, False])
@in_virtual_time
async def test_a_durable_server_that_does_not_name_its_process_is_used(
    monkeypatch: pytest.MonkeyPatch, names_itself: bool
) -> None:
    server = alone(monkeypatch)
    server.durable = True
    if not names_itself:
        said = b"aof_enabled:1\r\nuptime_in_seconds:5000\r\nrole:master\r\n"
        server.instead[b"INFO"] = lambda _words: said
    async with asynclock.connect(URL, **SETTINGS) as locks, locks.lock("a", timeout=2):
        assert (await server.command("GET", MARK) is None) is not names_itself


# ---- what Sentinels tell, and what a primary is asked


def behind_sentinels(service: VirtualService, **settings: Any) -> asynclock.LockManager:
    return asynclock.connect(service.url, **{**SETTINGS, "restart_guard": False, **settings})


@in_virtual_time
async def test_a_demoted_primary_without_replicas_is_no_mistake_while_sentinels_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    old, new = service.servers
    old.info["role"] = "slave"
    service.name(old, epoch=1, replicas={})
    async with behind_sentinels(service) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match="it is a replica"):
            await locks.lock("a").acquire(timeout=3)
        service.name(new, epoch=2)
        async with locks.lock("a", timeout=10):
            pass


@in_virtual_time
async def test_an_address_that_led_to_a_primary_once_may_do_so_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The address of a managed service moves to the next primary, without anybody who says so."""
    server = alone(monkeypatch)
    async with asynclock.connect(URL, acks=1, restart_guard=False, **SETTINGS) as locks:
        async with locks.lock("a"):
            pass
        server.info["role"] = "slave"
        server.cut()
        await asyncio.sleep(1)
        with pytest.raises(asynclock.QuorumUnavailableError, match="it is a replica"):
            await locks.lock("a").acquire(timeout=3)
        server.info["role"] = "master"
        async with locks.lock("a", timeout=10):
            pass


@in_virtual_time
async def test_grants_that_need_no_acknowledgement_wait_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    async with behind_sentinels(service) as locks, locks.lock("a"):
        assert service.servers[0].asked_for("WAIT") == []
        link = locks._engine.multiplexer.nodes[0].takes_batches
        assert link, "and several names share a command"


@pytest.mark.parametrize("sentinels", [False, True])
@in_virtual_time
async def test_replicas_have_half_a_node_timeout_also_after_attempts_that_took_longer(
    monkeypatch: pytest.MonkeyPatch, sentinels: bool
) -> None:
    service = VirtualService(monkeypatch)
    server = service.servers[0]
    server.info["connected_slaves"] = 1
    server.freeze()
    url = service.url if sentinels else URL
    async with asynclock.connect(url, acks=1, restart_guard=False, **SETTINGS) as locks:
        await locks.ready()
        await asyncio.sleep(5)
        server.thaw()
        async with locks.lock("a", timeout=10):
            assert server.asked_for("WAIT")[-1] == (b"WAIT", b"1", b"500")


@in_virtual_time
async def test_the_number_of_replicas_comes_from_those_who_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The primary itself may have lost some; a primary that nobody watches is asked for it."""
    service = VirtualService(monkeypatch)
    primary = service.servers[0]
    others = {Server(f"p{n}", 6379): "slave" for n in (1, 8, 9)}
    service.name(primary, epoch=1, replicas=others)
    primary.info["connected_slaves"] = 1
    service.acknowledge(3)
    for url, needed, asks in ((service.url, b"2", False), (URL, b"1", True)):
        primary.asked.clear()
        settings = {"acks": "majority", "restart_guard": False, **SETTINGS}
        async with asynclock.connect(url, **settings) as locks, locks.lock("a"):
            assert primary.asked_for("WAIT")[0][1] == needed
            assert bool(primary.asked_for("INFO", "replication")) is asks


@in_virtual_time
async def test_a_primary_that_does_not_name_its_process_grants_without_a_roster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    service.servers[0].instead[b"INFO"] = lambda _words: ReplyError("NOPERM no right to INFO")
    settings: dict[str, Any] = {"acks": "all", "ttl": 50.0, "max_ttl": 100.0}
    async with behind_sentinels(service, **settings) as locks, locks.lock("a", timeout=5):
        await asyncio.sleep(5)
        assert locks.nodes()[0].state == "up"


@pytest.mark.parametrize("acks", [0, 1])
@in_virtual_time
async def test_a_server_that_falls_silent_is_stalled_and_then_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, acks: int
) -> None:
    server = alone(monkeypatch)
    async with asynclock.connect(URL, acks=acks, restart_guard=False, **SETTINGS) as locks:
        async with locks.lock("a"):
            pass
        server.freeze()
        with pytest.raises(asynclock.QuorumUnavailableError, match="no answer within 1 s"):
            await locks.lock("a").try_acquire()
        assert locks.nodes()[0].state == "stalled"
        with pytest.raises(asynclock.QuorumUnavailableError, match=r"no answer for 0\.0 s"):
            await locks.lock("a").try_acquire()
        await asyncio.sleep(4.5)
        assert locks.nodes()[0].state == "down"
    assert any(re.search(r"down: no answer for [45]\.\d s", one.message) for one in caplog.records)


@pytest.mark.parametrize("seconds", [0.25, 0.5])
@in_virtual_time
async def test_a_server_that_cannot_be_reached_is_waited_for_as_long_as_is_said(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    alone(monkeypatch).freeze()
    settings = {**SETTINGS, "node_timeout": seconds}
    async with asynclock.connect(URL, **settings) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match=f"within {seconds} s"):
            await locks.lock("a").try_acquire()


@in_virtual_time
async def test_a_primary_behind_sentinels_that_does_not_speak_tls_is_told_from_one_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = VirtualService(monkeypatch)
    monkeypatch.undo()
    speaking = {one.host: one for one in service.sentinels}

    mute(monkeypatch, speaking)
    locks = asynclock.connect(service.url.replace("redis", "rediss"), **SETTINGS)
    with pytest.raises(asynclock.QuorumUnavailableError, match="does this port speak TLS"):
        await locks.lock("a").try_acquire()
    await locks.aclose()


@in_virtual_time
async def test_a_durable_server_that_cannot_be_marked_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = alone(monkeypatch)
    server.durable = True
    server.instead[b"EVALSHA"] = unmarked(server)
    async with asynclock.connect(URL, **SETTINGS) as locks, locks.lock("a", timeout=2):
        assert await server.command("GET", MARK) is None


@in_virtual_time
async def test_no_grant_counts_for_all_replicas_without_the_mark_that_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may believe an heir that this client's grants did not wait for."""
    service = VirtualService(monkeypatch)
    primary = service.servers[0]
    primary.instead[b"EVALSHA"] = unmarked(primary)
    settings: dict[str, Any] = {"acks": "all", "ttl": 50.0, "max_ttl": 100.0}
    async with behind_sentinels(service, **settings) as locks:
        with pytest.raises(asynclock.QuorumUnavailableError, match="mark"):
            await locks.lock("a").try_acquire()


def unmarked(server: Server) -> Callable[[Any], Any]:
    """Return what a server replies to scripts that has no memory for a mark."""
    full = ReplyError("OOM command not allowed when used memory > 'maxmemory'")
    return lambda words: full if words[3] == MARK.encode() else server.answer(None, words)
