"""One file per system: the same four calls, with the system's own defaults.

Only what a default makes impossible is set: a peer that gives up after a few tries is told to go
on, because every scenario measures how long it takes to hold the lock, not how soon one gives up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class Adapter(ABC):
    """How a worker process drives one system."""

    def __init__(self, urls: Sequence[str], ttl: float, options: Mapping[str, Any]) -> None:
        self.urls = urls
        self.ttl = ttl
        self.options = options

    @abstractmethod
    async def open(self) -> None:
        """Make the clients."""

    @abstractmethod
    async def acquire(self, name: str) -> Any:
        """Wait until the name is held."""

    @abstractmethod
    async def release(self, lease: Any) -> None:
        """Give it back."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    def held(self, lease: Any) -> bool:
        """Whether the system believes that it still holds; only asked of those that renew."""
        raise TypeError(f"{type(self).__name__} renews nothing")  # most know no more than that
