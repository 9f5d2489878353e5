"""Looks up a host name, and connects to the first of its addresses that answers.

Of several addresses the next one is tried as well when the one before fails or is silent for a
moment (RFC 8305, "happy eyeballs"). asyncio's `create_connection` can do that, but it looks the
name up again for each attempt to connect, and uvloop's can't. A connection of the user's own class
(a tunnel, a SOCKS proxy) does all that by itself.
"""

from __future__ import annotations

import asyncio

# `getaddrinfo` imports these two when it is first called. A process that another thread forks in
# that moment can't finish the import, and its first look-up would wait for ever.
import concurrent.futures.thread  # noqa: F401
import encodings.idna  # noqa: F401
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from .. import _clock
from .._process import Background
from ..errors import ConfigurationError

STAGGER = 0.1
"""Seconds of silence after which the next address is tried as well: the least that RFC 8305
recommends, because a first attempt to connect has only a node timeout."""
LONGEST_LOOK_UP = 30.0
"""Maximum seconds for a look-up: the resolver of glibc, with three servers that are silent."""

Found: TypeAlias = "tuple[int, int, int, str, tuple[Any, ...]]"
"""An address, as `getaddrinfo` returns it."""


async def look_up(host: str, port: int) -> Sequence[Found]:
    """Return the addresses of a host in the order to try them. Raises OSError."""
    try:
        # An address needs no look-up, which would take a thread.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LONGEST_LOOK_UP):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise OSError(f"no answer within {LONGEST_LOOK_UP:g} s") from None
    return _alternating(found)


def _alternating(found: Sequence[Found]) -> list[Found]:
    """Return the addresses so that IPv6 and IPv4 take turns, as RFC 8305 wants it."""
    first = [one for one in found if one[0] == found[0][0]]
    others = [one for one in found if one[0] != found[0][0]]
    return [one for pair in zip_longest(first, others) for one in pair if one is not None]


async def first_to_answer(found: Sequence[Found]) -> tuple[socket.socket, float]:
    """Return a socket, connected to the first address that answers, and the seconds it needed.

    Raises OSError.
    """
    left, trying = deque(found), Background()
    tries: dict[asyncio.Task[socket.socket | OSError], float] = {}
    winner, began = None, 0.0
    try:
        while winner is None:
            if left:
                trial = trying.spawn(_connected(left.popleft()), "asynclock: connect")
                tries[trial] = _clock.now()
            waiting = [one for one in tries if not one.done()]
            if not waiting:
                raise _told(found, [one.result() for one in tries])
            pause = STAGGER if left else None
            await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            winner, began = next(
                ((sock, at) for one, at in tries.items() if (sock := _socket(one))), (None, 0.0)
            )
        return winner, _clock.now() - began
    finally:
        for sock in map(_socket, tries):
            if sock is not None and sock is not winner:
                sock.close()
        try:
            await trying.aclose()
        except BaseException:
            if winner is not None:
                winner.close()
            raise


def _socket(task: asyncio.Task[socket.socket | OSError]) -> socket.socket | None:
    """Return the socket that a task has connected; None if it has not, or not yet."""
    result = task.result() if task.done() and not task.cancelled() else None
    return result if isinstance(result, socket.socket) else None


async def _connected(address: Found) -> socket.socket | OSError:
    """Return a connected socket, or why there is none."""
    family, kind, protocol, _, place = address
    sock = None
    try:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does for its own
        await asyncio.get_running_loop().sock_connect(sock, place)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError):
            return error
        raise
    return sock


def _told(found: Sequence[Found], errors: Sequence[object]) -> OSError:
    """Return one error for all addresses."""
    known = [error for error in errors if isinstance(error, OSError)]
    if len(known) == 1:
        return known[0]
    pairs = zip(found, known, strict=True)
    return OSError("; ".join(f"{place[4][0]}: {reason(error)}" for place, error in pairs))


def reason(error: OSError) -> str:
    """Return the system's text, which asyncio replaces by "Connect call failed"."""
    own = error.strerror or ""
    if error.errno and (isinstance(error, ConnectionError) or own.startswith("Connect call")):
        return os.strerror(error.errno)
    return own or str(error) or type(error).__name__


L = TypeVar("L", bound=asyncio.Protocol)


async def connected_by(connection: Any, host: str, port: int, make: Callable[[], L]) -> L:
    """Let a connection of the user's own class connect, and give its transport to a protocol.

    Raises OSError, and ConfigurationError if the class doesn't leave a transport of asyncio behind.
    """
    from redis.exceptions import RedisError

    own = type(connection).__name__
    if hasattr(connection, "host"):  # Sentinels may have named another server
        connection.host, connection.port = host, port
    try:
        await connection.connect()
        writer = _taken(connection)
    except BaseException as error:
        if (left := _taken(connection)) is not None:
            left.close()
        if isinstance(error, RedisError):  # its text may quote the login
            raise OSError(f"{own} raised {type(error).__name__}") from error
        raise
    transport: Any = getattr(writer, "transport", None)
    if not hasattr(transport, "set_protocol"):
        raise ConfigurationError(
            f"locks can't use connections of the class {own}, which have no transport of asyncio: "
            "pass a URL, or a client with redis-py's own class"
        )
    protocol = make()
    _streams[protocol] = writer
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return protocol


_streams: WeakKeyDictionary[asyncio.Protocol, object] = WeakKeyDictionary()
"""The writer of each link that has taken over its transport: the end of a writer closes that."""


def _taken(connection: Any) -> Any:
    """Return the writer of a connection, whose end does not close it any more."""
    writer = getattr(connection, "_writer", None)
    connection._writer = None  # noqa: SLF001 - redis-py has no other way
    return writer
