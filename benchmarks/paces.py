"""The pace of each primitive with many tasks: a section of `benchmarks.primitives`.

The tasks of one process acquire and release, each a name of its own, as fast as they can. All
primitives run in turns, so that other load on the machine affects all alike, and a ratio is the
median of the ratios to the mutex of the same turn.

A server that is asked less often needs more time for the same command, because other code has
taken the processor's caches meanwhile. So each turn also runs mutexes at the pace of each
primitive: between two cycles their tasks use the CPU for as long as the primitive needs more of it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import asynclock
from asynclock.testing import local_servers
from asynclock.testing.load import processor_seconds
from benchmarks.nodes import Nodes

Locks = asynclock.LockManager
Take = Callable[[Locks, str], AbstractAsyncContextManager[object]]
TAKES: dict[str, Take] = {
    "lock": lambda locks, name: locks.lock(name),
    "fair_lock": lambda locks, name: locks.fair_lock(name),
    "election": lambda locks, name: locks.election(name).campaign("here"),
    "read": lambda locks, name: locks.rwlock(name).read(),
    "write": lambda locks, name: locks.rwlock(name).write(),
    "semaphore": lambda locks, name: locks.semaphore(name, 3),
    "several(2)": lambda locks, name: locks.semaphore(name, 3).several(2),
    "multi_lock": lambda locks, name: locks.multi_lock(name, f"{name}:other"),
}
Figures = tuple[float, float, float]
"""Seconds per cycle: of the clock, of the client's CPU, and of the servers' CPU."""
PACED = "lock at the pace of "
"""Begins the kind of a mutex whose tasks are as slow as those of the primitive after it."""


async def _load(locks: Locks, kind: str, tasks: int, cycles: int, rest: float) -> None:
    """Run all tasks; each uses the CPU for `rest` seconds before a cycle."""
    take = TAKES["lock" if kind.startswith(PACED) else kind]

    async def work(name: str) -> None:
        for _ in range(cycles):
            until = time.perf_counter() + rest
            while rest and time.perf_counter() < until:
                pass
            async with take(locks, name):
                pass

    work_all: list[Awaitable[None]] = [work(f"{kind}:{number}") for number in range(tasks)]
    await asyncio.gather(*work_all)


async def _turns(
    nodes: int, tasks: int, turns: int, cycles: int, kinds: Sequence[str]
) -> dict[str, list[Figures]]:
    async with local_servers(nodes) as servers:
        able = Nodes(servers, {})
        async with asynclock.connect(*able.urls, restart_guard=False) as locks:

            async def run(kind: str, rest: float = 0.0) -> Figures:
                used, own, began = await able.counters(), processor_seconds(), time.perf_counter()
                await _load(locks, kind, tasks, cycles, rest)
                passed, own = time.perf_counter() - began, processor_seconds() - own
                used = await able.counters() - used
                each = tasks * cycles
                return passed / each, own / each, used.cpu / each

            seen: dict[str, list[Figures]] = {}
            for _ in range(turns + 1):
                mutex = await run("lock")
                seen.setdefault("lock", []).append(mutex)
                for kind in kinds:
                    figures = await run(kind)
                    paced = await run(PACED + kind, max(0.0, figures[1] - mutex[1]))
                    seen.setdefault(kind, []).append(figures)
                    seen.setdefault(PACED + kind, []).append(paced)
            return {kind: figures[1:] for kind, figures in seen.items()}  # the first one warms up


def measure(tasks: int, turns: int, cycles: int, only: Sequence[str] | None) -> int:
    """Print pace and costs on one server and on a quorum of five, as ratios to the mutex."""
    kinds = [kind for kind in TAKES if kind != "lock" and kind in (only or TAKES)]
    for nodes in (1, 5):
        seen = asyncio.run(_turns(nodes, tasks, turns, cycles, kinds))
        mutex = seen["lock"]
        print(f"N = {nodes}, {tasks} tasks: mutex {1 / _median(mutex, 0):,.0f} cycles/s")
        print(f"{'pace':>20}{'client CPU':>20}{'CPU of servers':>20}{'at its pace':>14}")
        for kind in ("lock", *kinds):
            figures = seen[kind]
            pace, client, server = (_ratio(figures, mutex, i) for i in range(3))
            cells = [
                f"{_median(figures, i) * 1e6:9.1f} µs ({of:4.2f}×)"
                for i, of in ((1, client), (2, server))
            ]
            if kind != "lock":
                cells.append(f"{_ratio(figures, seen[PACED + kind], 2):12.2f}×")
            print(f"  {kind:<12}{1 / pace:6.2f}", *cells, flush=True)
    return 0


def _median(figures: Sequence[Figures], which: int) -> float:
    return statistics.median(one[which] for one in figures)


def _ratio(figures: Sequence[Figures], mutex: Sequence[Figures], which: int) -> float:
    return statistics.median(one[which] / of[which] for one, of in zip(figures, mutex, strict=True))
