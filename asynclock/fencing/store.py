"""Where the highest fence of each lock is remembered, for checkers that do not write themselves."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from ..errors import ConfigurationError
from .stamp import Fenced, FenceStamp, StaleFenceError


class FenceStore(Protocol):
    """Remembers the highest fence per lock; `FencedRedis` is one, shared by many processes."""

    async def claim(self, lease: Fenced, /) -> None:
        """Remember this fence, or raise `StaleFenceError` if a higher one was seen."""


class MemoryFenceStore:
    """The highest fences that one process has seen.

    Right where one process is the only way to what is protected; several workers need a store
    they share. It forgets the names unused for longest beyond `max_names`, since names may come
    from strangers; a late request for a forgotten name is let through.
    """

    def __init__(self, max_names: int = 100_000) -> None:
        if max_names < 1:
            raise ConfigurationError(f"max_names must be at least 1, not {max_names!r}")
        self._max_names = max_names
        self._highest: OrderedDict[str, int] = OrderedDict()

    async def claim(self, lease: Fenced, /) -> None:
        """Remember this fence, or raise `StaleFenceError` if a higher one was seen."""
        stamp = FenceStamp.of(lease)
        highest = self._highest.get(stamp.name, 0)
        if stamp.fence < highest:
            raise StaleFenceError.refused(stamp, highest)
        self._highest[stamp.name] = stamp.fence
        self._highest.move_to_end(stamp.name)
        if len(self._highest) > self._max_names:
            self._highest.popitem(last=False)
