"""Where a node is and how to log in, as redis-py reads it from a URL or a client."""

from __future__ import annotations

import ssl
from typing import Any

import redis.asyncio
from redis.asyncio.connection import AbstractConnection, ConnectionPool

from ..errors import ConfigurationError


class Endpoint:
    """The settings of one node's connections; parsed by redis-py, once."""

    def __init__(self, connection: Any) -> None:
        self._settings = connection
        self.path: str | None = getattr(connection, "path", None) or None
        self.host: str = getattr(connection, "host", "localhost")
        self.port: int = int(getattr(connection, "port", 6379))
        self.db: int = int(connection.db or 0)
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.address = f"unix:{self.path}" if self.path else f"{host}:{self.port}"
        """How the node is named in errors, logs and health: never with a password."""

    @classmethod
    def of(cls, node: object) -> Endpoint:
        """From a URL or a `redis.asyncio.Redis`, whose settings are read and nothing else."""
        if isinstance(node, str):
            return cls.from_url(node)
        if isinstance(node, redis.asyncio.Redis):
            return cls._of_pool(node.connection_pool, repr(type(node).__name__))
        raise ConfigurationError(
            f"a node is a URL or a redis.asyncio.Redis client, not {type(node).__name__}"
        )

    @classmethod
    def from_url(cls, url: str) -> Endpoint:
        """From `redis://`, `rediss://` or `unix://`, with user, password and db."""
        if "," in url.partition("://")[2].partition("/")[0]:
            raise ConfigurationError(
                f"{redacted(url)} names several hosts in one URL; give each node its own argument"
            )
        try:
            pool = ConnectionPool.from_url(url.strip())
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"{redacted(url)} is no address of Redis: {error}") from None
        return cls._of_pool(pool, redacted(url))

    @classmethod
    def _of_pool(cls, pool: ConnectionPool, shown: str) -> Endpoint:
        try:
            connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(f"{shown} has a wrong setting: {error}") from None
        return cls(connection)

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context redis-py would use, or None for a plain connection."""
        context = getattr(self._settings, "ssl_context", None)
        if context is None:
            return None
        made: ssl.SSLContext = context.get()
        return made

    async def credentials(self) -> tuple[str, ...]:
        """`(user, password)` for AUTH, asked anew at each connection; () where there is none."""
        provider = self._settings.credential_provider
        if provider is not None:
            found = await provider.get_credentials_async()
        elif self._settings.username or self._settings.password:
            found = (self._settings.username, self._settings.password)
        else:
            return ()
        if len(found) == 1 or not found[0]:
            return ("default", str(found[-1] or ""))
        return (str(found[0]), str(found[1] or ""))


def redacted(url: str) -> str:
    """`url` without its password, for messages."""
    scheme, mark, rest = url.partition("://")
    login, at, where = rest.rpartition("@")
    user = login.partition(":")[0]
    return repr(f"{scheme}{mark}{user}:***@{where}" if at and ":" in login else url)
