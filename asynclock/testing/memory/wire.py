"""Carries bytes between a link and an in-memory node, in order and with the delay of a route."""

from __future__ import annotations

import asyncio
import collections
import contextvars
from collections.abc import Callable
from typing import Any

from asynclock.testing.memory.keyspace import ReplyError, StatusReply


class Route:
    """The route between one client and one node; this one has no delay and never fails."""

    def delay(self) -> float:
        """Return the delay of the next piece in seconds; pieces of one direction stay in order."""
        return 0.0

    def admit(self, stream: Stream, data: bytes) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether an arrived piece may be delivered; if not, call `stream.pump` later."""
        return True


class Stream:
    """One direction of a connection, which keeps the order of bytes on every route."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        route: Route,
        deliver: Callable[[bytes], None],
        context: contextvars.Context,
    ) -> None:
        self.loop = loop
        self.context = context
        self._deliver = deliver
        self._route = route
        self._on_the_way: collections.deque[bytes] = collections.deque()
        self._arrived = 0

    def send(self, data: bytes) -> None:
        """Send `data`; empty data means the end of the connection."""
        self._on_the_way.append(data)
        delay = self._route.delay()
        if delay:
            self.loop.call_later(delay, self._arrive, context=self.context)
        else:
            self.loop.call_soon(self._arrive, context=self.context)

    def _arrive(self) -> None:
        # One more piece may be delivered; it is always the first one.
        self._arrived += 1
        self.pump()

    def pump(self) -> None:
        """Deliver the pieces that have arrived, as far as the route allows."""
        while self._arrived and self._route.admit(self, self._on_the_way[0]):
            self._arrived -= 1
            self._deliver(self._on_the_way.popleft())


class MemoryTransport(asyncio.Transport):
    """The client's end of a connection; a `Link` uses it as its transport."""

    def __init__(self, protocol: asyncio.Protocol, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._protocol = protocol
        self._send = send
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the node."""
        if not self._closed and data:
            self._send(bytes(data))

    def is_closing(self) -> bool:
        """Return whether either side has closed the connection."""
        return self._closed

    def close(self) -> None:
        """Hang up; bytes that were written are still delivered."""
        if not self._closed:
            self._send(b"")
            self.lost(None)

    def abort(self) -> None:
        """Hang up like `close`: a kernel also delivers what was written before an abort."""
        self.close()

    def received(self, data: bytes) -> None:
        """Take bytes from the node; no bytes mean that it has hung up."""
        if not self._closed:
            if data:
                self._protocol.data_received(data)
            else:
                self.lost(ConnectionResetError("reset by the node"))

    def lost(self, error: Exception | None) -> None:
        """Note that the connection has ended."""
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.connection_lost, error)


class Push(list[Any]):
    """A message that a node sends without a request."""


def encode(reply: Any) -> bytes:
    """Encode a reply as RESP3."""
    kind = type(reply)
    if kind is int:
        return b":%d\r\n" % reply
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, StatusReply):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, ReplyError):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, dict):
        pairs = b"".join(encode(word) for pair in reply.items() for word in pair)
        return b"%%%d\r\n%b" % (len(reply), pairs)
    mark = b">" if isinstance(reply, Push) else b"*"
    return b"%b%d\r\n%b" % (mark, len(reply), b"".join(map(encode, reply)))
