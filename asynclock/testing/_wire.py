"""How bytes travel between a link and an in-memory node: in order, and as late as a route says."""

from __future__ import annotations

import asyncio
import collections
import contextvars
from collections.abc import Callable
from typing import Any

from asynclock.testing._keyspace import ReplyError, Status

__all__ = ["MemoryTransport", "Push", "Route", "Stream", "encode"]


class Route:
    """The way between one client and one node; this one takes no time and never fails."""

    def delay(self) -> float:
        """Seconds that the next piece takes; pieces of one direction never overtake."""
        return 0.0

    def admit(self, stream: Stream, data: bytes) -> bool:
        """Whether a piece that has arrived may be handed out now; else call `stream.pump` later."""
        return True


class Stream:
    """One direction of a connection: first in, first out, whatever the route does."""

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
        """Put `data` on its way; empty data is the news of an end."""
        self._on_the_way.append(data)
        delay = self._route.delay()
        if delay:
            self.loop.call_later(delay, self._arrive, context=self.context)
        else:
            self.loop.call_soon(self._arrive, context=self.context)

    def _arrive(self) -> None:
        # One more piece may be handed out; which one, is a matter of their order alone.
        self._arrived += 1
        self.pump()

    def pump(self) -> None:
        """Hand out what has arrived, as far as the route admits it."""
        while self._arrived and self._route.admit(self, self._on_the_way[0]):
            self._arrived -= 1
            self._deliver(self._on_the_way.popleft())


class MemoryTransport(asyncio.Transport):
    """A client's end of a connection: what a `Link` takes for a socket."""

    def __init__(self, protocol: asyncio.Protocol, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._protocol = protocol
        self._send = send
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        if not self._closed and data:
            self._send(bytes(data))

    def is_closing(self) -> bool:
        """Whether it has been closed, by either side."""
        return self._closed

    def close(self) -> None:
        """Hang up; what was written is on its way all the same."""
        if not self._closed:
            self._send(b"")
            self.lost(None)

    def abort(self) -> None:
        """The same: a socket's kernel has taken what was written too."""
        self.close()

    def received(self, data: bytes) -> None:
        """Bytes from the node; none: it has hung up."""
        if not self._closed:
            if data:
                self._protocol.data_received(data)
            else:
                self.lost(ConnectionResetError("reset by the node"))

    def lost(self, error: Exception | None) -> None:
        """The connection is over."""
        if not self._closed:
            self._closed = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.connection_lost, error)


class Push(list[Any]):
    """Something a node sends unasked."""


def encode(reply: Any) -> bytes:
    """A reply as RESP3."""
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, ReplyError):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, dict):
        pairs = b"".join(encode(word) for pair in reply.items() for word in pair)
        return b"%%%d\r\n%b" % (len(reply), pairs)
    mark = b">" if isinstance(reply, Push) else b"*"
    return b"%b%d\r\n%b" % (mark, len(reply), b"".join(map(encode, reply)))
