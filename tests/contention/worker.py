"""One process of many that want one name: its tasks lock, and every body is recorded.

Run as `python -m tests.contention.worker '{...}'`; see Orders. Says "ready", and works when its
input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import asynclock
from asynclock.testing import History
from tests import patient


@dataclass
class Orders:
    """What a worker is told; with `hold` it takes the name once and keeps it."""

    urls: list[str]
    history: str
    tasks: int
    seconds: float
    handoff: Any = True
    ttl: float = 10.0
    hold: bool = False


async def work(locks: asynclock.LockManager, history: History, orders: Orders) -> None:
    """Want one name with all tasks until the time is over, each task at least once."""
    until = time.monotonic() + orders.seconds

    async def one() -> None:
        while True:
            began = History.now()
            async with locks.lock("hot", handoff=orders.handoff) as lease:
                with history.body(lease, began=began):
                    await asyncio.sleep(0)
            # Not before: on a busy machine a task may begin when the time is over.
            if time.monotonic() >= until:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(orders.tasks):
            group.create_task(one())


async def hold(locks: asynclock.LockManager, history: History) -> None:
    """Take it and record how far the lease is known to reach, until somebody kills us."""
    began = History.now()
    lease = await locks.lock("hot", renew=False).acquire()
    until = History.now() + lease.remaining()
    history.acquired(lease.name, lease.owner, lease.fence, began=began, until=until)
    print("held", flush=True)
    await asyncio.sleep(600)


async def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    history = History(orders.history)
    options = {"restart_guard": False, "ttl": orders.ttl}
    async with patient.connect(*orders.urls, **options) as locks:
        await locks.ready()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await (hold(locks, history) if orders.hold else work(locks, history, orders))


if __name__ == "__main__":
    asyncio.run(main())
