"""The node's end of a connection without a socket."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from typing import Any, Protocol

import hiredis

from asynclock.testing.memory.keyspace import Words
from asynclock.testing.memory.wire import MemoryTransport, Push, Route, Stream, encode


class Server(Protocol):
    """The node behind a connection."""

    def arrived(self, client: MemoryClient, data: bytes, /) -> None:
        """Take bytes from a client."""

    def left(self, client: MemoryClient, /) -> None:
        """Note that the connection has ended."""

    def answer(self, client: MemoryClient, words: Words, /) -> Any:
        """Execute one command; return its reply, which may be an error."""


class MemoryClient:
    """One connection, from the node's side."""

    def __init__(self, node: Server, protocol: asyncio.Protocol, route: Route) -> None:
        loop = asyncio.get_running_loop()
        self._node = node
        self._reader = hiredis.Reader()
        self.tracking = self.caching = False
        self.life = 0
        """The number of the node's process that this is connected to."""
        # Requests travel in an empty context; replies arrive in the context of the client.
        requests = Stream(loop, route, self._arrived, contextvars.Context())
        self.transport: MemoryTransport = MemoryTransport(protocol, requests.send)
        self._replies = Stream(loop, route, self.transport.received, contextvars.copy_context())
        self._over = False

    def _arrived(self, data: bytes) -> None:
        self._node.arrived(self, data)

    def received(self, data: bytes) -> None:
        """Execute requests, even if the client has disconnected by then, as a server does."""
        if not data:
            self._over = True
            self._node.left(self)
            return
        self._reader.feed(data)
        replies = []
        while (words := self._reader.gets()) is not False:
            replies.append(encode(self._node.answer(self, tuple(words))))
        if replies and not self._over:
            self._replies.send(b"".join(replies))

    def push(self, words: Sequence[Any]) -> None:
        """Send the client a message without a request."""
        if not self._over:
            self._replies.send(encode(Push(words)))

    def hang_up(self) -> None:
        """Break the connection from the node's side."""
        if not self._over:
            self._over = True
            self._node.left(self)
            self._replies.send(b"")
