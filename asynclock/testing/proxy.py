"""A network that fails on demand: a TCP proxy on loopback between a client and a server.

    async with FaultProxy(server) as proxy:
        locks = asynclock.connect(proxy.url)
        proxy.delay(0.2)
        proxy.partition()
        proxy.heal()

One fault at a time: each switch replaces the one before. A connection that has lost bytes is cut
at the next switch, since a stream with a hole in it is nothing a network can produce.
"""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from asynclock._background import Background
from asynclock.errors import ConfigurationError
from asynclock.testing._ports import ReservedPort
from asynclock.testing._proxied import Connection, Fault
from asynclock.testing.servers import LocalServer

__all__ = ["FaultProxy"]

_HOST = "127.0.0.1"
_GARBAGE = b"\x00 certainly no reply of a server\r\n"


class FaultProxy:
    """Passes everything on until told otherwise; listens while the `async with` block runs.

    server: what it stands in front of, a LocalServer or a pair (host, port).

    It runs in the loop of the test and belongs to it. The switches are plain functions that take
    effect at once. Bytes held back are kept in memory, however many.
    """

    def __init__(self, server: LocalServer | tuple[str, int]) -> None:
        if isinstance(server, LocalServer) and not server.port:
            raise ConfigurationError("a FaultProxy speaks TCP; this server has a Unix socket only")
        self._server = server
        self.target = (server.host, server.port) if isinstance(server, LocalServer) else server
        self.accepted = 0
        """Connections accepted so far."""
        self._fault = Fault()
        self._reserved = ReservedPort(_HOST)
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._background = Background()

    @property
    def port(self) -> int:
        """The port clients connect to, the same while the proxy refuses connections."""
        return self._reserved.number

    @property
    def url(self) -> str:
        """The server's URL, by way of the proxy."""
        if not isinstance(self._server, LocalServer):
            return f"redis://{_HOST}:{self.port}"
        url = urlsplit(self._server.url)
        login, at, _ = url.netloc.rpartition("@")
        return url._replace(netloc=f"{login}{at}{_HOST}:{self.port}").geturl()

    @property
    def connections(self) -> int:
        """How many connections are open, those of clients and those with bytes on the way."""
        return len(self._connections)

    # ---- switches ----------------------------------------------------------------------------

    def heal(self) -> None:
        """Pass on everything; bytes that are on the way arrive when they are due."""
        self._switch(Fault())

    def delay(self, requests: float, replies: float = 0.0) -> None:
        """Deliver requests, and replies, so many seconds later, in order.

        A request on its way is delivered even if the client hangs up meanwhile.
        """
        self._switch(Fault(delays=(requests, replies)))

    def throttle(self, bytes_per_second: float) -> None:
        """Let so many bytes through in each direction, in small pieces."""
        self._switch(Fault(rate=bytes_per_second))

    def drop_replies(self) -> None:
        """Let requests through and swallow the replies."""
        self._switch(Fault(swallows=(False, True)))

    def half_open(self) -> None:
        """Accept connections, keep those there are, and swallow every byte."""
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
        """Reset every connection, with what is on the way; new ones are treated as before."""
        for connection in list(self._connections):
            connection.abort()

    def _switch(self, fault: Fault) -> None:
        self._fault = fault
        for connection in [c for c in self._connections if c.broken]:
            connection.abort()
        self._listen()

    # ---- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to listen; needed only without `async with`."""
        self._listen()

    async def aclose(self) -> None:
        """Cut everything; no task, socket or timer is left."""
        self._unlisten()
        self.cut()
        await self._background.aclose()
        while self._connections:  # the loop tells us of each aborted transport in its next turn
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
            return  # the client has gone again
        sock.setblocking(False)
        self.accepted += 1
        connection = Connection(sock, lambda: self._fault, self._connections.discard)
        self._connections.add(connection)
        task = self._background.spawn(connection.open(self.target), "fault proxy connection")
        task.add_done_callback(connection.opened)
