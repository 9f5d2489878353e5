"""Deployments of local servers behind one interface: single, quorum and replicated.

    async with SentinelGroup(replicas=2) as deployment:
        locks = asynclock.connect(*deployment.addresses, acks=1)
        await deployment.fail_over()

An `async with` block begins when the deployment is ready: replicas attached and in sync, sentinels
and cluster nodes agreed. Nothing is left behind at its end, whatever was killed or frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Self, Unpack

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing._resp import ServerReplyError
from asynclock.testing._settings import ServerOptions
from asynclock.testing.servers import LocalServer

__all__ = [
    "REPLICATION",
    "Quorum",
    "Replicated",
    "Single",
    "Topology",
    "follow",
    "in_sync",
    "runs",
    "until",
]

# Without these a replica waits for timers of several seconds before it is fed, and seen to be.
REPLICATION = (
    *("--repl-diskless-sync", "yes"),
    *("--repl-diskless-sync-delay", "0"),
    *("--repl-ping-replica-period", "1"),
)
_PATIENCE = 30.0


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, *, timeout: float = _PATIENCE
) -> None:
    """Ask until `condition` holds; servers that cannot be asked yet count as no.

    Raises TimeoutError, saying what never happened, after `timeout` seconds.
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
    """Servers that belong together; the options are those of `LocalServer`, for each of them."""

    _server: ClassVar[type[LocalServer]] = LocalServer

    def __init__(self, n: int, **options: Unpack[ServerOptions]) -> None:
        self.servers: list[LocalServer] = [self._server(**options) for _ in range(n)]
        """The servers that hold data (no sentinels)."""

    @property
    def addresses(self) -> list[str]:
        """What one passes to `asynclock.connect`."""
        return [server.url for server in self.servers]

    async def ready(self) -> None:
        """Wait until everything is as it should be; TimeoutError says what is not."""

    async def fail_over(self, *, kill: bool = True) -> LocalServer:
        """Let a replica become primary and return it, once everybody agrees.

        kill: by SIGKILL of the primary, which stays dead until `repair`; False: in an orderly way.
        Raises UnsupportedDeploymentError where there is nothing to fail over to.
        """
        raise UnsupportedDeploymentError(f"{type(self).__name__} has no replica to fail over to")

    async def repair(self) -> None:
        """Thaw what is frozen, start what is dead (with what `aof` has kept), wait until ready."""
        await self._launch(self.servers)
        await self._arrange()
        await self.ready()

    async def _arrange(self) -> None:
        """Tell the servers what they are to each other."""

    async def _launch(self, servers: list[LocalServer]) -> None:
        for server in servers:
            if server.frozen:
                await server.thaw()
        starts = (server.start() for server in servers)
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if outcome:
                raise outcome

    def close(self) -> None:
        """Kill everything; works without an event loop."""
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
    """One server."""

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        super().__init__(1, **options)


class Quorum(Topology):
    """`n` independent primaries."""

    def __init__(self, n: int = 3, **options: Unpack[ServerOptions]) -> None:
        super().__init__(n, **options)


class Replicated(Topology):
    """A primary with replicas; `addresses` is the primary's URL, after a failover the new one's.

    Nobody watches them: `fail_over` does by hand what an operator would.
    """

    def __init__(self, replicas: int = 2, **options: Unpack[ServerOptions]) -> None:
        options["args"] = [*REPLICATION, *options.get("args", ())]
        if options.get("unix"):
            raise UnsupportedDeploymentError("replicas reach their primary by TCP only")
        super().__init__(1 + replicas, **options)
        self.primary = self.servers[0]
        """The server that is primary now, as far as this object has brought it about."""

    @property
    def replicas(self) -> list[LocalServer]:
        """The others, dead or alive."""
        return [server for server in self.servers if server is not self.primary]

    @property
    def addresses(self) -> list[str]:
        """The URL of the primary."""
        return [self.primary.url]

    async def _arrange(self) -> None:
        await asyncio.gather(*(follow(replica, self.primary) for replica in self.replicas))

    async def ready(self) -> None:
        """Wait until every replica that runs has all of the primary's data and acknowledges."""
        await in_sync(self.primary, [replica for replica in self.replicas if runs(replica)])

    async def fail_over(self, *, kill: bool = True) -> LocalServer:
        """Promote the first replica that runs and let the others follow it."""
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
    """Whether it can be expected to answer."""
    return server.alive and not server.frozen


async def follow(replica: LocalServer, primary: LocalServer) -> None:
    """Make one server a replica of the other; done at once if it is."""
    await replica.command("REPLICAOF", primary.host, primary.port)


async def in_sync(primary: LocalServer, replicas: list[LocalServer]) -> None:
    """Wait until all these replicas hold what the primary has now, and it counts on each."""

    async def complete() -> bool:
        reached = int(await _replication(primary, "master_repl_offset"))
        for replica in replicas:
            if await _replication(replica, "master_port") != str(primary.port):
                return False
            if await _replication(replica, "master_link_status") != "up":
                return False
            if int(await _replication(replica, "slave_repl_offset")) < reached:
                return False
        # A connection that has written nothing waits for nothing, but it counts who is attached.
        count: int = await primary.command("WAIT", len(replicas), 1000)
        return count >= len(replicas)

    await until(complete, f"{len(replicas)} replicas in sync with {primary.url}")


async def _replication(server: LocalServer, field: str) -> str:
    for line in (await server.command("INFO", "replication")).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return str(value)
    return "-1"
