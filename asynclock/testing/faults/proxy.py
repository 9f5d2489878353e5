"""A TCP proxy on loopback between a client and a server, which fails on demand.

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
from urllib.parse import urlsplit

from asynclock._background import Background
from asynclock.errors import ConfigurationError
from asynclock.testing.faults.connection import Connection, Fault
from asynclock.testing.servers.local import LocalServer
from asynclock.testing.servers.ports import ReservedPort

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
        sock.setblocking(False)
        self.accepted += 1
        connection = Connection(sock, lambda: self._fault, self._connections.discard)
        self._connections.add(connection)
        task = self._background.spawn(connection.open(self.target), "fault proxy connection")
        task.add_done_callback(connection.opened)
