"""The address and login of a node, as redis-py reads them from a URL or a client."""

from __future__ import annotations

import asyncio
import re
import shlex
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from ..errors import ConfigurationError
from .dialing import Found, connected_by, first_to_answer, look_up
from .wire import NO_CONNECTION, Failure, too_far

if TYPE_CHECKING:
    # Importing redis-py takes longer than all the rest of a short program, and plain URLs don't
    # need it.
    from redis.asyncio.connection import AbstractConnection, ConnectionPool

L = TypeVar("L", bound=asyncio.Protocol)

LOOK_UP, CONNECT, TLS, LOGIN = "look-up", "connect", "TLS", "login"
LATE = {
    LOOK_UP: "the look-up of {host} has no result within node_timeout={seconds:g} s",
    CONNECT: NO_CONNECTION,
    TLS: "no answer to the TLS handshake within node_timeout={seconds:g} s: "
    "does this port speak TLS?",
    LOGIN: "no answer to the login within node_timeout={seconds:g} s",
}
"""For each phase of an attempt to connect: the cause if it takes too long."""

_PLAIN = re.compile(
    r"redis://((?P<user>[^:@/?#\s]*)(:(?P<password>[^:@/?#\s]*))?@)?"
    r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])?(:(?P<port>[0-9]{1,5}))?(/(?P<db>[0-9]*))?"
)
"""The usual form of a URL, which is parsed without redis-py."""
_SEVERAL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<hosts>[^/?#]*)(?P<path>[^?#]*)(\?(?P<query>[^#]*))?"
)
"""A URL with several hosts. Newer Pythons' `urlsplit` refuses an IPv6 address behind a host."""


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """The settings in a URL of the usual form, under redis-py's attribute names."""

    host: str
    port: int
    db: int
    username: str | None
    password: str | None = field(repr=False)
    credential_provider: None = None

    @classmethod
    def from_url(cls, url: str) -> PlainSettings | None:
        """Return the settings in `url`, or None if only redis-py can parse it."""
        match = _PLAIN.fullmatch(url)
        port = int(match["port"] or 6379) if match else 0
        if match is None or not 0 < port < 65536:
            return None
        user, password = (unquote(match[part] or "") or None for part in ("user", "password"))
        host = (match["host"] or "localhost").strip("[]").lower()
        return cls(host, port, int(match["db"] or 0), user, password)


