"""What each primitive costs beside the mutex: `python -m benchmarks.primitives [--cycles N]`.

Uncontended acquire and release by one task on local servers, in short blocks taken in turns so
that whatever else the machine does hits all alike; the ratio is that of the medians over blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import asynclock
from asynclock.testing import local_servers

BAR = 1.5
"""No primitive may cost more than so many mutexes."""

Cycle = Callable[[], Awaitable[object]]


def cycles(locks: asynclock.LockManager, *, fair: bool) -> dict[str, Cycle]:
    """One acquire and release of each primitive."""
    rwlock = locks.rwlock("rw")
    wanted: dict[str, AbstractAsyncContextManager[object]] = {
        "lock": locks.lock("mutex"),
        "rwlock.read": rwlock.read(),
        "rwlock.write": rwlock.write(),
        "semaphore(3)": locks.semaphore("pool", 3),
        "multi_lock(3 names)": locks.multi_lock("one", "two", "three"),
    }
    if fair:
        wanted["fair_lock"] = locks.fair_lock("queue")
    made: dict[str, Cycle] = {name: _cycle(lock) for name, lock in wanted.items()}
    reentrant = locks.reentrant_lock("again")

    async def outer() -> None:
        async with reentrant:
            pass

    made["reentrant_lock"] = outer
    return made


def _cycle(lock: AbstractAsyncContextManager[object]) -> Cycle:
    async def cycle() -> None:
        async with lock:
            pass

    return cycle


async def measure(nodes: int, blocks: int, per_block: int) -> dict[str, float]:
    """Seconds per cycle of each primitive, on so many nodes."""
    async with local_servers(nodes) as servers:
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            todo = cycles(locks, fair=nodes == 1)
            taken: dict[str, list[float]] = {name: [] for name in todo}
            for block in range(blocks + 1):
                for name, cycle in todo.items():
                    started = time.perf_counter()
                    for _ in range(per_block):
                        await cycle()
                    if block:  # the first one warms up
                        taken[name].append((time.perf_counter() - started) / per_block)
            return {name: statistics.median(times) for name, times in taken.items()}


def report(nodes: int, taken: dict[str, float]) -> bool:
    """Print a table. → whether each primitive is within the bar."""
    mutex = taken["lock"]
    print(f"N = {nodes}: mutex {mutex * 1e6:.0f} µs per cycle")
    for name, seconds in taken.items():
        print(f"  {name:<20} {seconds * 1e6:7.0f} µs  {seconds / mutex:5.2f}x")
    return all(seconds <= BAR * mutex for seconds in taken.values())


def main() -> int:
    """Measure one server and a quorum of five."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=50, help="cycles in one block")
    parser.add_argument("--blocks", type=int, default=30)
    options = parser.parse_args()
    within = [
        report(nodes, asyncio.run(measure(nodes, options.blocks, options.cycles)))
        for nodes in (1, 5)
    ]
    return 0 if all(within) else 1


if __name__ == "__main__":
    raise SystemExit(main())
