"""Starts several servers at once.

    async with local_servers(3) as servers:
        locks = asynclock.connect(*(server.url for server in servers))
        await servers[0].kill()

Each is a `LocalServer`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Unpack

from asynclock.testing.servers.local import LocalServer, ServerOptions, ask_all


@contextlib.asynccontextmanager
async def local_servers(
    n: int, **options: Unpack[ServerOptions]
) -> AsyncIterator[list[LocalServer]]:
    """Start servers at once; end all at the end.

    Args:
        n: number of servers.
        options: those of `LocalServer`.
    """
    servers = await start_servers(n, **options)
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


async def start_servers(n: int, **options: Unpack[ServerOptions]) -> list[LocalServer]:
    """Start servers at once; the caller closes them. If one fails, all are closed.

    Args:
        n: number of servers.
        options: those of `LocalServer`.
    """
    servers: list[LocalServer] = []
    try:
        for _ in range(n):
            servers.append(LocalServer(**options))  # noqa: PERF401 - if the next fails, close this
        starts = (server.start() for server in servers)
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if outcome:
                raise outcome  # noqa: TRY301 - closes the servers, as any other failure
    except BaseException:
        for server in servers:
            server.close()
        raise
    return servers


# ---- Keeps servers running between tests; every test gets them in their initial state ------------


_FORGET = (
    ("CLIENT", "UNPAUSE"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("FLUSHALL",),
    ("SCRIPT", "FLUSH"),
)
_IDENTITY = (("CONFIG", "GET", "*"), ("ACL", "LIST"))
_TIMEOUT = 2.0


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
        replies = await ask_all(server.endpoint, [*_FORGET, *_IDENTITY], timeout=_TIMEOUT)
        return replies[len(_FORGET) :]
