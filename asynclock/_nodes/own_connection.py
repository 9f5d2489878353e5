"""Opens a connection with a class of the user's own, for a tunnel or a SOCKS proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ..errors import ConfigurationError

L = TypeVar("L", bound=asyncio.Protocol)


async def connected_by(connection: Any, host: str, port: int, make: Callable[[], L]) -> L:
    """Let a connection of the user's own class connect, and give its transport to a protocol.

    The class may tunnel or log in as it likes. Raises OSError, and ConfigurationError if the class
    doesn't leave a transport of asyncio behind.
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
    for stream in ("_reader", "_writer"):
        setattr(connection, stream, None)
    return writer
