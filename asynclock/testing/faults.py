"""Faults on demand: a TCP proxy that fails, a name that another process holds, a lost lease.

    async with FaultProxy(server) as proxy:
        locks = asynclock.connect(proxy.url)
        proxy.delay(0.2)
        proxy.partition()
        proxy.heal()

There is one fault at a time: each switch replaces the fault before. A connection that has lost
bytes is cut at the next switch, because no network produces a stream with a gap.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Unpack, cast
from urllib.parse import urlsplit

from asynclock._engine.lease import Lease, grants_of
from asynclock._nodes.deployment import NodeAddress
from asynclock._process import Background
from asynclock._settings import ConnectSettings
from asynclock.errors import ConfigurationError
from asynclock.manager import LockManager, connect
from asynclock.testing.servers import LocalServer
from asynclock.testing.servers.process import ReservedPort

# ---- One connection through a fault proxy: two sockets and the bytes in transit between them -----


_REQUESTS, _REPLIES = 0, 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What the proxy does to bytes; pairs are (requests, replies)."""

    delays: tuple[float, float] = (0.0, 0.0)
    swallows: tuple[bool, bool] = (False, False)
    rate: float | None = None
    garbage: bytes | None = None


class Connection:
    """The client's socket and the server's.

    fault: returns the present fault. forget: called when the connection has ended completely.
    `broken` is set when bytes were dropped or replaced.
    """

    def __init__(
        self, sock: socket.socket, fault: Callable[[], Fault], forget: Callable[[Connection], None]
    ) -> None:
        self._sock = sock
        self._fault = fault
        self._forget = forget
        self._sides = (_Side(self, _REQUESTS), _Side(self, _REPLIES))
        self._opening = True
        self._aborted = False
        self.broken: bool = False

    async def open(self, target: tuple[str, int]) -> None:
        """Take over the client's socket and connect to the server."""
        loop = asyncio.get_running_loop()
        client, server = self._sides
        try:
            await loop.connect_accepted_socket(lambda: client, self._sock)
            server.lead_to(client.transport)
            if all(self._fault().swallows):
                self.broken = True
                return
            await loop.create_connection(lambda: server, *target)
            client.lead_to(server.transport)
        except OSError:
            self._aborted = True  # no server: hang up, as its machine would

    def opened(self, task: asyncio.Task[None]) -> None:
        """Clean up after `open` has ended or was cancelled, possibly before its first step."""
        self._opening = False
        if self._aborted or task.cancelled():
            self.abort()
        self._settle()

    def received(self, side: _Side, data: bytes) -> None:
        """Pass `data` on, or do with it what the current fault says."""
        fault = self._fault()
        if fault.swallows[side.direction]:
            self.broken = True
            return
        if side.direction == _REPLIES and fault.garbage is not None:
            self.broken = True
            data = fault.garbage
        side.push(data, fault.delays[side.direction], fault.rate)

    def lost(self, side: _Side) -> None:
        """Pass the hang-up of one side on to the other side, after the bytes in transit."""
        side.push(b"", self._fault().delays[side.direction], None)
        self._settle()

    def abort(self) -> None:
        """Reset both sockets and drop the bytes in transit."""
        self._aborted = True
        for side in self._sides:
            side.clear()
            if side.transport:
                side.transport.abort()
        if not self._opening and not self._sides[_REQUESTS].transport:
            self._sock.close()
        self._settle()

    def _settle(self) -> None:
        if not self._opening and all(side.gone or not side.transport for side in self._sides):
            for side in self._sides:
                side.clear()
            self._forget(self)


class _Side(asyncio.Protocol):
    """One of the two sockets. What it receives waits until it is due, and stays in order."""

    transport: asyncio.Transport | None = None
    gone: bool = False

    def __init__(self, connection: Connection, direction: int) -> None:
        self._connection = connection
        self.direction: int = direction
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._target: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._connection.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        self.gone = True
        self._connection.lost(self)

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
        self._pump()

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


_HOST = "127.0.0.1"
_GARBAGE = b"\x00 certainly no reply of a server\r\n"


