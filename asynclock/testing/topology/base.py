"""One server, or several without replicas; `until`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Self, Unpack

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing.servers.local import LocalServer, ServerOptions, ServerReplyError

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


# ---- A primary with replicas ---------------------------------------------------------------------


# Without these settings, timers of several seconds delay the first synchronization of a replica.
REPLICATION = (
    *("--repl-diskless-sync", "yes"),
    *("--repl-diskless-sync-delay", "0"),
    *("--repl-ping-replica-period", "1"),
)


class Replicated(Topology):
    """A primary with replicas; `addresses` is the URL of the present primary.

    There is no watcher: `fail_over` does by hand what an operator would do.
    """

    def __init__(self, replicas: int = 2, **options: Unpack[ServerOptions]) -> None:
        options["args"] = [*REPLICATION, *options.get("args", ())]
        if options.get("unix"):
            raise UnsupportedDeploymentError("replicas reach their primary by TCP only")
        super().__init__(1 + replicas, **options)
        self.primary: LocalServer = self.servers[0]
        """The present primary, as far as this object itself has failed over."""

    @property
    def replicas(self) -> list[LocalServer]:
        """All other servers, dead or alive."""
        return [server for server in self.servers if server is not self.primary]

    @property
    def addresses(self) -> list[str]:
        """The URL of the primary."""
        return [self.primary.url]

    async def _arrange(self) -> None:
        await asyncio.gather(*(follow(replica, self.primary) for replica in self.replicas))

    async def ready(self) -> None:
        """Wait until every running replica has all of the primary's data and acknowledges it."""
        await in_sync(self.primary, [replica for replica in self.replicas if runs(replica)])

    async def fail_over(self, *, kill: bool = True) -> LocalServer:
        """Promote the first running replica and make the others follow it."""
        if kill:
            await self.primary.kill()
        self.primary = next(replica for replica in self.replicas if runs(replica))
        await self.primary.command("REPLICAOF", "NO", "ONE")
        for replica in self.replicas:
            if runs(replica):
                await follow(replica, self.primary)
        await self.ready()
        return self.primary


def runs(server: LocalServer) -> bool:
    """Return whether a server runs and isn't frozen."""
    return server.alive and not server.frozen


async def follow(replica: LocalServer, primary: LocalServer) -> None:
    """Make one server a replica of the other; does nothing if it is one."""
    await replica.command("REPLICAOF", primary.host, primary.port)


async def in_sync(primary: LocalServer, replicas: list[LocalServer]) -> None:
    """Wait until all these replicas have the primary's present data, and the primary knows it."""

    async def complete() -> bool:
        reached = int(await _replication(primary, "master_repl_offset"))
        for replica in replicas:
            if await _replication(replica, "master_port") != str(primary.port):
                return False
            if await _replication(replica, "master_link_status") != "up":
                return False
            if int(await _replication(replica, "slave_repl_offset")) < reached:
                return False
        # Without a write before it, WAIT returns at once, with the number of connected replicas.
        count: int = await primary.command("WAIT", len(replicas), 1000)
        return count >= len(replicas)

    await until(complete, f"{len(replicas)} replicas in sync with {primary}")


async def _replication(server: LocalServer, field: str) -> str:
    for line in (await server.command("INFO", "replication")).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return str(value)
    return "-1"
