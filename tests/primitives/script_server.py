"""A server in memory that executes single calls of scripts, at times that a test chooses."""

from __future__ import annotations

from typing import Any

from asynclock._nodes.script import Script
from asynclock.testing.memory import MemoryNode

DAY = 24 * 3600_000
"""Milliseconds that tests of a script let counters live."""
TTL = 60_000
"""Milliseconds that tests of a script let locks live."""


class Node(MemoryNode):
    """Remembers which keys its scripts have written: a client that tracks one is told each time."""

    def __init__(self) -> None:
        self.written: list[str] = []
        super().__init__(clock=lambda: 1_700_000_000.123)

    def _changed(self, key: bytes) -> None:
        self.written.append(key.decode())
        super()._changed(key)


class Server:
    """A server in memory whose clock the test moves."""

    def __init__(self) -> None:
        self.node = Node()

    async def call(self, script: Script, keys: str, *args: Any) -> list[Any]:
        """The reply without the clock at its end."""
        found = keys.split()
        reply: list[Any] = await self.node.command("EVAL", script.source, len(found), *found, *args)
        return reply[:-1]

    async def acquire(self, script: Script, keys: str, owner: str, *more: Any, **at: int) -> Any:
        """Build the request like the engine."""
        args = ("acquire", owner, TTL, at.get("floor", 5), at.get("not_after", 0), DAY)
        return await self.call(script, keys, *args, *more)

    def now(self) -> int:
        """Its time in microseconds."""
        return int(self.node.wall() * 1_000_000)

    async def get(self, key: str) -> Any:
        """What stands under a key."""
        return await self.node.command("GET", key)

    async def left(self, key: str) -> int:
        """The milliseconds until a key expires."""
        return int(await self.node.command("PTTL", key))

    async def order(self, queue: str = "q") -> list[str]:
        """The tickets in a queue."""
        tickets: list[str] = await self.node.command("ZRANGE", queue, 0, -1)
        return tickets
