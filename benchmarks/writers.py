"""How long writers wait while nine of ten want to read: a section of `benchmarks.primitives`.

Readers in several managers read all the time, so without preference a writer would never find the
name free. A writer waits for the present readers, at most for the longest of them, and then for the
wake-up and the vote: that is the bar. With several writers, a writer also waits for the earlier
ones, each with its own readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import asynclock
from asynclock.testing import local_servers
from asynclock.testing.load import quantile

BAR = 0.2
"""Seconds that a writer's wait may be above the longest reader, in 99 of 100 cases."""
MANAGERS = 4
"""Each with connections of its own, so that nobody is handed a name by a neighbour only."""
READ = (0.005, 0.05)
"""Seconds that a reader reads: from, to."""
WRITE = 0.002
PAUSE = 0.02
"""Seconds that one of n writers does something else: n times half to one and a half of this, so
that nine of ten holds stay readers'."""


@dataclass
class Seen:
    """What happened in one run. Times are seconds."""

    waits: list[float] = field(default_factory=list)
    """Of writers, from wanting to write to the body."""
    reads: int = 0
    longest: float = 0.0
    """The longest reader, from its body to the end of its release."""
    reading: int = 0
    """Readers inside now."""
    peak: int = 0
    over: bool = False
    overlaps: int = 0
    """Bodies beside a writer's."""


async def scenario(nodes: int, writers: int, wanted: int) -> Seen:
    """Nine readers for each writer, at least 18, until `wanted` times somebody wrote."""
    seen, chance = Seen(), random.Random(7)
    async with contextlib.AsyncExitStack() as stack:
        servers = await stack.enter_async_context(local_servers(nodes))
        urls = [server.url for server in servers]
        made = [asynclock.connect(*urls, restart_guard=False) for _ in range(MANAGERS)]
        locks = [(await stack.enter_async_context(one)).rwlock("settings") for one in made]
        for one in locks:
            async with one.read():
                pass
        readers = max(18, 9 * writers)
        reading = [
            asyncio.create_task(_read(locks[number % MANAGERS], seen, chance))
            for number in range(readers)
        ]
        await asyncio.gather(
            *(
                _write(locks[number % MANAGERS], seen, chance, wanted, PAUSE * writers)
                for number in range(writers)
            )
        )
        seen.over = True
        await asyncio.gather(*reading)
    return seen


async def _read(lock: asynclock.ReadWriteLock, seen: Seen, chance: random.Random) -> None:
    while not seen.over:
        lease = await lock.read().acquire()
        started = time.perf_counter()
        seen.reading += 1
        seen.peak = max(seen.peak, seen.reading)
        await asyncio.sleep(chance.uniform(*READ))
        seen.reading -= 1
        await lease.release()
        seen.longest = max(seen.longest, time.perf_counter() - started)
        seen.reads += 1


async def _write(
    lock: asynclock.ReadWriteLock, seen: Seen, chance: random.Random, wanted: int, pause: float
) -> None:
    while len(seen.waits) < wanted:
        await asyncio.sleep(pause * chance.uniform(0.5, 1.5))
        started = time.perf_counter()
        async with lock.write():
            seen.waits.append(time.perf_counter() - started)
            seen.overlaps += seen.reading
            await asyncio.sleep(WRITE)
            seen.overlaps += seen.reading


def report(nodes: int, writers: int, seen: Seen) -> bool:
    """Print a line; return whether writers waited within the bar and wrote alone."""
    waits = sorted(seen.waits)
    p50, p99, last = quantile(waits, 0.5), quantile(waits, 0.99), waits[-1]
    share = seen.reads / (seen.reads + len(waits))
    print(
        f"N = {nodes}, {writers} writer{'s' * (writers > 1)}: {len(waits)} writes wait "
        f"p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, longest {last * 1e3:.0f} ms; longest "
        f"reader {seen.longest * 1e3:.0f} ms, p99 {(p99 - seen.longest) * 1e3:+.0f} ms beside it; "
        f"{seen.peak} readers at once, {share:.0%} of all reads, {seen.overlaps} overlaps"
    )
    return p99 <= seen.longest + BAR and seen.peak >= 10 and not seen.overlaps


def measure(wanted: int, numbers: Sequence[int] = (1, 2, 5)) -> bool:
    """Measure one server and a quorum of five; return whether all runs are within the bar."""
    within = [
        report(nodes, writers, asyncio.run(scenario(nodes, writers, wanted)))
        for nodes in (1, 5)
        for writers in numbers
    ]
    return all(within)
