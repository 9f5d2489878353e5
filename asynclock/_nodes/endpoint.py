"""Where a node is and how to log in, as redis-py reads it from a URL or a client."""

from __future__ import annotations

import asyncio
import importlib
import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis.asyncio
from redis.asyncio.connection import AbstractConnection, ConnectionPool

from ..errors import ConfigurationError

L = TypeVar("L", bound=asyncio.Protocol)


SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
    "valkey://",
    "valkeys://",
)


def spelled(url: str) -> str:
    """`url` with Redis's name for the scheme: Valkey speaks the same protocol."""
    url = url.strip()
    return "redis" + url.removeprefix("valkey") if url.startswith("valkey") else url


class Endpoint:
    """The settings of one node's connections; parsed by redis-py, once."""

    _said: tuple[str, ...] = ()
    _tls: ssl.SSLContext | None = None

    def __init__(self, connection: Any, like: Iterable[Endpoint] = ()) -> None:
        self._settings = connection
        self.path: str | None = getattr(connection, "path", None) or None
        self.host: str = getattr(connection, "host", "localhost")
        self.port: int = int(getattr(connection, "port", 6379))
        self.db: int = int(connection.db or 0)
        # Made now: loading authorities takes longer than a node has to answer. And once for all
        # nodes of a manager that say the same of TLS: for each it would hold up the loop for 30 ms.
        self._said = _said_of_tls(connection)
        same = (other._tls for other in like if self._said and other._said == self._said)
        self._tls = next(same, None) or _tls_context(connection)

    @property
    def address(self) -> str:
        """How the node is named in errors, logs and health: never with a password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"{host}:{self.port}"

    def at(self, host: str, port: int) -> Endpoint:
        """The same settings for another server of the same deployment."""
        other = Endpoint(self._settings)
        other.host, other.port, other.path = host, port, None
        return other

    @classmethod
    def of(cls, node: object, like: Iterable[Endpoint] = ()) -> Endpoint:
        """From a URL or a `redis.asyncio.Redis`, whose settings are read and nothing else.

        `like`: others of the same manager, whose TLS context it may share.
        """
        if isinstance(node, Endpoint):
            return node
        if isinstance(node, str):
            if node.strip().startswith("memory://"):
                # By name and only now: nodes for tests are no part of what a service imports.
                memory = importlib.import_module("asynclock.testing.memory")
                in_memory: Endpoint = memory.endpoint(node)
                return in_memory
            return cls.from_url(node, like)
        if isinstance(node, redis.asyncio.Redis):
            return cls.of_pool(node.connection_pool, repr(type(node).__name__), like)
        raise ConfigurationError(
            f"a node is a URL or a redis.asyncio.Redis client, not {type(node).__name__}"
        )

    @classmethod
    def from_url(cls, url: str, like: Iterable[Endpoint] = ()) -> Endpoint:
        """From `redis://`, `rediss://` or `unix://`, with user, password and db."""
        if "," in url.partition("://")[2].partition("/")[0]:
            raise ConfigurationError(
                f"{redacted(url)} names several hosts in one URL; give each node its own argument"
            )
        try:
            pool = ConnectionPool.from_url(url.strip())
        except (ValueError, TypeError) as error:
            hint = "" if url.strip().startswith(SCHEMES) else f" (known are {', '.join(SCHEMES)})"
            raise ConfigurationError(
                f"{redacted(url)} is no address of Redis: {error}{hint}"
            ) from None
        return cls.of_pool(pool, redacted(url), like)

    @classmethod
    def of_pool(cls, pool: ConnectionPool, shown: str, like: Iterable[Endpoint] = ()) -> Endpoint:
        """From the settings with which a client of redis-py would open connections."""
        try:
            connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
            return cls(connection, like)
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(f"{shown} has a wrong setting: {error}") from None

    async def open(self, make: Callable[[], L]) -> L:
        """Open a connection; `make` gives its protocol. Raises OSError."""
        loop = asyncio.get_running_loop()
        # Cancelling create_connection closes its socket; a link is only made once it is open.
        if self.path is not None:
            _, link = await loop.create_unix_connection(make, self.path)
            return link
        context = self.tls()
        _, link = await loop.create_connection(
            make,
            self.host,
            self.port,
            ssl=context,
            server_hostname=self.host if context is not None else None,
        )
        return link

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context redis-py would use, or None for a plain connection."""
        return self._tls

    @property
    def rotates(self) -> bool:
        """Whether the password comes from a provider and may be another one next time."""
        return self._settings.credential_provider is not None

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


def _tls_context(connection: Any) -> ssl.SSLContext | None:
    settings = getattr(connection, "ssl_context", None)
    context: ssl.SSLContext | None = None if settings is None else settings.get()
    return context


def _said_of_tls(connection: Any) -> tuple[str, ...]:
    """All that redis-py was told about TLS; () for nothing."""
    settings = getattr(connection, "ssl_context", None)
    names = getattr(type(settings), "__slots__", ())
    return tuple(f"{name}={getattr(settings, name)!r}" for name in names if name != "context")


class Seeds:
    """A URL with several hosts: `scheme+kind://login@host:port,host:port/path?query`."""

    def __init__(self, url: str, *, port: int) -> None:
        self.shown = redacted(url)
        try:
            parts = urlsplit(url.strip())
        except ValueError as error:
            raise ConfigurationError(f"{self.shown} is no address of Redis: {error}") from None
        self.scheme, _, self.kind = parts.scheme.partition("+")
        login, at, hosts = parts.netloc.rpartition("@")
        self._login = login + at
        self.path = unquote(parts.path.strip("/"))
        self.query = dict(parse_qsl(parts.query))
        self._hosts = [host.strip() for host in hosts.split(",") if host.strip()]
        self._port = port
        if not self._hosts:
            raise ConfigurationError(f"{self.shown} names no host")

    def endpoints(self, login: str | None = None) -> list[Endpoint]:
        """One for each host; with another "user:password@" if given."""
        query = f"?{urlencode(self.query)}" if self.query else ""
        prefix = self._login if login is None else login
        first = Endpoint.from_url(f"{self.scheme}://{prefix}{self._where(self._hosts[0])}{query}")
        # The others share its TLS context: loading authorities for each takes 30 ms apiece.
        return [first, *(first.at(*self._place(host)) for host in self._hosts[1:])]

    def _where(self, host: str) -> str:
        has_port = bool(re.search(r":\d+$", host)) and not host.endswith("]")
        return host if has_port else f"{host}:{self._port}"

    def _place(self, host: str) -> tuple[str, int]:
        try:
            parts = urlsplit(f"//{self._where(host)}")
            return unquote(parts.hostname or "localhost"), parts.port or self._port
        except ValueError as error:
            raise ConfigurationError(f"{self.shown} is no address of Redis: {error}") from None


def redacted(url: str) -> str:
    """`url` without its password, for messages."""
    scheme, mark, rest = url.partition("://")
    login, at, where = rest.rpartition("@")
    user = login.partition(":")[0]
    return repr(f"{scheme}{mark}{user}:***@{where}" if at and ":" in login else url)
