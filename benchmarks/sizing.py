"""Measures the cost of locks for a node (for docs/tuning.md): `python -m benchmarks.sizing`.

CPU: uncontended acquires and releases, and a plain SET NX PX with its DEL, in blocks in turns, so
that other load on the machine affects both alike. Memory: held names, and the fence counters that
stay after the release.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from collections.abc import Awaitable
from dataclasses import dataclass

from redis.asyncio import Redis

import asynclock
from asynclock.testing import local_servers

TASKS = 100


@dataclass(frozen=True)
class Sizes:
    """What was measured; CPU in microseconds per acquire and release, memory in bytes."""

    cpu: float
    plain_cpu: float
    ratio: float
    """The median of the ratios of the two in the same turn."""
    held: float
    counter: float


async def measure(blocks: int, cycles: int, names: int) -> Sizes:
    """Measure one local server."""
    async with local_servers(1) as [server], Redis.from_url(server.url) as redis:
        async with asynclock.connect(server.url, restart_guard=False) as locks:
            ours, plain = [], []
            for block in range(blocks + 1):
                of_locks = await _cpu(redis, _locks(locks, cycles)) / cycles
                of_plain = await _cpu(redis, _plain(redis, cycles)) / cycles
                if block:  # the first one warms up
                    ours.append(of_locks)
                    plain.append(of_plain)
            ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
            held, counter = await _memory(redis, locks, names)
    cpu, plain_cpu = statistics.median(ours) * 1e6, statistics.median(plain) * 1e6
    return Sizes(cpu, plain_cpu, ratio, held, counter)


async def _cpu(redis: Redis, work: Awaitable[object]) -> float:
    before = await redis.info("cpu")
    await work
    after = await redis.info("cpu")
    return sum(float(after[key] - before[key]) for key in ("used_cpu_user", "used_cpu_sys"))


def _locks(locks: asynclock.LockManager, cycles: int) -> Awaitable[object]:
    async def task(number: int) -> None:
        for _ in range(cycles // TASKS):
            async with locks.lock(f"cpu:{number}"):
                pass

    return asyncio.gather(*map(task, range(TASKS)))


async def _plain(redis: Redis, cycles: int) -> None:
    # As many are in flight as the tasks of `_locks` have.
    for _ in range(cycles // TASKS):
        async with redis.pipeline(transaction=False) as pipeline:
            for number in range(TASKS):
                pipeline.set(f"plain:{number}", "owner", nx=True, px=10_000)
            await pipeline.execute()
            for number in range(TASKS):
                pipeline.delete(f"plain:{number}")
            await pipeline.execute()


async def _memory(redis: Redis, locks: asynclock.LockManager, names: int) -> tuple[float, float]:
    async def used() -> int:
        return int((await redis.info("memory"))["used_memory"])

    await redis.flushall()
    empty = await used()
    leases = [await locks.lock(f"orders:{number:08}").acquire() for number in range(names)]
    held = await used()
    for lease in leases:
        await lease.release()
    counters = await used()
    return (held - empty) / names, (counters - empty) / names


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--cycles", type=int, default=2000, help="in each block")
    parser.add_argument("--names", type=int, default=5000, help="held at a time")
    options = parser.parse_args()
    sizes = asyncio.run(measure(options.blocks, options.cycles, options.names))
    print(f"node CPU per acquire and release: {sizes.cpu:.1f} µs (median)")
    print(f"the same for SET NX PX and DEL:   {sizes.plain_cpu:.1f} µs (median)")
    print(f"ratio:                            {sizes.ratio:.2f} (median of the ratios)")
    print(f"a name that is held:              {sizes.held:.0f} bytes")
    print(f"its fence counter afterwards:     {sizes.counter:.0f} bytes")
    print(f"load of this machine:             {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
