"""How long nobody gets a lock after a primary died: `python -m benchmarks.failover [--rounds 2]`.

A client wants one name again and again. The time runs from the death of the primary that serves the
name to the next grant. The Sentinels take 1.5 s of silence for death, the Cluster's servers 2 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from typing import Literal

from redis.crc import key_slot

import asynclock
from asynclock.testing import RedisCluster, SentinelGroup

NAME = "wanted"
MAX_TTL = 20.0
LONGEST = 40.0
KNOWN = 4.0
"""Seconds for which the client uses the primary before that dies: some looks at its replicas."""
Acks = int | Literal["majority", "all"]
CASES: tuple[tuple[int, Acks], ...] = ((2, 1), (2, "all"), (1, 1))


def deployment(kind: str, replicas: int) -> SentinelGroup | RedisCluster:
    """Make a deployment with this number of replicas for each primary."""
    return SentinelGroup(replicas, 3) if kind == "sentinel" else RedisCluster(3, replicas)


async def fail_over(servers: SentinelGroup | RedisCluster) -> None:
    """Kill the primary of the name, and wait for the promotion of another server."""
    if isinstance(servers, SentinelGroup):
        await servers.fail_over()
    else:
        slot = key_slot(f"asynclock:{{{NAME}}}".encode())
        await servers.fail_over(shard=slot * len(servers.shards) // 16_384)


async def outage(kind: str, replicas: int, acks: Acks) -> str:
    """Return after how many seconds a new primary was met, and the name granted again."""
    async with contextlib.AsyncExitStack() as stack:
        servers = deployment(kind, replicas)
        await stack.enter_async_context(servers)
        locks = asynclock.connect(*servers.addresses, acks=acks, ttl=MAX_TTL, max_ttl=MAX_TTL)
        await stack.enter_async_context(locks)
        async with locks.lock(NAME, timeout=60):
            pass
        await asyncio.sleep(KNOWN)
        failing = asyncio.create_task(fail_over(servers))
        while all(server.alive for server in servers.servers):
            await asyncio.sleep(0.001)
        began = time.monotonic()
        met: float | None = None
        while time.monotonic() < began + LONGEST:
            try:
                if await locks.lock(NAME).try_acquire() is not None:
                    break
            except asynclock.QuorumUnavailableError as error:
                if met is None and "votes in" in str(error):
                    met = time.monotonic() - began
            await asyncio.sleep(0.02)
        took = time.monotonic() - began
        with contextlib.suppress(TimeoutError):
            await failing
        granted = (
            f"granted after {took:.1f} s" if took < LONGEST else f"no grant in {LONGEST:.0f} s"
        )
        return f"{granted}, new primary met after {met or 0.0:.1f} s"


async def main(rounds: int) -> None:
    """Print one line per round."""
    for kind in ("sentinel", "cluster"):
        for replicas, acks in CASES:
            for _ in range(rounds):
                told = await outage(kind, replicas, acks)
                print(f"{kind}, replicas: {replicas}, acks={acks!r}: {told}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    asyncio.run(main(parser.parse_args().rounds))
