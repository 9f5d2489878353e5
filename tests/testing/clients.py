"""A client by hand, of a node in memory or of a server: what arrives, and how it ends."""

import asyncio
import contextvars
from typing import Any

import hiredis

from asynclock.testing import LocalServer
from asynclock.testing.memory import MemoryNode, Route
from asynclock.testing.memory.commands import ReplyError
from tests.waiting import PATIENCE

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="nobody")


class Client(asyncio.Protocol):
    """A connection: the replies and the pushes that arrived on it, and how it ended."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=ReplyError)
        self.transport: Any = None
        self.got: list[Any] = []
        self.pushed: list[Any] = []
        self.ends: list[Exception | None] = []
        self.contexts: set[str] = set()
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.contexts.add(VARIABLE.get())
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            pushed = isinstance(reply, hiredis.PushNotification)
            (self.pushed if pushed else self.got).append(list(reply) if pushed else reply)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)

    def send(self, *words: Any) -> None:
        packed: Any = hiredis.pack_command(words)  # type: ignore[arg-type]  # any number of words
        self.transport.write(packed)

    async def ask(self, *words: Any) -> Any:
        """Send a command and return its reply."""
        self.got.clear()
        self.send(*words)
        async with asyncio.timeout(PATIENCE):
            while not self.got:
                self._news.clear()
                await self._news.wait()
        return self.got[0]

    async def told(self) -> list[Any]:
        """Return what was pushed since the last call: the keys that changed, or a flush."""
        await self.ask("PING")
        pushed, self.pushed = self.pushed, []
        assert all(kind == b"invalidate" for kind, _ in pushed)
        return [keys and keys[0].decode() for _, keys in pushed]

    async def watch(self, *words: Any) -> None:
        """Send a command, and watch the keys that it reads."""
        await self.ask("CLIENT", "CACHING", "YES")
        await self.ask(*words)


async def client_of(
    node: MemoryNode | LocalServer, route: Route | None = None, *, watches: bool = False
) -> Client:
    """Open a connection; watches: that of a client which asks to be told of changes."""
    if isinstance(node, MemoryNode):
        client = await node.open(Client, route)
    else:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, node.host, node.port)
    if watches:
        await client.ask("HELLO", "3")
        await client.ask("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
    return client


async def settled() -> None:
    """Let everything happen that is due now."""
    await asyncio.sleep(0.0001)
