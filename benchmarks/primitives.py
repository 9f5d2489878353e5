"""Compares the cost of each primitive with the mutex: `python -m benchmarks.primitives`.

`python -m benchmarks.primitives pace` compares them with many tasks, a name each (paces.py);
`python -m benchmarks.primitives writers` shows how long writers wait among readers (writers.py).

The cost is that of an uncontended acquire and release by one task on local servers, in short blocks
in turns, so that other load on the machine affects all alike. A ratio is the median of the ratios
to the mutex of the same turn.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import asynclock
from asynclock.testing import local_servers
from benchmarks import paces, writers

BAR = 1.5
"""Maximum cost of a primitive, as a multiple of the mutex."""

Cycle = Callable[[], Awaitable[object]]
Entered = AbstractAsyncContextManager[object]


def cycles(locks: asynclock.LockManager, *, fair: bool) -> dict[str, Cycle]:
    """Return one use of each primitive without rivals: acquire and release, or a change."""
    rwlock, election, event = locks.rwlock("rw"), locks.election("crown"), locks.event("bell")
    barrier, turns = locks.barrier("door", 1), itertools.count()
    wanted: dict[str, Entered] = {
        "lock": locks.lock("mutex"),
        "rwlock.read": rwlock.read(),
        "rwlock.write": rwlock.write(),
        "semaphore(3)": locks.semaphore("pool", 3),
        "multi_lock(3 names)": locks.multi_lock("one", "two", "three"),
        "reentrant_lock": locks.reentrant_lock("again"),
    }
    if fair:
        wanted["fair_lock"] = locks.fair_lock("queue")
    made: dict[str, Cycle] = {name: _cycle(lock) for name, lock in wanted.items()}

    @locks.synchronized("orders:{number}")
    async def synchronized(number: int) -> None:
        pass

    async def campaign() -> None:
        async with election.campaign("here"):
            pass

    async def change() -> None:
        await (event.set if next(turns) % 2 else event.clear)()

    made["synchronized"] = lambda: synchronized(7)
    made["election.campaign"] = campaign
    made["event.set or clear"] = change
    made["event.wait (set)"] = locks.event("rung").wait
    made["latch.count_down"] = lambda: locks.latch(f"latch:{next(turns)}", 1).count_down()
    made["barrier(1).wait"] = barrier.wait
    return made


def _cycle(lock: Entered) -> Cycle:
    async def cycle() -> None:
        async with lock:
            pass

    return cycle


Taken = dict[str, list[float]]
"""The seconds per cycle of each primitive, in each turn."""


async def measure(nodes: int, blocks: int, per_block: int) -> Taken:
    """Measure each primitive on this number of nodes."""
    async with local_servers(nodes) as servers:
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            await locks.event("rung").set()
            todo = cycles(locks, fair=nodes == 1)
            taken: Taken = {name: [] for name in todo}
            for block in range(blocks + 1):
                for name, cycle in todo.items():
                    started = time.perf_counter()
                    for _ in range(per_block):
                        await cycle()
                    if block:  # the first one warms up
                        taken[name].append((time.perf_counter() - started) / per_block)
            return taken


def report(nodes: int, taken: Taken) -> bool:
    """Print a table; return whether each primitive is within the bar."""
    mutex = taken["lock"]
    print(f"N = {nodes}: mutex {statistics.median(mutex) * 1e6:.0f} µs per cycle")
    within = True
    for name, times in taken.items():
        ratio = statistics.median(one / of for one, of in zip(times, mutex, strict=True))
        print(f"  {name:<20} {statistics.median(times) * 1e6:7.0f} µs  {ratio:5.2f}x")
        within = within and ratio <= BAR
    return within


def main() -> int:
    """Measure one server and a quorum of five; return 0 if all is within the bars."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("section", nargs="?", choices=("cost", "pace", "writers"), default="cost")
    parser.add_argument("--cycles", type=int, default=20, help="cycles in one block")
    parser.add_argument("--blocks", type=int, default=75)
    parser.add_argument("--writes", type=int, default=500, help="number of writes in a run")
    parser.add_argument("--tasks", type=int, default=100, help="tasks of `pace`")
    parser.add_argument("--turns", type=int, default=5, help="turns of `pace`")
    parser.add_argument("--only", nargs="+", help="primitives that `pace` compares with `lock`")
    options = parser.parse_args()
    if options.section == "pace":
        return paces.measure(options.tasks, options.turns, options.cycles, options.only)
    if options.section == "writers":
        return 0 if writers.measure(options.writes) else 1
    within = [
        report(nodes, asyncio.run(measure(nodes, options.blocks, options.cycles)))
        for nodes in (1, 5)
    ]
    return 0 if all(within) else 1


if __name__ == "__main__":
    raise SystemExit(main())
