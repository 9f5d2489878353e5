"""A closed loop of load on any lock: tasks that acquire and release as fast as they can.

This file imports only the standard library: the benchmarks run it in the environments of other lock
libraries too, so that all are measured in the same way.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Subject(Protocol):
    """Anything that can be locked by name."""

    async def acquire(self, name: str) -> Any:
        """Wait until the name is held, and return the argument for ``release``."""

    async def release(self, lease: Any) -> None:
        """Release the lock that `acquire` returned ``lease`` for."""


Body = tuple[float, float, float, int]
"""A body: when its acquire was called, when it began and when its release was called, on the
performance clock; and its fence (0 without fences)."""


@dataclass(slots=True)
class Load:
    """The results of one run; all times are in seconds."""

    seconds: float = 0.0
    """The time in which tasks began cycles; ``count`` and ``cpu`` belong to this time."""
    count: int = 0
    cpu: float = 0.0
    waits: list[float] = field(default_factory=list)
    """For every finished cycle: the time from the call of ``acquire`` to the body."""
    cycles: list[float] = field(default_factory=list)
    """For every finished cycle: the time from the call of ``acquire`` to the end of ``release``."""
    bodies: list[Body] = field(default_factory=list)
    """The bodies of all finished cycles, with ``record``."""
    gap: float = 0.0
    """The longest time in which no cycle ended."""
    overlaps: int = 0
    """How often a body began in this process while another body of the same name ran."""
    unfinished: int = 0
    """Number of tasks that were still inside a call when the grace ended; they were cancelled."""
    errors: Counter[str] = field(default_factory=Counter)


def processor_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of the sorted values lie; nan without any."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def run_load(
    subject: Subject,
    names: Sequence[str],
    seconds: float,
    grace: float = 2.0,
    *,
    record: bool = False,
) -> Load:
    """Run one task per name for ``seconds``; equal names contend. ``record``: keep all bodies.

    A task begins no cycle after the end. A task that is still inside a call ``grace`` seconds later
    is cancelled and counted as unfinished. An error is counted by its type, and the task goes on.
    """
    load = Load()
    inside: Counter[str] = Counter()
    contended = len(set(names)) < len(names)
    clock = time.perf_counter
    begin = last = clock()
    until = begin + seconds

    async def one(name: str) -> None:
        nonlocal last
        while (started := clock()) < until:
            try:
                lease = await subject.acquire(name)
                entered = clock()
                if contended:
                    # Let other tasks run inside the body; otherwise an overlap could never be seen.
                    inside[name] += 1
                    load.overlaps += inside[name] > 1
                    await asyncio.sleep(0)
                    inside[name] -= 1
                left = clock()
                await subject.release(lease)
            except Exception as error:
                load.errors[type(error).__name__] += 1
                await asyncio.sleep(0.001)
                continue
            ended = clock()
            load.waits.append(entered - started)
            load.cycles.append(ended - started)
            if record:
                load.bodies.append((started, entered, left, getattr(lease, "fence", 0)))
            load.gap, last = max(load.gap, ended - last), ended

    cpu = processor_seconds()
    tasks = [asyncio.create_task(one(name)) for name in names]
    await asyncio.wait(tasks, timeout=until - clock())
    load.seconds, load.count = clock() - begin, len(load.cycles)
    load.cpu = processor_seconds() - cpu
    load.gap = max(load.gap, clock() - last)
    _, unfinished = await asyncio.wait(tasks, timeout=grace)
    load.unfinished = len(unfinished)
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    return load