class Endpoint:
    """The settings of one node's connections, parsed once."""

    tls: ssl.SSLContext | None = None
    """The TLS context that redis-py would use, or None for a plain connection."""
    _said: tuple[str, ...] = ()
    """All TLS settings that redis-py was given; () for none."""
    _own: Callable[[], Any] | None = None
    """Makes a connection of the user's own class; None for the classes of redis-py."""
    _found: Sequence[Found] = ()
    phase: str = CONNECT
    """What an attempt to connect is waiting for."""
    trip: float = 0.0
    """Seconds that the last answer to a login took, or a connection since then, if that is more."""

    def __init__(
        self,
        connection: Any,
        like: Iterable[Endpoint] = (),
        own: Callable[[], Any] | None = None,
    ) -> None:
        self._settings = connection
        self._own = own
        self.path: str | None = getattr(connection, "path", None) or None
        self.host: str = getattr(connection, "host", "localhost")
        self.port: int = int(getattr(connection, "port", 6379))
        self.db: int = int(connection.db or 0)
        if own is not None:
            return  # the connections of the user's class know themselves whether they use TLS
        settings = getattr(connection, "ssl_context", None)
        if settings is not None:
            # The TLS context is made now, because loading the authorities may take longer than a
            # node timeout. Nodes with the same settings share it: each blocks the loop for 30 ms.
            names = (name for name in type(settings).__slots__ if name != "context")
            self._said = tuple(f"{name}={getattr(settings, name)!r}" for name in names)
            same = (other.tls for other in like if other._said == self._said)
            self.tls = next(same, None) or settings.get()

    @property
    def address(self) -> str:
        """The name of the node in errors, logs and health; never contains a password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"{host}:{self.port}"

    def at(self, host: str, port: int) -> Endpoint:
        """Return the same settings for another server of the same deployment."""
        other = Endpoint(self._settings, own=self._own)
        other.host, other.port, other.path = host, port, None
        return other

    @classmethod
    def of(cls, node: object, like: Iterable[Endpoint] = ()) -> Endpoint:
        """Make an endpoint from a URL or a `redis.asyncio.Redis`, which is only read.

        `like` are endpoints whose TLS context it may share. Raises ConfigurationError.
        """
        if isinstance(node, Endpoint):
            return node
        if isinstance(node, str):
            make = _REGISTERED.get("".join(node.strip().partition("://")[:2]))
            return cls.from_url(node, like) if make is None else make(node)
        import redis.asyncio

        if isinstance(node, redis.asyncio.Redis):
            # A client of redis-py 5 turns the check off by itself, so that says nothing.
            word = redis.VERSION[0] > 5
            shown = repr(type(node).__name__)
            _reject_fake(node)
            return cls.of_pool(node.connection_pool, shown, like, may_skip_name=word)
        if isinstance(node, redis.Redis):
            _reject_fake(node)
            raise ConfigurationError(
                "this redis.Redis is a synchronous client: pass its URL, or a redis.asyncio.Redis; "
                "locks for code without asyncio are in asynclock.blocking"
            )
        raise ConfigurationError(
            f"a node is a URL or a redis.asyncio.Redis client, not {type(node).__name__}"
        )

    @classmethod
    def from_url(cls, url: str, like: Iterable[Endpoint] = ()) -> Endpoint:
        """Make an endpoint from `redis://`, `rediss://` or `unix://`. Raises ConfigurationError."""
        # A password and a setting may contain commas.
        hosts = re.split("[/?]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
        if "," in hosts:
            raise ConfigurationError(
                f"{redacted(url)} names several hosts in one URL; give each node its own argument"
            )
        plain = PlainSettings.from_url(url.strip())
        if plain is not None:
            return cls(plain, like)
        check_shape(url.strip())
        from redis.asyncio.connection import ConnectionPool

        try:
            pool = ConnectionPool.from_url(url.strip())
        except (ValueError, TypeError) as error:
            cause = in_our_words(harmless(error))
        else:
            return cls.of_pool(pool, redacted(url), like)
        # Raised outside of the `except`, so that the error has no context that quotes the URL.
        raise ConfigurationError(f"{redacted(url)} is not a Redis address: {cause}")

    @classmethod
    def of_pool(
        cls,
        pool: ConnectionPool,
        shown: str,
        like: Iterable[Endpoint] = (),
        *,
        may_skip_name: bool = True,
    ) -> Endpoint:
        """Make an endpoint from the settings of a redis-py pool. Raises ConfigurationError.

        The certificate must contain the name of the host, unless `ssl_check_hostname` is False in
        the settings and `may_skip_name` says that the user has put it there.
        """
        from redis.exceptions import RedisError

        def made() -> AbstractConnection:
            connection: AbstractConnection = pool.make_connection()  # type: ignore[no-untyped-call]
            skip = pool.connection_kwargs.get("ssl_check_hostname") is False
            if not (skip and may_skip_name):
                _check_name(connection)
            return connection

        try:
            connection = made()
            ours = type(connection).__module__.startswith("redis.")
            return cls(connection, like, None if ours else made)
        except (ValueError, TypeError, OSError, RedisError) as error:
            cause = in_our_words(harmless(error))
        raise ConfigurationError(f"{shown} has a wrong setting: {cause}")

    async def look_up(self) -> None:
        """Find out the addresses of the host. Raises OSError.

        This is no part of an attempt to connect: one that takes longer than an attempt would never
        end.
        """
        if self.path is None and self.port and self._own is None:
            self.phase = LOOK_UP
            self._found = await look_up(self.host, self.port)

    async def open(self, make: Callable[[], L]) -> L:
        """Open a connection with the protocol that `make` makes, after `look_up`. Raises OSError.

        If this is cancelled, the socket is closed.
        """
        loop = asyncio.get_running_loop()
        self.phase = CONNECT
        if self._own is not None:
            return await connected_by(self._own(), self.host, self.port, make)
        if self.path is not None:
            _, link = await loop.create_unix_connection(make, self.path)
            return link
        sock, seconds = await first_to_answer(self._found)
        self.trip = max(self.trip, seconds)
        name = None
        if self.tls is not None:
            self.phase, name = TLS, self.host
        _, link = await loop.create_connection(make, sock=sock, ssl=self.tls, server_hostname=name)
        return link

    def late(self, seconds: float) -> Failure:
        """Return why `open`, or a step before or after it, took longer than `node_timeout`."""
        cause = LATE[self.phase].format(host=self.host, seconds=seconds)
        return Failure(cause + too_far(self.trip, seconds))

    @property
    def trouble(self) -> str:
        """What an error of `look_up` or `open` means; its text follows."""
        return f"can't look up {self.host}" if self.phase == LOOK_UP else "can't connect"

    @property
    def plain(self) -> bool:
        """Whether this is an address of TCP without TLS; a node in memory has no port."""
        return not (self.path or self.tls or self._own) and self.port > 0

    @property
    def opaque(self) -> bool:
        """Whether a class of the user makes the connections, so that nobody else can."""
        return self._own is not None

    @property
    def rotates(self) -> bool:
        """Whether the password comes from a provider and may change."""
        return self._settings.credential_provider is not None

    async def credentials(self) -> tuple[str, ...]:
        """Return `(user, password)` for AUTH, () for none; called for each new connection."""
        provider = self._settings.credential_provider
        if provider is not None:
            # redis-py before 5.3 knows only the other method.
            ask = getattr(provider, "get_credentials_async", None)
            found = provider.get_credentials() if ask is None else await ask()
        elif self._settings.username or self._settings.password:
            found = (self._settings.username, self._settings.password)
        else:
            return ()
        if len(found) == 1 or not found[0]:
            return ("default", str(found[-1] or ""))
        return (str(found[0]), str(found[1] or ""))


_REGISTERED: dict[str, Callable[[str], Endpoint]] = {}
"""The schemes of endpoints that are made elsewhere, each with what makes one from a URL."""


def register(scheme: str, make: Callable[[str], Endpoint]) -> None:
    """Let `make` make the endpoint of each URL that begins with `scheme`."""
    _REGISTERED[scheme] = make


def _reject_fake(client: Any) -> None:
    made_by = getattr(client.connection_pool, "connection_class", type(client)).__module__
    if made_by.partition(".")[0] == "fakeredis":
        raise ConfigurationError(
            f"{type(client).__name__} has no connection that locks can use: for tests without a "
            'server, write asynclock.connect("memory://")'
        )


def _check_name(connection: Any) -> None:
    """Check the host's name in certificates, as redis-py does by itself only from 6.0 on."""
    settings = getattr(connection, "ssl_context", None)
    if settings is not None and settings.cert_reqs != ssl.CERT_NONE:
        settings.check_hostname = True


