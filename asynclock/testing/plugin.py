"""pytest fixtures: a lock manager on real servers, and the servers, which a test may break.

    async def test_order_survives_a_dead_node(asynclock_locks, asynclock_nodes):
        await asynclock_nodes[0].kill()
        async with asynclock_locks.lock("orders:42"):
            ...

pytest finds this plugin if asynclock is installed. Without an installation, use
`-p asynclock.testing.plugin` (pytest refuses to load a plugin twice). The plugin works with
pytest-asyncio in auto and strict mode. It starts servers only when a test uses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

import pytest

if TYPE_CHECKING:
    from pytest import fixture as _async_fixture  # noqa: PT013 - its type, under the name below

    import asynclock
    from asynclock.testing.servers import LocalServer, ServerOptions

__all__ = ["StartServers", "asynclock_locks", "asynclock_nodes", "asynclock_servers"]

if not TYPE_CHECKING:
    try:
        from pytest_asyncio import fixture as _async_fixture
    except ImportError:  # then the plugin that runs async tests (anyio's) runs async fixtures too
        _async_fixture = pytest.fixture

T = TypeVar("T")

_OPTION = "--asynclock-server-binary"
_NODES = 3


class StartServers(Protocol):
    """The type of the fixture `asynclock_servers`."""

    async def __call__(self, n: int = 1, **options: Unpack[ServerOptions]) -> list[LocalServer]:
        """Start `n` servers with the options of `asynclock.testing.LocalServer`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("asynclock").addoption(
        _OPTION,
        metavar="PATH",
        help="the Redis or Valkey server that test servers run (default: the first one found)",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(_OPTION, default=None)
    if path is None:
        return
    from asynclock.errors import ConfigurationError
    from asynclock.testing.servers.process import CHOICE, ServerBinary

    try:
        binary = ServerBinary.at(path)
    except ConfigurationError as error:
        raise pytest.UsageError(f"{_OPTION}: {error}") from error
    environment = pytest.MonkeyPatch()
    environment.setenv(CHOICE, str(binary.path))
    config.add_cleanup(environment.undo)


@pytest.fixture(scope="session")
def _asynclock_warm_servers() -> Iterator[WarmServers]:
    pool = WarmServers()
    yield pool
    pool.close()


@pytest.fixture
def asynclock_nodes(_asynclock_warm_servers: WarmServers) -> Iterator[list[LocalServer]]:
    """Three empty local servers, running; a test may kill, freeze and configure them."""
    servers = _apart(lambda: _asynclock_warm_servers.take(_NODES))
    yield servers
    _asynclock_warm_servers.give_back(servers)


@pytest.fixture
def asynclock_servers(_asynclock_warm_servers: WarmServers) -> Iterator[StartServers]:
    """Return an async function `(n=1, **options)` that starts servers, which end with the test."""
    from asynclock.testing.servers import start_servers

    warm: list[LocalServer] = []
    own: list[LocalServer] = []

    async def start(n: int = 1, **options: Unpack[ServerOptions]) -> list[LocalServer]:
        started = await (
            start_servers(n, **options) if options else _asynclock_warm_servers.take(n)
        )
        (own if options else warm).extend(started)
        return started

    yield start
    _asynclock_warm_servers.give_back(warm)
    for server in own:
        server.close()


@_async_fixture
async def asynclock_locks(
    asynclock_nodes: list[LocalServer],
) -> AsyncIterator[asynclock.LockManager]:
    """Return a lock manager on the three servers of `asynclock_nodes`, closed after the test.

    Its restart guard is off, because the servers have just started and would not vote yet.
    """
    import asynclock

    locks = asynclock.connect(*(server.url for server in asynclock_nodes), restart_guard=False)
    try:
        yield locks
    finally:
        await locks.aclose()


def _apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run async work from a sync fixture, in a separate thread.

    In this thread `asyncio.run` would remove the current event loop that pytest-asyncio has set.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()


# ---- Keeps servers running between tests; every test gets them in their initial state ------------

_FORGET = (
    ("CLIENT", "UNPAUSE"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("FLUSHALL",),
    ("SCRIPT", "FLUSH"),
)
_IDENTITY = (("CONFIG", "GET", "*"), ("ACL", "LIST"))


class WarmServers:
    """Lends servers with default options to tests: lending takes 1 ms, a start 15 ms.

    The pool undoes what a test did to a server: it thaws the server and drops data, scripts and
    connections. A server that was stopped or configured differently is replaced.
    """

    def __init__(self) -> None:
        self._idle: list[LocalServer] = []
        self._as_made: dict[LocalServer, list[Any]] = {}

    async def take(self, n: int) -> list[LocalServer]:
        """Return `n` servers that no other test has."""
        candidates, self._idle = self._idle[:n], self._idle[n:]
        fit = await asyncio.gather(*map(self._is_as_made, candidates))
        servers = [server for server, ok in zip(candidates, fit, strict=True) if ok]
        for server in set(candidates).difference(servers):
            del self._as_made[server]
            server.close()
        from asynclock.testing.servers import start_servers

        fresh = await start_servers(n - len(servers))
        for server in fresh:
            self._as_made[server] = await self._renew(server)
        return servers + fresh

    def give_back(self, servers: list[LocalServer]) -> None:
        """Take servers back, in whatever state they are."""
        self._idle.extend(servers)

    def close(self) -> None:
        """End all servers of the pool."""
        for server in self._as_made:
            server.close()

    async def _is_as_made(self, server: LocalServer) -> bool:
        if not server.alive:
            return False
        await server.thaw()
        try:
            return await self._renew(server) == self._as_made[server]
        except OSError:
            return False

    async def _renew(self, server: LocalServer) -> list[Any]:
        from asynclock.testing.servers import ask_all

        replies = await ask_all(server.endpoint, [*_FORGET, *_IDENTITY])
        return replies[len(_FORGET) :]
