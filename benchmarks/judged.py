"""Checks the histories of contended runs, and how long a process waited."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asynclock.testing import Event, check

Body = tuple[float, float, float, int, int]
"""A body: when its acquire was called, its begin and end (seconds), its fence, its worker."""


def recorded(paths: Sequence[Path]) -> list[Body]:
    """Read the bodies that some workers have written, in the order in which they began.

    All processes of a machine read one performance clock.
    """
    found: list[Body] = []
    for process, path in enumerate(paths):
        numbers = array("d")
        numbers.frombytes(path.read_bytes())
        for began, entered, left, fence in zip(*[iter(numbers)] * 4, strict=True):
            found.append((began, entered, left, int(fence), process))
    return sorted(found, key=lambda body: body[1])


def body(taken: Mapping[str, Any], ended: float, process: int) -> Body:
    """Make the body from a worker's answer when it got the lock."""
    return taken["at"] - taken["took"], taken["at"], ended, taken.get("fence", 0), process


def violations(bodies: Iterable[Body], *, fences: bool = True) -> int:
    """Return the number of violations of mutual exclusion or of the order of fences."""
    events = (
        Event("acquired", str(n), "hot", str(process), fence, entered, began, left)
        for n, (began, entered, left, fence, process) in enumerate(bodies)
    )
    return len(check(events, fences=fences))


def longest_wait(bodies: Sequence[Body], processes: int) -> int:
    """Return the maximum number of bodies of other processes between two of the same process."""
    waits = []
    for process in range(processes):
        places = [n for n, (*_, whose) in enumerate(bodies) if whose == process]
        steps = itertools.pairwise([-1, *places, len(bodies)])
        waits.append(max(after - before - 1 for before, after in steps))
    return max(waits)


def overtaken(bodies: Sequence[Body], before: float) -> int:
    """Return the maximum number of bodies that overtook one waiter.

    A body overtook it if it began earlier although its acquire was called `before` seconds later.
    """
    worst = 0
    for place, (asked, *_) in enumerate(bodies):
        earlier = 0
        for rival in reversed(bodies[:place]):
            if rival[1] <= asked + before:
                break
            earlier += rival[0] > asked + before
        worst = max(worst, earlier)
    return worst
