"""What the page shows, as plain data; everything in it is text from outside to whoever shows it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import asdict
from typing import Any

from ..._engine.inspection import Inspection
from ...cli._survey import survey
from ...events import Event, Lost
from ...manager import LockManager

FRESH = 1.0
"""Seconds that a picture serves all who look, so that many viewers ask the nodes no more often."""
MOST_LOCKS = 500
MOST_LOSSES = 50


class Painter:
    """Makes pictures of one manager and its nodes."""

    def __init__(self, locks: LockManager) -> None:
        self._locks = locks
        self._losses: deque[dict[str, Any]] = deque(maxlen=MOST_LOSSES)
        self._turn = asyncio.Lock()
        self._last: dict[str, Any] = {}
        self._made = float("-inf")
        locks.observe(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, Lost):
            self._losses.appendleft({**asdict(event), "at": time.time()})

    async def picture(self) -> dict[str, Any]:
        """The present state; takes at most some node timeouts. Raises ConfigurationError."""
        async with self._turn:
            if time.monotonic() - self._made > FRESH:
                self._last = await self._make()
                self._made = time.monotonic()
        return self._last

    async def _make(self) -> dict[str, Any]:
        found = await survey(self._locks)
        ours = {lease.owner for lease in self._locks.leases()}
        nodes = [asdict(node) for node in self._locks.nodes()]
        statistics = self._locks.statistics()
        return {
            "at": time.time(),
            "quorum": len(nodes) // 2 + 1,
            "held": len(found.places),
            "locks": [_lock(place, ours) for place in found.places[:MOST_LOCKS]],
            "waiters": _waiters(self._locks.waiters(), found.waiting),
            "nodes": nodes,
            "losses": list(self._losses),
            "totals": {
                "acquired": statistics.acquired,
                "lost": statistics.lost,
                "refused": statistics.refused,
                "waiting": statistics.waiting,
            },
        }


def _waiters(here: dict[str, int], known: dict[str, int]) -> list[dict[str, Any]]:
    # Most waiters are known to their own process alone; fair locks and writers to the nodes, too.
    counts = {name: max(here.get(name, 0), known.get(name, 0)) for name in here | known}
    return [{"name": name, "count": count} for name, count in sorted(counts.items())]


def _lock(found: Inspection, ours: set[str]) -> dict[str, Any]:
    return {
        "name": found.name,
        "part": found.part,
        "holder": found.holder,
        "fence": found.fence,
        "remaining": found.remaining,
        "nodes": sum(view.owner is not None for view in found.nodes),
        "agreed": found.agreed and found.owner is not None,
        "ours": found.owner in ours,
    }
