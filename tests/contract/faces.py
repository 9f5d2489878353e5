"""The deployments that tests run on, each healthy and hurt.

A Face is what a test sees of one: addresses for `connect`, and a way to reach behind the back of
the library. Whatever passes here on one face must pass on all.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from asynclock.testing import LocalServer, memory_node
from asynclock.testing.plugin import StartServers
from tests.waiting import becomes

KEYS_GONE_WITHIN = 10.0
"""Seconds that releases may take on a loaded machine."""


@dataclass
class Face:
    """One deployment in one state."""

    name: str
    addresses: list[Any]
    servers: list[LocalServer]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def well(self) -> list[LocalServer]:
        """Those that answer."""
        return [server for server in self.servers if server.alive and not server.frozen]

    async def command(self, *words: str) -> list[Any]:
        """Say the same to every server that can hear it, behind the library's back."""
        return [await server.command(*words) for server in self.well]

    async def keys(self) -> set[str]:
        """Lock keys that are left anywhere (counters stay by design)."""
        found = {key for keys in await self.command("KEYS", "*") for key in keys}
        return {key for key in found if not key.endswith((":#fence", ":#primary", ":#witness"))}

    async def delete(self) -> None:
        """Delete the keys of all leases, as somebody with redis-cli may do."""
        for server in self.well:
            for key in await self.keys() & set(await server.command("KEYS", "*")):
                await server.command("DEL", key)

    async def empty(self, *allowed: str) -> None:
        """Wait until only keys with these endings are left: other keys must not go by expiring."""

        async def others() -> set[str]:
            return {key for key in await self.keys() if not key.endswith(allowed or ("\0",))}

        await becomes(others, set(), timeout=KEYS_GONE_WITHIN, every=0.02)


Setting = Callable[[StartServers], contextlib.AbstractAsyncContextManager[Face]]


RESP2 = ("--rename-command", "HELLO", "")
"""Arguments of a server that speaks RESP2 only."""


def masters(n: int, hurt: str = "up") -> Setting:
    """N independent masters; one of them may be dead or frozen, or all speak RESP2 only."""

    @contextlib.asynccontextmanager
    async def setting(start: StartServers) -> AsyncIterator[Face]:
        servers = await start(n, **({"args": RESP2} if hurt == "resp2" else {}))
        if hurt == "dead":
            await servers[-1].kill()
        elif hurt == "frozen":
            await servers[-1].freeze()
        yield Face(f"{n}-{hurt}", [server.url for server in servers], servers)

    return setting


def in_memory(n: int) -> Setting:
    """N nodes without a server."""

    @contextlib.asynccontextmanager
    async def setting(_start: StartServers) -> AsyncIterator[Face]:
        nodes: list[Any] = [memory_node(name) for name in "abcde"[:n]]
        yield Face(f"{n}-memory", [f"memory://{node.name}" for node in nodes], nodes)

    return setting


FACES: dict[str, Setting] = {
    "1-up": masters(1),
    "1-resp2": masters(1, "resp2"),
    "3-up": masters(3),
    "3-dead": masters(3, "dead"),
    "3-frozen": masters(3, "frozen"),
    "5-up": masters(5),
    "5-dead": masters(5, "dead"),
    "5-frozen": masters(5, "frozen"),
    "1-memory": in_memory(1),
    "3-memory": in_memory(3),
}
