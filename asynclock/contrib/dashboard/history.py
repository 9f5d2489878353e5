"""What the page has seen in the last minutes, for its charts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STEP = 5.0
"""Seconds of one point of a chart."""
POINTS = 120
"""Maximum number of points."""
MOST_WAITS = 2000
"""Maximum number of waits from which a point's percentiles are taken."""


@dataclass(slots=True)
class Point:
    """What was seen in one step."""

    at: float
    """The end of the step, in seconds since 1970."""
    seconds: float = 0.0
    """The part of the step in which the nodes were watched."""
    acquired: int = 0
    ran_out: int = 0
    lost: int = 0
    """Number of leases that this process has lost."""
    waiting: int = 0
    longest: float = 0.0
    """Seconds of the longest wait."""
    waits: list[float] = field(default_factory=list)
    """Seconds that this process waited for its leases."""

    def as_json(self) -> dict[str, Any]:
        """Return the point for a chart; null where nothing is known."""
        waits = sorted(self.waits)
        return {
            "at": self.at,
            "acquired": self.acquired / self.seconds if self.seconds else None,
            "ran_out": self.ran_out,
            "lost": self.lost,
            "waiting": self.waiting,
            "longest": self.longest,
            "p50": waits[len(waits) // 2] if waits else None,
            "p99": waits[len(waits) * 99 // 100] if waits else None,
        }


class History:
    """The points of the last minutes, the last one last."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._counted: Mapping[str, int] = {}
        self._last = float("-inf")
        self._first: Mapping[str, int] = {}
        """The counts since when the nodes have been watched."""
        self.waits: deque[float] = deque(maxlen=MOST_WAITS)
        """Waits of this process since the last picture."""
        self.losses: int = 0
        """Number of losses of this process since the last picture."""
        self.watched: float = 0.0
        """Since when the nodes have been watched without a gap, in seconds since 1970."""

    def note(
        self, now: float, pace: float, counts: Mapping[str, int], waiting: int, longest: float
    ) -> None:
        """Add a picture; after a gap of some of its `pace` the nodes count as not watched."""
        passed = now - self._last
        gap = passed > 3 * pace + STEP
        if gap:
            self.watched, self._first = now, dict(counts)
        end = (now // STEP + 1) * STEP
        if not self._points or self._points[-1].at != end:
            self._points.append(Point(end))
        point, before = self._points[-1], self._counted
        self._counted, self._last = dict(counts), now
        if not gap:
            point.seconds += passed
            point.acquired += counts.get("acquired", 0) - before.get("acquired", 0)
            point.ran_out += counts.get("ran out", 0) - before.get("ran out", 0)
        point.lost += self.losses
        point.waiting, point.longest = max(point.waiting, waiting), max(point.longest, longest)
        point.waits = [*point.waits, *self.waits][-MOST_WAITS:]
        self.waits.clear()
        self.losses = 0

    def seen(self, what: str) -> int:
        """Return how often something was counted since the nodes have been watched."""
        return self._counted.get(what, 0) - self._first.get(what, 0)

    def as_json(self) -> list[dict[str, Any]]:
        """Return all points, the last one last."""
        return [point.as_json() for point in self._points]
