"""One file per system: the same four calls, with the system's own defaults.

A setting is changed only if its default makes a scenario impossible. A peer that gives up after a
few tries is set to continue, because every scenario measures the time until the lock is held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

PERMITS = 2
"""Permits of each semaphore."""


class Adapter(ABC):
    """The interface through which a worker process drives one system."""

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

    async def try_acquire(self, name: str) -> Any:  # noqa: ARG002 - for subclasses
        """Try once; return None if the name was not won. Only some systems are asked."""
        raise TypeError(f"{type(self).__name__}: no way to try once")

    async def acquire_within(self, name: str, seconds: float) -> Any:  # noqa: ARG002 - for subclasses
        """Wait for a limited time; return None after it. Only some systems are asked."""
        raise TypeError(f"{type(self).__name__}: no way to wait for a limited time")

    def entered(self, name: str) -> AbstractAsyncContextManager[Any]:
        """Return the lock as users enter it with ``async with``. Only some systems are asked."""
        raise TypeError(f"{type(self).__name__}: {name!r} cannot be entered")

    def blocking(self) -> tuple[Callable[[str], Any], Callable[[Any], object]]:
        """Return what takes and releases a name in code that blocks. Only some systems are asked.

        It uses clients of its own, which end with the process.
        """
        raise TypeError(f"{type(self).__name__}: nothing for code that blocks")

    @abstractmethod
    async def release(self, lease: Any) -> None:
        """Release the name."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    def held(self, lease: Any) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether the system believes that it still holds; only used if it renews."""
        raise TypeError(f"{type(self).__name__} renews nothing")  # most systems can't say more
