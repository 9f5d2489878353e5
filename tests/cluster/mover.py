"""A client process that uses the nodes in a file, and moves to others when the file changes.

Run as `python -m tests.cluster.mover '{...}'`; the orders are those of worker.py. Each move is
what a service does when it is started anew, without the gap: new calls use a new manager, and the
old one is closed once its leases have ended. The file `moved-N` says which nodes process N uses.
"""

import asyncio
import json
import logging
import sys
from collections import Counter
from pathlib import Path

import asynclock
from asynclock.events import Event, Lost
from asynclock.testing.history import Body
from tests.cluster.worker import Orders, Worker


class Mover(Worker):
    """Plays its orders on the nodes that the file `nodes` names."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders)
        self._folder = Path(orders.folder)
        self._nodes: list[str] = []
        self._uses: Counter[asynclock.LockManager] = Counter()
        """For each manager: the calls that use it."""

    async def run(self) -> None:
        await self._locks.aclose()
        await self._move()
        moving = asyncio.create_task(self._follow())
        async with self.client:
            await asyncio.gather(*(self.work() for _ in range(self.orders.tasks)))
            moving.cancel()
            await self._locks.aclose()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            await self._move()

    async def _move(self) -> None:
        nodes = json.loads((self._folder / "nodes").read_text())
        if nodes == self._nodes:
            return
        new = asynclock.connect(
            *nodes, label=f"w{self.orders.number}", observers=[self._see], **self.orders.options
        )
        await new.__aenter__()
        old, self._locks = self._locks, new
        self._nodes = nodes
        while self._uses[old]:
            await asyncio.sleep(0.01)
        await old.aclose()
        (self._folder / f"moved-{self.orders.number}").write_text(json.dumps(nodes))

    async def _use(self, name: str) -> None:
        locks = self._locks
        self._uses[locks] += 1
        try:
            await super()._use(name)
        finally:
            self._uses[locks] -= 1

    def _see(self, event: Event) -> None:
        if isinstance(event, Lost):
            self.complaints.write(f"lost {event.name}: {event.reason}\n")

    async def _extend(self, lease: asynclock.Lease, body: Body) -> None:
        """Keep the ttl: a shorter one may end while a node is frozen."""


def main() -> None:
    orders = Orders(**json.loads(sys.argv[1]))
    logging.disable(logging.CRITICAL)
    asyncio.run(Mover(orders).run())


if __name__ == "__main__":
    main()
