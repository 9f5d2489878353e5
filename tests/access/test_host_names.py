"""A certificate for another host is refused, also one that a trusted authority has signed."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis.asyncio
from redis.asyncio.connection import ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel

import asynclock
from asynclock.testing import Certificates, make_certificates
from asynclock.testing.plugin import StartServers
from tests.access.conftest import Connect
from tests.access.tls import tls_in_front
from tests.tables.inside import sentinels_name

REFUSED = "ostname mismatch"
REDIS_PY = ("installed", "5")


@pytest.fixture(params=REDIS_PY, autouse=True)
def redis_py(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed redis-py, and version 5, which does not check the host's name by default."""
    if request.param == "5":
        made = SSLConnection.__init__

        def init(self: SSLConnection, *, ssl_check_hostname: bool = False, **settings: object):
            made(self, ssl_check_hostname=ssl_check_hostname, **settings)

        monkeypatch.setattr(SSLConnection, "__init__", init)
        monkeypatch.setattr(redis, "VERSION", (5, 3, 1))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("elsewhere"), "elsewhere.test")


@pytest.fixture
async def port(asynclock_servers: StartServers, elsewhere: Certificates) -> AsyncIterator[int]:
    (server,) = await asynclock_servers()
    async with tls_in_front(server, elsewhere) as (port, _names):
        yield port


def client(port: int, ca: Path) -> redis.asyncio.Redis:
    unsaid = {"ssl_check_hostname": False} if redis.VERSION[0] == 5 else {}  # what 5 makes of it
    return redis.asyncio.Redis(port=port, ssl=True, ssl_ca_certs=str(ca), **unsaid)


def pooled(port: int, ca: Path) -> redis.asyncio.Redis:
    pool = ConnectionPool(connection_class=SSLConnection, port=port, ssl_ca_certs=str(ca))
    return redis.asyncio.Redis(connection_pool=pool)


WAYS: dict[str, Callable[[int, Path], object]] = {
    "url": lambda port, ca: f"rediss://localhost:{port}?ssl_ca_certs={ca}",
    "client": client,
    "pool": pooled,
    "client of a url": lambda port, ca: redis.asyncio.Redis.from_url(
        f"rediss://localhost:{port}?ssl_ca_certs={ca}"
    ),
    "sentinels": lambda port, ca: f"rediss+sentinel://localhost:{port}/group?ssl_ca_certs={ca}",
    "sentinels of a client": lambda port, ca: Sentinel(
        [("localhost", port)], sentinel_kwargs={"ssl": True, "ssl_ca_certs": str(ca)}
    ).master_for("group"),
    "cluster": lambda port, ca: f"rediss+cluster://localhost:{port}?ssl_ca_certs={ca}",
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_certificate_for_another_host_is_refused(
    connect: Connect, port: int, elsewhere: Certificates, way: str
) -> None:
    locks = connect(WAYS[way](port, elsewhere.ca), node_timeout=2)
    with pytest.raises(asynclock.ConfigurationError, match=REFUSED):
        await locks.lock("a").acquire(timeout=20)
    await locks.aclose()


@pytest.mark.parametrize("by_client", [False, True], ids=["url", "client"])
async def test_a_primary_with_a_certificate_for_another_host_is_refused(
    connect: Connect, port: int, elsewhere: Certificates, by_client: bool
) -> None:
    group: object = f"rediss+sentinel://127.0.0.1:1/group?ssl_ca_certs={elsewhere.ca}"
    if by_client:
        sentinel = Sentinel([("127.0.0.1", 1)])
        group = sentinel.master_for("group", ssl=True, ssl_ca_certs=str(elsewhere.ca))
    with sentinels_name("localhost", port):
        locks = connect(group, node_timeout=2)
        with pytest.raises(asynclock.ConfigurationError, match=REFUSED):
            await locks.lock("a").acquire(timeout=20)
        await locks.aclose()


OFF = ("ssl_check_hostname=false", "ssl_cert_reqs=none")


@pytest.mark.parametrize("word", OFF)
async def test_a_url_that_forgoes_the_check_gets_a_lock(
    connect: Connect, port: int, elsewhere: Certificates, word: str
) -> None:
    locks = connect(f"rediss://localhost:{port}?ssl_ca_certs={elsewhere.ca}&{word}")
    async with locks.lock("a", timeout=20):
        pass
    await locks.aclose()
