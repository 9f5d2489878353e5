"""Managers that are patient with a busy machine, for all tests that are not about timeouts."""

from collections.abc import Iterable
from typing import Any

import asynclock
from asynclock.testing import LocalServer

LONGEST = 2.0
"""Seconds for a node's answer while the machine gives its processors to others."""
USUAL = 0.25
"""The library's own default; tests with a shorter ttl name another."""
LASTING = 120.0
"""Seconds; far longer than any test waits, so that no lease is free because its ttl ran out."""


def node_timeout(*, ttl: float = 10.0, max_ttl: float | None = None, **_others: Any) -> float:
    """Return the longest timeout that suits these settings of a manager, up to LONGEST."""
    return min(LONGEST, max(USUAL, ttl / 3), (max_ttl or max(ttl, 10.0)) / 4)


def lasting(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a manager, with leases that outlast the test unless it names a ttl."""
    named = {"ttl", "max_ttl"} & settings.keys()
    return settings if named else {"ttl": LASTING, "max_ttl": LASTING, **settings}


def connect(*addresses: Any, **settings: Any) -> asynclock.LockManager:
    """`asynclock.connect`, patient unless the test names a node timeout."""
    return asynclock.connect(*addresses, **{"node_timeout": node_timeout(**settings), **settings})


def connect_to(nodes: Iterable[LocalServer], **settings: Any) -> asynclock.LockManager:
    """`connect` to servers that may have been started just now."""
    return connect(*(node.url for node in nodes), **{"restart_guard": False, **settings})
