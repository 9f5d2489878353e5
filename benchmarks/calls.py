"""Counts what an uncontended acquire and its release run: Python calls, files and coroutines.

    python -m benchmarks.calls [-v]

The nodes are in memory, and the lock is warm. A call is one start or one resumption of a Python
function of the package while the calling task awaits the lock; the in-memory server's own work is
not counted. Timers add calls to some cycles, so the cycle with the fewest calls is shown. Unlike a
time, these counts are the same on every machine.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import asynclock

PACKAGE = Path(asynclock.__file__).parent
CYCLES = 40


class Profile:
    """The calls inside a `with`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.depth = 0
        """Maximum number of the package's coroutines that ran inside each other."""

    def total(self) -> int:
        """Return the number of calls."""
        return self.calls.total()

    @property
    def files(self) -> set[str]:
        """The files of the package that ran."""
        return {name.partition(":")[0] for name in self.calls}

    def __enter__(self) -> Profile:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _arg: Any) -> None:
        place = _place(frame.f_code.co_filename) if event == "call" else ""
        if not place or place.startswith("testing/"):
            return
        self.calls[f"{place}:{frame.f_code.co_qualname}"] += 1
        self.depth = max(self.depth, _coroutines(frame))


@functools.cache
def _place(file: str) -> str:
    """Return the path of `file` inside the package; "" for any other file."""
    path = Path(file)
    return path.relative_to(PACKAGE).as_posix() if PACKAGE in path.parents else ""


def _coroutines(frame: FrameType | None) -> int:
    found = 0
    while frame is not None:
        code = frame.f_code
        found += bool(_place(code.co_filename) and code.co_flags & inspect.CO_COROUTINE)
        frame = frame.f_back
    return found


async def measure(nodes: int) -> tuple[Profile, Profile]:
    """Return the profiles of one acquire and of one release on this many nodes."""
    async with asynclock.connect(*(f"memory://calls-{n}" for n in range(nodes))) as locks:
        lock = locks.lock("calls")
        acquires, releases = [], []
        for _ in range(CYCLES):
            with Profile() as acquire:
                await lock.__aenter__()
            with Profile() as release:
                await lock.__aexit__(None, None, None)
            acquires.append(acquire)
            releases.append(release)
        return min(acquires, key=Profile.total), min(releases, key=Profile.total)


def main() -> None:
    """Print the counts for one node and for three; with "-v", each function as well."""
    print(f"{'nodes':>5} {'':8} {'calls':>6} {'files':>6} {'depth':>6}")
    for nodes in (1, 3):
        for name, profile in zip(("acquire", "release"), asyncio.run(measure(nodes)), strict=True):
            figures = profile.total(), len(profile.files), profile.depth
            print(f"{nodes:>5} {name:8} {figures[0]:>6} {figures[1]:>6} {figures[2]:>6}")
            if "-v" in sys.argv:
                for function, count in sorted(profile.calls.items()):
                    print(f"{'':14} {count:>6} {function}")


if __name__ == "__main__":
    main()
