"""Commands to a server over a connection of their own, without the client that is under test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hiredis


class ServerReplyError(Exception):
    """The server answered a command with an error; its text is the message."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address and login of a server: TCP, TLS or a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    unix: str | None = None
    tls: ssl.SSLContext | None = None
    credentials: tuple[str, ...] = ()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect without a handshake. Raises OSError."""
        if self.unix is not None:
            return await asyncio.open_unix_connection(self.unix)
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls)


async def ask(endpoint: ServerAddress, *command: str | bytes | float, timeout: float = 5.0) -> Any:
    """Send one command; an error reply is raised."""
    (reply,) = await ask_all(endpoint, [command], timeout=timeout)
    if isinstance(reply, ServerReplyError):
        raise reply
    return reply


async def ask_all(
    endpoint: ServerAddress,
    commands: Sequence[Sequence[str | bytes | float]],
    *,
    timeout: float = 5.0,
) -> list[Any]:
    """Send commands as one pipeline; error replies are returned in their place.

    Raises OSError (TimeoutError included) if the server can't be reached, hangs up, or has not
    answered everything after `timeout` seconds.
    """
    login = [("AUTH", *endpoint.credentials)] if endpoint.credentials else []
    parser = hiredis.Reader(replyError=ServerReplyError, encoding="utf-8", errors="surrogateescape")
    replies: list[Any] = []
    async with asyncio.timeout(timeout):
        reader, writer = await endpoint.open()
        try:
            writer.write(b"".join(map(_packed, [*login, *commands])))
            while len(replies) < len(login) + len(commands):
                if (reply := parser.gets()) is not False:
                    replies.append(reply)
                elif data := await reader.read(65_536):
                    parser.feed(data)
                else:
                    raise ConnectionError(f"{endpoint} hung up without an answer")
        except hiredis.ProtocolError as error:
            raise ConnectionError(f"broken reply from {endpoint}: {error}") from error
        finally:
            # Not closed politely: a frozen server would never answer a TLS goodbye.
            writer.transport.abort()
    if login and isinstance(replies[0], ServerReplyError):
        raise replies[0]
    return replies[len(login) :]


def _packed(command: Sequence[str | bytes | float]) -> bytes:
    # hiredis declares a tuple of one element, and takes any number.
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]
    return packed
