"""The moments at which grants must be checked; all grants of one batch share a moment."""

from __future__ import annotations

import heapq

from .grant import Grant


class Moments:
    """A heap of moments, and the grants of each."""

    __slots__ = ("_due", "_entries", "_heap")

    def __init__(self) -> None:
        self._due: dict[float, list[Grant]] = {}
        """For each moment: the grants to check then, and some that have another moment by now."""
        self._heap: list[float] = []
        """The moments."""
        self._entries = 0
        """Number of grants in all lists."""

    def add(self, grant: Grant, at: float) -> bool:
        """Note to check `grant` at that moment; return whether the moment is a new one."""
        self._entries += 1
        grants = self._due.get(at)
        if grants is not None:
            grants.append(grant)
            return False
        self._due[at] = [grant]
        heapq.heappush(self._heap, at)
        return True

    @property
    def first(self) -> float | None:
        """The earliest moment; None if nothing is due."""
        return self._heap[0] if self._heap else None

    def take(self, until: float) -> list[Grant]:
        """Remove the moments up to `until`, and later ones without a grant; return the grants."""
        due: dict[Grant, None] = {}  # a grant may be there twice with the same moment
        heap = self._heap
        while heap and (heap[0] <= until or not self._at(heap[0])):
            at = heapq.heappop(heap)
            due.update(dict.fromkeys(self._at(at)))
            self._entries -= len(self._due.pop(at))
        return list(due)

    def tidy(self, alive: int) -> None:
        """Drop what is left of grants that are over, if `alive` grants need much less room."""
        if self._entries > 64 and self._entries > 4 * alive:
            self._due = {at: live for at in self._heap if (live := self._at(at))}
            self._entries = sum(map(len, self._due.values()))
            self._heap = list(self._due)
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Drop all."""
        self._heap.clear()
        self._due.clear()
        self._entries = 0

    def _at(self, at: float) -> list[Grant]:
        # Most grants are over by then, or have another moment.
        return [grant for grant in self._due[at] if grant.alarm == at]