class FaultProxy:
    """Passes everything on until a switch is set; listens while the `async with` block runs.

    The proxy runs in the event loop of the test. The switches are plain functions that take effect
    at once. Bytes that are held back stay in memory, without a limit.

    Args:
        server: the server behind the proxy, a LocalServer or a pair (host, port).
    """

    def __init__(self, server: LocalServer | tuple[str, int]) -> None:
        if isinstance(server, LocalServer) and not server.port:
            raise ConfigurationError("a FaultProxy speaks TCP; this server has a Unix socket only")
        self._server = server
        self.target: tuple[str, int] = (
            (server.host, server.port) if isinstance(server, LocalServer) else server
        )
        self.accepted: int = 0
        """The number of connections accepted so far."""
        self._fault = Fault()
        self._reserved = ReservedPort(_HOST)
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._background = Background()

    @property
    def port(self) -> int:
        """The port for clients; it stays the same while the proxy refuses connections."""
        return self._reserved.number

    @property
    def url(self) -> str:
        """The server's URL with the proxy's address."""
        if not isinstance(self._server, LocalServer):
            return f"redis://{_HOST}:{self.port}"
        url = urlsplit(self._server.url)
        login, at, _ = url.netloc.rpartition("@")
        return url._replace(netloc=f"{login}{at}{_HOST}:{self.port}").geturl()

    @property
    def connections(self) -> int:
        """Return the number of connections that are open or have bytes in transit."""
        return len(self._connections)

    # ---- switches ----------------------------------------------------------------------------

    def heal(self) -> None:
        """Pass everything on; bytes in transit arrive when they are due."""
        self._switch(Fault())

    def delay(self, requests: float, replies: float = 0.0) -> None:
        """Deliver requests and replies later by these numbers of seconds, in order.

        A request in transit is delivered even if the client hangs up in the meantime.
        """
        self._switch(Fault(delays=(requests, replies)))

    def throttle(self, bytes_per_second: float) -> None:
        """Limit each direction to this many bytes per second, in small pieces."""
        self._switch(Fault(rate=bytes_per_second))

    def drop_replies(self) -> None:
        """Let requests through and drop the replies."""
        self._switch(Fault(swallows=(False, True)))

    def half_open(self) -> None:
        """Accept and keep connections, but drop every byte."""
        self._switch(Fault(swallows=(True, True)))

    def garbage(self, data: bytes = _GARBAGE) -> None:
        """Let requests through and answer with `data` in place of each piece of reply."""
        self._switch(Fault(garbage=data))

    def partition(self) -> None:
        """Cut every connection and refuse new ones."""
        self._unlisten()
        self._fault = Fault()
        self.cut()

    def cut(self) -> None:
        """Reset every connection and drop its bytes in transit; new ones are treated as before."""
        for connection in list(self._connections):
            connection.abort()

    def _switch(self, fault: Fault) -> None:
        self._fault = fault
        for connection in [c for c in self._connections if c.broken]:
            connection.abort()
        self._listen()

    # ---- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to listen; only needed without `async with`."""
        self._listen()

    async def aclose(self) -> None:
        """Cut everything; no task, socket or timer is left."""
        self._unlisten()
        self.cut()
        await self._background.aclose()
        while self._connections:  # the loop reports each aborted transport in its next round
            self.cut()
            await asyncio.sleep(0)
        self._reserved.release()

    async def __aenter__(self) -> FaultProxy:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _listen(self) -> None:
        if self._listener:
            return
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((_HOST, self.port))
        self._listener.listen(512)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _unlisten(self) -> None:
        if self._listener:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has disconnected again
        self.accepted += 1
        connection = Connection(sock, lambda: self._fault, self._connections.discard)
        self._connections.add(connection)
        task = self._background.spawn(
            connection.open(self.target), "asynclock: a proxied connection"
        )
        task.add_done_callback(connection.opened)


# ---- Another holder, and a loss ------------------------------------------------------------------

TIMEOUT = 5.0
"""Maximum seconds to wait for the name: in a correct test its holder releases it soon."""


@asynccontextmanager
async def busy(
    name: str, *nodes: NodeAddress | LockManager, **settings: Unpack[ConnectSettings]
) -> AsyncIterator[Lease]:
    """Hold the mutex `name` until the block ends, as another process would.

        async with busy("orders:42", app.state.asynclock):
            answer = await client.post("/orders/42/ship")  # 409

    Use this because a test that acquires the lock itself and calls the application in the same task
    gets AlreadyHeldError. Raises AcquireTimeoutError if the name is not free within 5 seconds.

    Args:
        name: the mutex to hold.
        nodes: the LockManager of the code under test, whose nodes and settings are used over
            separate connections; or addresses as for `connect` (default: `memory://`).
        settings: those of `connect`, with addresses only.
    """
    managers = [node for node in nodes if isinstance(node, LockManager)]
    addresses = [node for node in nodes if not isinstance(node, LockManager)]
    if managers and (len(nodes) > 1 or settings):
        raise ConfigurationError("a LockManager has its nodes and settings already")
    if managers:
        first = managers[0]
        rival = LockManager(first._make_engine, first._defaults, first._observers)  # noqa: SLF001 - connections of its own
    else:
        rival = connect(*(addresses or ["memory://"]), **settings)
    async with rival, rival.lock(name, timeout=TIMEOUT, interrupt=False) as lease:
        yield lease


def lose(lease: Lease, reason: str = "a test took it away") -> None:
    """Make `lease` lost now: this interrupts its body, and its exit raises LeaseLostError.

    Args:
        lease: a lease that is held; of one on several names or permits, the first part is lost.
        reason: what `lease.lost_reason` and the error say.
    """
    # Only tests may cause a loss, so Lease has no public method for it.
    grant = next(iter(grants_of(lease)), None)
    if grant is None:
        raise ConfigurationError(f"{lease!r} is not held: there is nothing to lose")
    lease._engine.lose(grant, reason)  # noqa: SLF001
