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
from typing import Unpack

from asynclock.testing.servers.local import LocalServer
from asynclock.testing.servers.settings import ServerOptions


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