class Seeds:
    """A URL with several hosts: `scheme+kind://login@host:port,host:port/path?query`.

    Raises ConfigurationError for a URL of another form.
    """

    def __init__(self, url: str, *, port: int) -> None:
        self.shown = redacted(url)
        parts = _SEVERAL.fullmatch(url.strip())
        if parts is None:
            raise ConfigurationError(f"{self.shown} is not a Redis address")
        scheme: str = parts["scheme"].lower()
        self.scheme, _, self.kind = scheme.partition("+")
        login, at, hosts = parts["hosts"].rpartition("@")
        self._login = login + at
        self.path = unquote(parts["path"].strip("/"))
        self.query = dict(parse_qsl(parts["query"] or ""))
        self._hosts = [host.strip() for host in hosts.split(",") if host.strip()]
        self._port = port
        if not self._hosts:
            raise ConfigurationError(f"{self.shown} names no host")

    def endpoints(self, login: str | None = None) -> list[Endpoint]:
        """Return one endpoint per host; `login` ("user:password@") replaces that of the URL."""
        query = f"?{urlencode(self.query)}" if self.query else ""
        prefix = f"{self.scheme}://{self._login if login is None else login}"
        endpoints: list[Endpoint] = []
        for host in self._hosts:
            place = host if re.search(r":\d+$", host) else f"{host}:{self._port}"
            endpoints.append(Endpoint.from_url(f"{prefix}{place}{query}", endpoints))
        return endpoints


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
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_NAMED_PORT = re.compile(r"(rediss?://[A-Za-z0-9_.-]+):(?![0-9]*[/?]|[0-9]*$)[^:@/?#]*(/[0-9]*)?")
"""A URL with a host and a port that is not a number."""
NO_PORT = (
    "the port is not a number (a login stands before the host: redis://user:password@host:6379)"
)
_PORT_ZERO = re.compile(r":0+$")
_UNKNOWN = re.compile(r".*unexpected keyword argument ('\w+')")


