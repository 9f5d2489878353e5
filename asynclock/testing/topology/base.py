"""One server, or several without replicas; `until`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Self, Unpack

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing.servers.local import LocalServer
from asynclock.testing.servers.resp import ServerReplyError
from asynclock.testing.servers.settings import ServerOptions

_TIMEOUT = 30.0  # seconds until a condition counts as never met


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, *, timeout: float = _TIMEOUT
) -> None:
    """Call `condition` until it holds; an unreachable server counts as False.

    Raises TimeoutError after `timeout` seconds, with what never happened.
    """
    try:
        async with asyncio.timeout(timeout):
            while True:
                with contextlib.suppress(OSError, ServerReplyError):
                    if await condition():
                        return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout} s: {what}") from None


class Topology:
    """Servers of one deployment; the options are those of `LocalServer`, for each server."""

    _server: ClassVar[type[LocalServer]] = LocalServer

    def __init__(self, n: int, **options: Unpack[ServerOptions]) -> None:
        self.servers: list[LocalServer] = [self._server(**options) for _ in range(n)]
        """The servers that have data (no Sentinels)."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.servers}>"

    @property
    def addresses(self) -> list[str]:
        """The addresses for `asynclock.connect`."""
        return [server.url for server in self.servers]

    async def ready(self) -> None:
        """Wait until the deployment is ready. Raises TimeoutError with what isn't."""

    async def fail_over(self, *, kill: bool = True) -> LocalServer:  # noqa: ARG002 - for subclasses
        """Make a replica the primary and return it, once all servers agree.

        kill: kill the primary, which stays dead until `repair`; if False, fail over in an orderly
        way. Raises UnsupportedDeploymentError if there are no replicas.
        """
        raise UnsupportedDeploymentError(f"{type(self).__name__} has no replica to fail over to")

    async def repair(self) -> None:
        """Thaw frozen servers, start dead ones (with their data if `aof`), wait until ready."""
        await self._launch(self.servers)
        await self._arrange()
        await self.ready()

    async def _arrange(self) -> None:
        """Configure the roles of the servers."""

    async def _launch(self, servers: list[LocalServer]) -> None:
        for server in servers:
            if server.frozen:
                await server.thaw()
        starts = (server.start() for server in servers)
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if outcome:
                raise outcome

    def close(self) -> None:
        """Kill all servers; works without an event loop."""
        for server in self.servers:
            server.close()

    async def __aenter__(self) -> Self:
        try:
            await self.repair()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Single(Topology):
    """One server without replicas, for `connect` with one address."""

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        super().__init__(1, **options)


class Quorum(Topology):
    """`n` independent primaries: the nodes of a quorum."""

    def __init__(self, n: int = 3, **options: Unpack[ServerOptions]) -> None:
        super().__init__(n, **options)
