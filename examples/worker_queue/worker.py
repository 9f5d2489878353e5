"""One worker: `python -m examples.worker_queue.worker NAME SECONDS LEDGER QUEUE-URL NODE…`.

The worker prints a line for each step, and ends when no job is left.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from redis.asyncio import Redis

import asynclock
from examples.worker_queue.ledger import Ledger, OvertakenError

JOBS, TAKEN = "jobs", "jobs:taken"
TTL = 2.0


class Worker:
    """Takes jobs and does them; a job takes `seconds`."""

    def __init__(
        self, name: str, seconds: float, ledger: Ledger, redis: Redis, locks: asynclock.LockManager
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._ledger = ledger
        self._redis = redis
        self._locks = locks

    async def run(self) -> None:
        """Do new jobs first, then jobs that other workers have taken and not finished."""
        while True:
            job = await self._redis.lmove(JOBS, TAKEN, "LEFT", "RIGHT")
            if job is not None:
                await self._do(str(job))
                continue
            taken = await self._redis.lrange(TAKEN, 0, -1)
            if not taken:
                return
            for job in taken:
                await self._do(str(job))
            await asyncio.sleep(0.2)

    async def _do(self, job: str) -> None:
        try:
            lease = await self._locks.lock(f"job:{job}", ttl=TTL).try_acquire()
        except asynclock.QuorumUnavailableError as outage:
            say(f"wait {job}: {outage}")  # restarted servers don't vote yet; the job stays taken
            await asyncio.sleep(outage.retry_after)
            return
        if lease is None:
            return  # another worker does it
        try:
            async with lease:
                await self._work(job, lease)
        except (OvertakenError, asynclock.LeaseLostError) as error:
            say(f"lost {job}: {error}")

    async def _work(self, job: str, lease: asynclock.Lease) -> None:
        if self._ledger.begin(job, lease.fence):
            say(f"begin {job}")
            await asyncio.sleep(self._seconds)
            # A worker may be frozen here for an hour: then the ledger rejects its result.
            self._ledger.finish(job, self._name, lease.fence)
            say(f"done {job}")
        await self._redis.lrem(TAKEN, 1, job)


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


async def main(name: str, seconds: str, ledger: str, queue: str, *nodes: str) -> None:
    """Work until no job is left."""
    async with (
        Redis.from_url(queue, decode_responses=True) as redis,
        asynclock.connect(*nodes, ttl=TTL, max_ttl=TTL, node_timeout=0.5, label=name) as locks,
    ):
        await Worker(name, float(seconds), Ledger(Path(ledger)), redis, locks).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
