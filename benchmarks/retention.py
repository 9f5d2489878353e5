"""Shows that names cost a node nothing once they are free: `python -m benchmarks.retention`.

Many names, each used once, go through one node; with `--records` each lease also leaves a record in
a fenced store on the same server. Once the retention has passed, the server's memory is back where
it was, and the fences of names that are used again are above those that they had.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
from dataclasses import dataclass

from redis.asyncio import Redis

import asynclock
from asynclock.fencing import FencedRedis
from asynclock.testing import local_servers

TASKS = 100
AGAIN = 100
"""Number of names that are used again."""
TOLERANCE = 0.05
"""Maximum deviation of the memory at the end, as a share of the memory at the start."""


@dataclass(frozen=True)
class Memory:
    """Bytes that the server uses, and its number of keys."""

    before: int
    most: int
    keys: int
    after: int
    keys_left: int
    fences_rise: bool
    client_early: int
    """Peak memory of this process, in bytes, after a tenth of the names."""
    client_late: int
    """The same at the end."""

    @property
    def back(self) -> bool:
        """Whether the memory is back where it was."""
        return abs(self.after - self.before) <= TOLERANCE * self.before


def peak() -> int:
    """Return the most memory that this process has had, in bytes (Linux counts KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def measure(names: int, retention: float, *, records: bool = False) -> Memory:
    """Send `names` through one local server. Raises ConfigurationError."""
    async with local_servers(1) as [server], Redis.from_url(server.url) as redis:
        store = FencedRedis(redis, retention=retention) if records else None
        async with asynclock.connect(
            server.url, ttl=5, max_ttl=5, node_timeout=1, fence_retention=retention
        ) as locks:

            async def use(name: str) -> int:
                async with locks.lock(name) as lease:
                    if store is not None:
                        await store.claim(lease)
                    return lease.fence

            async def used() -> tuple[int, int]:
                info = await redis.info("memory")
                return int(info["used_memory"]), int(await redis.dbsize())

            async def settled(most: int) -> tuple[int, int]:
                found = await used()
                while found[1] > most:
                    await asyncio.sleep(1)
                    found = await used()
                return found

            # What a server keeps after its first clients and scripts is no part of the question.
            await asyncio.gather(*(use(f"warm:{number}") for number in range(TASKS)))
            before, _ = await settled(0)
            step = max(1, names // AGAIN)
            fences: dict[str, int] = {}
            numbers = iter(range(names))
            most = (0, 0)
            early = 0

            async def work() -> None:
                nonlocal most, early
                for number in numbers:
                    fence = await use(f"name:{number}")
                    if number % step == 0:
                        fences[f"name:{number}"] = fence
                        most = max(most, await used())
                    if number == names // 10:
                        early = peak()

            await asyncio.gather(*(work() for _ in range(TASKS)))
            most = max(most, await used())
            _, left = await settled(0)
            await asyncio.sleep(5)  # the server gives memory of its tables back step by step
            after, _ = await used()
            rise = all([await use(name) > fence for name, fence in fences.items()])
            return Memory(before, *most, after, left, rise, early, peak())


def main() -> int:
    """Print the figures; return 0 if the memory is back and fences rise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--retention", type=float, default=66.0, help="seconds")
    parser.add_argument("--records", action="store_true", help="a fenced store, too")
    asked = parser.parse_args()
    found = asyncio.run(measure(asked.names, asked.retention, records=asked.records))
    print(f"names used once         {asked.names:,}, retention {asked.retention:g} s")
    print(f"memory before           {found.before:,} bytes")
    print(f"most memory             {found.most:,} bytes with {found.keys:,} keys")
    print(f"memory after            {found.after:,} bytes with {found.keys_left:,} keys")
    print(f"deviation               {found.after / found.before - 1:+.2%} (at most 5 %)")
    early, late = found.client_early, found.client_late
    print(f"client memory (peak)    {early:,} bytes at a tenth of the names, {late:,} at the end")
    print(f"fences of {AGAIN} names rise  {found.fences_rise}")
    return 0 if found.back and found.fences_rise else 1


if __name__ == "__main__":
    raise SystemExit(main())
