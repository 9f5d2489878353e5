"""The pace of each primitive with many tasks: a section of `benchmarks.primitives`.

The tasks of one process acquire and release, each a name of its own, as fast as they can. All
primitives run in turns, so that other load on the machine affects all alike, and a ratio is the
median of the ratios to the mutex of the same turn.
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


async def _load(locks: Locks, take: Take, kind: str, tasks: int, cycles: int) -> None:
    async def work(name: str) -> None:
        for _ in range(cycles):
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
            seen: dict[str, list[Figures]] = {kind: [] for kind in kinds}
            for turn in range(turns + 1):
                for kind in kinds:
                    used, own, began = (
                        await able.counters(),
                        processor_seconds(),
                        time.perf_counter(),
                    )
                    await _load(locks, TAKES[kind], kind, tasks, cycles)
                    passed, own = time.perf_counter() - began, processor_seconds() - own
                    used = await able.counters() - used
                    if turn:  # the first one warms up
                        each = tasks * cycles
                        seen[kind].append((passed / each, own / each, used.cpu / each))
            return seen


def measure(tasks: int, turns: int, cycles: int, only: Sequence[str] | None) -> int:
    """Print pace and costs on one server and on a quorum of five, as ratios to the mutex."""
    kinds = ["lock", *(kind for kind in TAKES if kind != "lock" and kind in (only or TAKES))]
    for nodes in (1, 5):
        seen = asyncio.run(_turns(nodes, tasks, turns, cycles, kinds))
        mutex = seen["lock"]
        print(f"N = {nodes}, {tasks} tasks: mutex {1 / _median(mutex, 0):,.0f} cycles/s")
        print(f"{'pace':>20}{'client CPU':>20}{'CPU of servers':>20}")
        for kind, figures in seen.items():
            pace, client, server = (_ratio(figures, mutex, i) for i in range(3))
            cells = [
                f"{_median(figures, i) * 1e6:9.1f} µs ({of:4.2f}×)"
                for i, of in ((1, client), (2, server))
            ]
            print(f"  {kind:<12}{1 / pace:6.2f}", *cells, flush=True)
    return 0


def _median(figures: Sequence[Figures], which: int) -> float:
    return statistics.median(one[which] for one in figures)


def _ratio(figures: Sequence[Figures], mutex: Sequence[Figures], which: int) -> float:
    return statistics.median(one[which] / of[which] for one, of in zip(figures, mutex, strict=True))
