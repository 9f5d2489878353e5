"""A client process under fire: tasks that lock, work, write to a checked store, and record it all.

Run as `python -m tests.cluster.worker '{...}'`; see Orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio

import asynclock
from asynclock.fencing import FencedRedis, StaleFenceError
from asynclock.testing import History
from tests.simulation.sabotage import sabotaged


@dataclass
class Orders:
    """What a worker is told; it works until there is a file `stop`."""

    number: int
    seed: int
    urls: list[str]
    store: str
    folder: str
    stop: str
    names: list[str]
    tasks: int
    options: dict[str, Any]
    sabotage: str = ""


class Worker:
    """Plays its orders."""

    def __init__(self, orders: Orders, options: dict[str, Any]) -> None:
        folder = Path(orders.folder)
        self._orders = orders
        self._random = random.Random(f"{orders.seed} {orders.number}")
        self._history = History(folder / "history.jsonl")
        self._writes = (folder / f"writes-{orders.number}.jsonl").open("a", buffering=1)
        self._complaints = (folder / f"complaints-{orders.number}").open("a", buffering=1)
        self._locks = asynclock.connect(
            *orders.urls, label=f"w{orders.number}", **{**orders.options, **options}
        )
        self._client = redis.asyncio.Redis.from_url(orders.store, decode_responses=True)
        self._store = FencedRedis(self._client)

    async def run(self) -> None:
        async with self._locks, self._client:
            await asyncio.gather(*(self._work() for _ in range(self._orders.tasks)))

    def _told_to_stop(self) -> bool:
        return os.path.exists(self._orders.stop)

    async def _work(self) -> None:
        while not self._told_to_stop():
            began = History.now()
            lock = self._locks.lock(self._random.choice(self._orders.names), timeout=3.0)
            held_to_the_end = True
            try:
                async with lock.acquire() as lease:
                    with self._history.body(lease, began=began):
                        await self._inside(lease)
                    held_to_the_end = lease.held
                if not held_to_the_end:
                    self._complaints.write(f"fence {lease.fence} was lost and nobody told\n")
            except (asynclock.NotAcquiredError, asynclock.QuorumUnavailableError):
                await asyncio.sleep(0.01)
            except asynclock.LeaseLostError:
                pass
            except Exception as error:
                self._complaints.write(f"{type(error).__name__}: {error}\n")
            await asyncio.sleep(self._random.expovariate(200.0))

    async def _inside(self, lease: asynclock.Lease) -> None:
        await asyncio.sleep(self._random.expovariate(500.0))
        if self._random.random() < 0.2:
            await self._write(lease)
        if self._random.random() < 0.005:
            await asyncio.sleep(self._random.uniform(0, 0.5))

    async def _write(self, lease: asynclock.Lease) -> None:
        began, accepted = History.now(), True
        try:
            await self._store.set(lease, f"value:{lease.name}", str(lease.fence))
        except StaleFenceError:
            accepted = False
        line = {
            "name": lease.name,
            "fence": lease.fence,
            "began": began,
            "ended": History.now(),
            "accepted": accepted,
        }
        self._writes.write(json.dumps(line) + "\n")


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    logging.disable(logging.CRITICAL)
    breaking: Any = contextlib.nullcontext({})
    if orders.sabotage:
        breaking = sabotaged(orders.sabotage)
    with breaking as options:
        asyncio.run(Worker(orders, options).run())


if __name__ == "__main__":
    main()