def spelled(url: str) -> str:
    """Return `url` with Redis's scheme instead of Valkey's, which has the same protocol."""
    url = url.strip()
    return "redis" + url.removeprefix("valkey") if url.startswith("valkey") else url


def check_arguments(addresses: Sequence[object]) -> None:
    """Reject one list instead of arguments, and a host and port as for redis-py."""
    for address in addresses:
        if isinstance(address, list | tuple | set | frozenset):
            raise ConfigurationError(
                "each node is an argument of its own: write connect(*nodes), with the asterisk"
            )
        if isinstance(address, int):
            host = addresses[0] if len(addresses) == 2 else "localhost"
            shown = host if isinstance(host, str) and _HOST.fullmatch(host) else "localhost"
            raise ConfigurationError(f"a node is a URL: write redis://{shown}:{address}")


def check_shape(url: str) -> None:
    """Reject URLs that redis-py would read as another server or database than the user meant."""
    # redis-py reads `redis:/h` as localhost and `/notadb` as database 0.
    if not url.startswith(SCHEMES):
        _reject_scheme(url)
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ConfigurationError("a node's URL can't be written as UTF-8") from None
    location, _, query = url.partition("://")[2].partition("?")
    hosts, _, path = location.partition("/")
    if _PORT_ZERO.search(hosts.rpartition("@")[2]):  # it would be read as the usual port
        raise ConfigurationError(f"{redacted(url)} is not a Redis address: no server has port 0")
    # With an unquoted # or ? in the password, the user would become the host.
    if "#" in url or not all(re.fullmatch(r"\w+=.*", pair) for pair in query.split("&") if pair):
        raise ConfigurationError(
            f"{redacted(url)} is not a Redis address: in a password, write # as %23, ? as %3F, "
            "/ as %2F and @ as %40"
        )
    if url.startswith(("redis://", "rediss://")) and not re.fullmatch(r"[0-9]*/?", path):
        shown, hint = redacted(url), "this (in a password, write / as %2F)"
        raise ConfigurationError(
            f"{shown} is not a Redis address: after the host comes the number of a "
            f"database, not {repr(path) if f'/{path}' in shown else hint}"
        )
    named = _NAMED_PORT.fullmatch(url)
    if named:  # or a password: `redis://user:password`, without the host
        raise ConfigurationError(f"'{named[1]}:***' is not a Redis address: {NO_PORT}")


