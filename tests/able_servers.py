"""Servers for what not every server or machine can do; without them the test is skipped."""

import functools
from collections.abc import Callable

import pytest

from asynclock.errors import ConfigurationError
from asynclock.testing import ServerBinary, all_servers, find_server, why_no_clock_jumps

WAITAOF_SINCE = (7, 2, 0)


def server_with_tls() -> ServerBinary:
    """Return the default server if it has TLS, else the first of this machine that has."""
    return _first(lambda binary: binary.tls) or pytest.skip("no server with TLS on this machine")


def server_with_waitaof() -> ServerBinary:
    """Return the default server if it can tell what is on disk, else the first that can."""
    found = _first(lambda binary: binary.version >= WAITAOF_SINCE)
    return found or pytest.skip("no server with WAITAOF (Redis 7.2) on this machine")


def need_clock_jumps() -> None:
    """Skip the test where no server can be started with `clock=True`."""
    if reason := why_no_clock_jumps():
        pytest.skip(reason)


def _first(able: Callable[[ServerBinary], bool]) -> ServerBinary | None:
    return next(filter(able, _by_preference()), None)


@functools.cache
def _by_preference() -> tuple[ServerBinary, ...]:
    try:
        default = find_server()
    except ConfigurationError:
        return ()
    return (default, *all_servers())
