"""Finds mistakes in the spelling of nodes' addresses, and says how to write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ConfigurationError
from .redaction import redacted

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
_PORT_ZERO = re.compile(r":0+(,|$)")
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


def reject_port_zero(hosts: str, shown: str) -> None:
    """Reject hosts with port 0, which would be read as the usual port; `shown` is their URL."""
    if _PORT_ZERO.search(hosts):
        raise ConfigurationError(f"{shown} is not a Redis address: no server has port 0")


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
    reject_port_zero(hosts.rpartition("@")[2], redacted(url))
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
    shown = f"{scheme}:…" if scheme else redacted(url)
    known = ", ".join((*SCHEMES, "memory://"))
    host = re.fullmatch(r"([A-Za-z0-9_.-]+)(:\d{1,5})?", url)
    example = f"; write redis://{host[1]}{host[2] or ':6379'}" if host else ""
    raise ConfigurationError(f"{shown} is not a Redis address: it must begin with {known}{example}")
