"""A client process under fire: tasks that lock, work, write to a checked store, and record it all.

Run as `python -m tests.cluster.worker '{...}'`; see Orders.
"""

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

FORKS = 0.002
"""The chance of an operation to fork a child."""


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
    body: float = 0.002
    """Seconds that a task holds a name, on average."""
    sabotage: str = ""


class Worker:
    """Plays its orders."""

    def __init__(self, orders: Orders) -> None:
        folder = Path(orders.folder)
        self.orders = orders
        self._ttl: float = orders.options["ttl"]
        self._random = random.Random(f"{orders.seed} {orders.number}")
        self._history = History(folder / "history.jsonl")
        self._writes = (folder / f"writes-{orders.number}.jsonl").open("a", buffering=1)
        self.complaints = (folder / f"complaints-{orders.number}").open("a", buffering=1)
        self._locks = asynclock.connect(*orders.urls, label=f"w{orders.number}", **orders.options)
        self.client = redis.asyncio.Redis.from_url(orders.store, decode_responses=True)
        self._store = FencedRedis(self.client)

    async def run(self) -> None:
        async with self._locks, self.client:
            await asyncio.gather(*(self.work() for _ in range(self.orders.tasks)))

    def _told_to_stop(self) -> bool:
        return Path(self.orders.stop).exists()

    async def work(self) -> None:
        while not self._told_to_stop():
            try:
                await self._use(self._random.choice(self.orders.names))
            except (asynclock.NotAcquiredError, asynclock.QuorumUnavailableError):
                await asyncio.sleep(0.01)
            except asynclock.LeaseLostError:
                pass
            except Exception as error:
                self.complaints.write(f"{type(error).__name__}: {error}\n")
            await asyncio.sleep(self._random.expovariate(200.0))

    async def _use(self, name: str) -> None:
        began, chance = History.now(), self._random.random()
        ttl = self._random.choice((self._ttl, self._ttl, self._ttl / 2))
        lease = await self._locks.lock(name, timeout=3.0, ttl=ttl).acquire()
        async with lease:
            with self._history.body(lease, began=began):
                if chance < FORKS:
                    await self._fork(lease)
                await self._inside(lease)
            held_to_the_end = lease.held
        if not held_to_the_end:
            self.complaints.write(f"fence {lease.fence} was lost and nobody told\n")

    async def _fork(self, lease: asynclock.Lease) -> None:
        """A child that ends at once, gives back what it inherits, or closes the manager."""
        how = self._random.choice(("exit", "release", "close"))
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                work = lease.release() if how == "release" else self._locks.aclose()
                for _ in range(0 if how == "exit" else 10):
                    work.send(None)  # its loop is not ours to run: that belongs to the parent
            os._exit(0)
        while os.waitpid(child, os.WNOHANG) == (0, 0):  # noqa: ASYNC222  # it does not block
            await asyncio.sleep(0.005)

    async def _inside(self, lease: asynclock.Lease) -> None:
        await asyncio.sleep(self._random.expovariate(1 / self.orders.body))
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
    breaking: Any = contextlib.nullcontext()
    if orders.sabotage:
        from tests.simulation.sabotage import sabotaged  # it names functions of the library

        breaking = sabotaged(orders.sabotage)
    with breaking:
        asyncio.run(Worker(orders).run())


if __name__ == "__main__":
    main()
