"""Two managers of code that blocks, as of two processes on real servers."""

from collections.abc import Iterator
from typing import Any

import pytest

from asynclock import blocking

TTL = 60.0
"""Seconds: longer than any test, so a name is free only because it was released."""
SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 2.0, "restart_guard": False}


@pytest.fixture
def others(urls: list[str]) -> Iterator[blocking.LockManager]:
    with blocking.connect(*urls, **SETTINGS) as locks:
        yield locks
