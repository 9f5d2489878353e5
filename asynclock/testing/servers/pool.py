"""Keeps servers running between tests; every test gets them in their initial state."""

from __future__ import annotations

import asyncio
from typing import Any

from asynclock.testing.servers.local import LocalServer
from asynclock.testing.servers.resp import ask_all
from asynclock.testing.servers.several import start_servers

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
