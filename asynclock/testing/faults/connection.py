"""One connection through a fault proxy: two sockets and the bytes in transit between them."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

_REQUESTS, _REPLIES = 0, 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What the proxy does to bytes; pairs are (requests, replies)."""

    delays: tuple[float, float] = (0.0, 0.0)
    swallows: tuple[bool, bool] = (False, False)
    rate: float | None = None
    garbage: bytes | None = None


class Connection:
    """The client's socket, the server's socket, and a pipe in each direction.

    fault: returns the present fault. forget: called when the connection has ended completely.
    `broken` is set when bytes were dropped or replaced.
    """

    def __init__(
        self,
        sock: socket.socket,
        fault: Callable[[], Fault],
        forget: Callable[[Connection], None],
    ) -> None:
        self._sock = sock
        self._fault = fault
        self._forget = forget
        self._pipes = (_Pipe(), _Pipe())
        self._ends = (_End(self, _REQUESTS), _End(self, _REPLIES))
        self._opening = True
        self._aborted = False
        self.broken: bool = False

    async def open(self, target: tuple[str, int]) -> None:
        """Take over the client's socket and connect to the server."""
        loop = asyncio.get_running_loop()
        client, server = self._ends
        try:
            await loop.connect_accepted_socket(lambda: client, self._sock)
            self._pipes[_REPLIES].lead_to(client.transport)
            if all(self._fault().swallows):
                self.broken = True
                return
            await loop.create_connection(lambda: server, *target)
            self._pipes[_REQUESTS].lead_to(server.transport)
        except OSError:
            self._aborted = True  # no server: hang up, as its machine would

    def opened(self, task: asyncio.Task[None]) -> None:
        """Clean up after `open` has ended or was cancelled, possibly before its first step."""
        self._opening = False
        if self._aborted or task.cancelled():
            self.abort()
        self._settle()

    def received(self, direction: int, data: bytes) -> None:
        """Pass `data` on, or do with it what the current fault says."""
        fault = self._fault()
        if fault.swallows[direction]:
            self.broken = True
            return
        if direction == _REPLIES and fault.garbage is not None:
            self.broken = True
            data = fault.garbage
        self._pipes[direction].push(data, fault.delays[direction], fault.rate)

    def lost(self, direction: int) -> None:
        """Pass the hang-up of one side on to the other side, after the bytes in transit."""
        self._pipes[direction].push(b"", self._fault().delays[direction], None)
        self._settle()

    def abort(self) -> None:
        """Reset both sockets and drop the bytes in transit."""
        self._aborted = True
        for pipe in self._pipes:
            pipe.clear()
        for end in self._ends:
            if end.transport:
                end.transport.abort()
        if not self._opening and not self._ends[_REQUESTS].transport:
            self._sock.close()
        self._settle()

    def _settle(self) -> None:
        if not self._opening and all(end.gone or not end.transport for end in self._ends):
            for pipe in self._pipes:
                pipe.clear()
            self._forget(self)


class _End(asyncio.Protocol):
    """One of the two sockets; `direction` is that of the bytes that it receives."""

    transport: asyncio.Transport | None = None
    gone = False

    def __init__(self, connection: Connection, direction: int) -> None:
        self._connection = connection
        self._direction = direction

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._connection.received(self._direction, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        self.gone = True
        self._connection.lost(self._direction)


class _Pipe:
    """One direction: bytes wait until they are due and stay in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._target: asyncio.Transport | None = None

    def lead_to(self, target: asyncio.Transport | None) -> None:
        self._target = target
        self._pump()

    def push(self, data: bytes, delay: float, rate: float | None) -> None:
        """Queue data, or the end of the stream (b""); with a `rate`, in pieces of 20 ms each."""
        due = max(self._last_due, asyncio.get_running_loop().time() + delay)
        size = max(1, len(data) if rate is None else int(rate / 50))
        for start in range(0, max(1, len(data)), size):
            piece = data[start : start + size]
            due += len(piece) / rate if rate is not None else 0.0
            self._waiting.append((due, piece))
        self._last_due = due
        self._pump()

    def clear(self) -> None:
        self._waiting.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        while self._target and self._waiting and self._waiting[0][0] <= loop.time():
            _, data = self._waiting.popleft()
            if not data:
                self._target.close()
            elif not self._target.is_closing():
                self._target.write(data)
        if self._timer:
            self._timer.cancel()
        self._timer = None
        if self._target and self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._pump)
