"""Clients with a connection class of their own: it is used, or refused, and never ignored."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection

import asynclock
from asynclock import blocking
from asynclock.testing import LocalServer, make_certificates
from asynclock.testing.plugin import StartServers
from tests.access.conftest import Connect
from tests.access.tls import tls_in_front
from tests.tables.inside import sentinels_name
from tests.waiting import go_through, until


class Tunnel(Connection):
    """Leads any address to one server, and counts how often."""

    end: LocalServer
    opened: int

    async def _connect(self) -> None:
        self.host, self.port = self.end.host, self.end.port
        type(self).opened += 1
        await super()._connect()


@pytest.fixture
async def server(asynclock_servers: StartServers) -> LocalServer:
    (server,) = await asynclock_servers(1, users=["app on >secret ~* &* +@all", "default off"])
    Tunnel.end, Tunnel.opened = server, 0
    return server


def client(own: type[Connection], **settings: Any) -> redis.asyncio.Redis:
    login = {"username": "app", "password": "secret"}
    nowhere = {"host": "127.0.0.1", "port": 1}
    pool = ConnectionPool(connection_class=own, **{**nowhere, **login, **settings})
    return redis.asyncio.Redis(connection_pool=pool)


async def test_a_tunnel_is_used_for_each_connection(server: LocalServer, connect: Connect) -> None:
    locks = connect(client(Tunnel), restart_guard=False)
    async with locks.lock("a", timeout=20) as lease:
        gc.collect()  # nothing that connects may close what it has connected
        await lease.extend()
        assert await server.command("GET", "asynclock:a") == lease.owner
        assert Tunnel.opened == 1
        await server.command("CLIENT", "KILL", "USER", "app")
        await until(lambda: locks.nodes()[0].state == "up" and Tunnel.opened == 2)
        await lease.extend()
    await locks.aclose()
    assert "user=app" not in await server.command("CLIENT", "LIST")


async def test_a_tunnel_leads_to_the_sentinels_primary(
    server: LocalServer, connect: Connect
) -> None:
    reached = []

    class Managed(SentinelManagedConnection):
        async def connect(self) -> None:
            reached.append((self.host, self.port))
            await Connection.connect(self)

    settings = {"connection_class": Managed, "username": "app", "password": "secret"}
    group = Sentinel([("127.0.0.1", 1)]).master_for("group", **settings)
    with sentinels_name(server.host, server.port):
        locks = connect(group, restart_guard=False)
        await go_through(locks.lock("a", timeout=20))
        await locks.aclose()
    assert set(reached) == {(server.host, server.port)}


async def test_the_name_in_a_certificate_is_checked_for_own_classes_too(
    server: LocalServer, connect: Connect, tmp_path: Path
) -> None:
    class Own(SSLConnection):
        def __init__(self, *, ssl_check_hostname: bool = False, **settings: Any) -> None:
            super().__init__(ssl_check_hostname=ssl_check_hostname, **settings)

    elsewhere = make_certificates(tmp_path, "elsewhere.test")
    async with tls_in_front(server, elsewhere) as (port, _names):
        settings = {"host": "localhost", "port": port, "ssl_ca_certs": str(elsewhere.ca)}
        locks = connect(client(Own, **settings), node_timeout=2)
        with pytest.raises(asynclock.QuorumUnavailableError, match="Own raised ConnectionError"):
            await locks.lock("a").try_acquire()
        await locks.aclose()
        if redis.VERSION[0] == 5:
            return  # which passes the same value on if the user says nothing: docs/access.md
        locks = connect(client(Own, **settings, ssl_check_hostname=False), restart_guard=False)
        await go_through(locks.lock("a", timeout=20))
        await locks.aclose()


async def test_a_tunnels_error_is_told_without_login(server: LocalServer, connect: Connect) -> None:
    locks = connect(client(Tunnel, password="canary"), node_timeout=2)
    words = "Tunnel raised AuthenticationError"
    with pytest.raises(asynclock.QuorumUnavailableError, match=words) as caught:
        await locks.lock("a").try_acquire()
    assert "canary" not in str(caught.value)
    await locks.aclose()


async def test_a_tunnel_that_never_opens_is_left_when_the_manager_closes(connect: Connect) -> None:
    class Stuck(Connection):
        async def _connect(self) -> None:
            await asyncio.sleep(60)

    locks = connect(client(Stuck), node_timeout=0.25)
    with pytest.raises(asynclock.QuorumUnavailableError, match="no connection within"):
        await locks.lock("a").try_acquire()
    async with asyncio.timeout(5):
        await locks.aclose()


async def test_a_class_that_leaves_no_transport_is_refused(connect: Connect) -> None:
    class Queued(Connection):
        async def connect(self) -> None:
            self._writer = None

    locks = connect(client(Queued), node_timeout=2)
    with pytest.raises(asynclock.ConfigurationError, match="class Queued"):
        await locks.lock("a").acquire(timeout=20)
    await locks.aclose()


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
def test_a_client_of_fakeredis_is_refused_with_the_address_for_tests(kind: str) -> None:
    made = {"__module__": "fakeredis.aioredis"}  # the classes of that library
    if kind == "asyncio":
        fake: Any = client(type("FakeConnection", (Connection,), made))
    else:
        own = type("FakeConnection", (redis.Connection,), made)
        fake = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=own))
    make: Any = asynclock.connect if kind == "asyncio" else blocking.connect
    with pytest.raises(asynclock.ConfigurationError, match="memory://"):
        make(fake)