def in_our_words(cause: str) -> str:
    """Return redis-py's text about a URL; that about a port or an unknown setting in our words."""
    if cause.startswith("Port could not be cast"):
        return NO_PORT
    found = _UNKNOWN.fullmatch(cause)
    return f"unknown setting {found[1]} in the URL" if found else cause


def _reject_scheme(url: str) -> None:
    scheme = url.partition(":")[0] if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", url) else ""
    shown = f"{scheme}:…" if scheme else redacted(url) if url.strip() else "an empty text"
    known = ", ".join((*SCHEMES, *_REGISTERED))
    host = re.fullmatch(r"([A-Za-z0-9_.-]+)(:\d{1,5})?", url)
    example = f"; write redis://{host[1]}{host[2] or ':6379'}" if host else ""
    raise ConfigurationError(f"{shown} is not a Redis address: it must begin with {known}{example}")


_HOST_AND_PORT = r"(?:[A-Za-z0-9_.%-]+|\[[0-9A-Fa-f:.]+\])?(?::\d{0,5})?"
_SHAPE = re.compile(
    r"(?P<scheme>[a-z][a-z+]*://)"
    r"(?:(?P<user>[^:@/?#\s]*)(?P<password>:[^@/?#\s]*)?@)?"
    rf"(?P<hosts>{_HOST_AND_PORT}(?:,\s*{_HOST_AND_PORT})*)"
    r"(?P<path>/[^@?#=\s]*)?"
    r"(?:\?(?P<query>[^@#\s]*))?"
)
_BARE = re.compile(r"[A-Za-z0-9_.-]+(?::\d{1,5})?/?\d*")
_SCHEME = re.compile(r"[a-z][a-z+]*://")
_QUOTED = re.compile(r"(argument |value for )?(['\"`]).*\2")
SHORTEST = 4
"""Minimum length of a password's beginning that is removed: servers cut long arguments off."""


def redacted(url: str) -> str:
    """Return `url` quoted for messages, without passwords and anything that may be part of one."""
    url = url.strip()
    match = _SHAPE.fullmatch(url)
    if match is None:
        scheme = _SCHEME.match(url)
        return repr(url if _BARE.fullmatch(url) else f"{scheme[0] if scheme else ''}***")
    login = ""
    if match["user"] is not None:
        # A user name without a password may be a token.
        login = "***@" if match["password"] is None else f"{match['user']}:***@"
    query = "" if match["query"] is None else f"?{_without_values(match['query'])}"
    return repr(f"{match['scheme']}{login}{match['hosts']}{match['path'] or ''}{query}")


def as_options(nodes: Iterable[object], given: Mapping[str, object]) -> str:
    """Return URLs, without passwords, and the settings that were given, as options of a command."""
    urls = [node for node in nodes if isinstance(node, str)]
    words = [word for url in urls for word in ("--node", redacted(url).strip("'"))]
    for option, value in given.items():
        words += (
            [] if value is None else [option, f"{value:g}" if type(value) is float else str(value)]
        )
    return shlex.join(words)


def _without_values(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return "&".join(f"{name}=***" if mark else "***" for name, mark, _ in pairs)


def harmless(error: Exception) -> str:
    """Return the text of an error about a URL, without the values that it quotes."""
    return _QUOTED.sub(lambda found: found[0] if found[1] else "…", str(error))


def without(text: str, secrets: Sequence[str]) -> str:
    """Return a server's reply without `secrets`, whole or cut off, and without our arguments."""
    text = text.partition(", with args beginning with")[0]
    for secret in secrets:
        while (length := _longest_prefix(text, secret)) >= min(SHORTEST, len(secret)) > 0:
            text = text.replace(secret[:length], "***")
    return text


def _longest_prefix(text: str, secret: str) -> int:
    """Return the length of the longest beginning of `secret` that occurs in `text`."""
    lengths = (n for n in range(len(secret), 0, -1) if secret[:n] in text)
    return 0 if secret in "***" else next(lengths, 0)  # noqa: S105 - what stands in its place
