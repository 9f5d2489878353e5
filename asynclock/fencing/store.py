"""Stores for the highest fence of each lock, for checks that are separate from the write."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from ..errors import ConfigurationError
from .stamp import Fenced, FenceStamp, StaleFenceError


class FenceStore(Protocol):
    """Stores the highest fence per lock; `FencedRedis` is one that many processes can share."""

    async def claim(self, lease: Fenced, /) -> None:
        """Store this fence, or raise `StaleFenceError` if a higher one was seen."""


class MemoryFenceStore:
    """Stores the highest fences that one process has seen.

    Use it only if a single process guards the protected resource; several workers need a shared
    store. Names may come from strangers, so beyond `max_names` (each part of a name counts) it
    forgets the name that was unused for longest. A late request for a forgotten name passes.
    """

    def __init__(self, max_names: int = 100_000) -> None:
        if max_names < 1:
            raise ConfigurationError(f"max_names must be at least 1, not {max_names!r}")
        self._max_names = max_names
        self._highest: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def claim(self, lease: Fenced, /) -> None:
        """Store this fence, or raise `StaleFenceError` if a higher one was seen."""
        stamp = FenceStamp.of(lease)
        highest = max(self._highest.get((stamp.name, part), 0) for part in stamp.rivals)
        if stamp.fence < highest:
            raise StaleFenceError.refused(stamp, highest)
        own = (stamp.name, stamp.part)
        self._highest[own] = max(stamp.fence, self._highest.get(own, 0))
        self._highest.move_to_end(own)
        if len(self._highest) > self._max_names:
            self._highest.popitem(last=False)
