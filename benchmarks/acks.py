"""Measures the cost of acknowledgements: `python -m benchmarks.acks`.

There is one primary with replicas on this machine. The same tasks lock a name each, with and
without waiting for a replica, in turns, so that other load on the machine affects both alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from time import perf_counter

import asynclock
from asynclock.testing import Replicated


async def cycles(locks: asynclock.LockManager, tasks: int, seconds: float) -> float:
    """Number of locks acquired and released per second."""
    until = perf_counter() + seconds
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        lock = locks.lock(f"bench:{number}")
        while perf_counter() < until:
            async with lock:
                done += 1

    begin = perf_counter()
    await asyncio.gather(*(work(number) for number in range(tasks)))
    return done / (perf_counter() - begin)


async def measure(tasks: int, replicas: int, rounds: int, seconds: float) -> dict[int, float]:
    """Return the median of the rounds for each number of acks."""
    wanted = range(replicas + 1)
    found: dict[int, list[float]] = {acks: [] for acks in wanted}
    async with Replicated(replicas) as group:
        # No node restarts here, and with the guard a new server would not vote for a while.
        managers = {
            acks: asynclock.connect(
                *group.addresses, acks=acks, node_timeout=2, restart_guard=False
            )
            for acks in wanted
        }
        for number in range(rounds + 1):
            for acks, locks in managers.items():
                rate = await cycles(locks, tasks, seconds)
                if number:  # the first round warms up
                    found[acks].append(rate)
        for locks in managers.values():
            await locks.aclose()
    return {acks: statistics.median(rates) for acks, rates in found.items()}


def main() -> None:
    """Print one line per number of acknowledgements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    rates = asyncio.run(measure(options.tasks, options.replicas, options.rounds, options.seconds))
    for acks, rate in rates.items():
        share = rate / rates[0]
        print(f"{options.tasks} tasks, acks={acks}: {rate:,.0f} cycles/s, {share:.0%} of acks=0")


if __name__ == "__main__":
    main()
