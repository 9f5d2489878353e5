"""A few lines of RESP2, to command servers without the client that is under test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Endpoint", "Reply", "ServerReplyError", "ask", "ask_all"]

Reply: TypeAlias = "str | int | list[Reply] | ServerReplyError | None"


class ServerReplyError(Exception):
    """The server answered a command with an error; its text is the message."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and as whom to talk to a server: TCP, TLS or a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    unix: str | None = None
    tls: ssl.SSLContext | None = None
    credentials: tuple[str, ...] = ()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.unix is not None:
            return await asyncio.open_unix_connection(self.unix)
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls)


async def ask(endpoint: Endpoint, *command: str | bytes | float, timeout: float = 5.0) -> Reply:
    """Send one command over a new connection; an error reply is raised."""
    (reply,) = await ask_all(endpoint, [command], timeout=timeout)
    if isinstance(reply, ServerReplyError):
        raise reply
    return reply


async def ask_all(
    endpoint: Endpoint,
    commands: Sequence[Sequence[str | bytes | float]],
    *,
    timeout: float = 5.0,
) -> list[Reply]:
    """Send commands as one pipeline over a new connection; error replies are returned in place.

    Raises OSError (TimeoutError included) if the server cannot be reached, hangs up, or has not
    answered everything after `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        reader, writer = await endpoint.open()
        try:
            login = [("AUTH", *endpoint.credentials)] if endpoint.credentials else []
            writer.write(b"".join(_pack(command) for command in [*login, *commands]))
            replies = [await _read(reader) for _ in range(len(login) + len(commands))]
            if login and isinstance(replies[0], ServerReplyError):
                raise replies[0]
            return replies[len(login) :]
        except (asyncio.IncompleteReadError, ValueError) as error:
            raise ConnectionError(f"broken reply from {endpoint}: {error}") from error
        finally:
            # Not closed politely: a frozen server would never answer a TLS goodbye.
            writer.transport.abort()


def _pack(command: Sequence[str | bytes | float]) -> bytes:
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n%s" % (
        len(parts),
        b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts),
    )


async def _read(reader: asyncio.StreamReader) -> Reply:
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2].decode(errors="surrogateescape")
    match kind:
        case b"+":
            return rest
        case b"-":
            return ServerReplyError(rest)
        case b":":
            return int(rest)
        case b"$":
            length = int(rest)
            if length < 0:
                return None
            body = await reader.readexactly(length + 2)
            return body[:-2].decode(errors="surrogateescape")
        case b"*":
            return None if int(rest) < 0 else [await _read(reader) for _ in range(int(rest))]
        case _:
            raise ValueError(f"not RESP2: {line!r}")
