"""One service process of the demo: ten users, who all grab each order at a given moment.

    python -m asynclock.cli.demo_service FOLDER SERVICE USERS TTL NODE…

Reads lines like `{"act": 1, "order": 7, "at": <monotonic seconds>}` from stdin, and answers
`{"order": 7, "sold": 1}` when all its users are done. Ends at the end of stdin, so it can't outlive
the demo.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asynclock

# ---- The store of the demo: a store without a lock, and a user who wants an order ----------------


PAYMENT = 0.005
"""Seconds from the check that an order is free to its sale, in which a card is charged."""

Guard = Callable[[int], AbstractAsyncContextManager[int]]
"""Takes an order and returns a context with the fence for its sale (0: no fence)."""


class Store:
    """Sales in an SQLite file, which doesn't prevent several sales of one order."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, timeout=20.0, isolation_level=None)
        # A demo needn't survive a power cut, but readers must not wait for writers.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS sales (act INT, order_id INT, buyer TEXT, fence INT)"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_order ON sales (act, order_id)")

    def sales(self, act: int, order: int) -> int:
        """Return how often the order was sold."""
        found = self._db.execute(
            "SELECT count(*) FROM sales WHERE act = ? AND order_id = ?", (act, order)
        )
        return int(found.fetchone()[0])

    def sell(self, act: int, order: int, buyer: str, fence: int) -> None:
        """Record the sale of one order; the store does not check for an earlier one."""
        self._db.execute("INSERT INTO sales VALUES (?, ?, ?, ?)", (act, order, buyer, fence))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


async def buy(store: Store, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """Check the order, pay, record the sale. Wrong unless `guard` admits one user at a time."""
    async with guard(order) as fence:
        if store.sales(act, order):
            return False
        await asyncio.sleep(PAYMENT)
        store.sell(act, order, buyer, fence)
        return True


# ---- The service ---------------------------------------------------------------------------------


ACQUIRE_TIMEOUT = 30.0
"""Maximum seconds that a user waits for the lock before giving up."""


class Guards:
    """Returns the protection of the orders in an act."""

    def __init__(self, locks: asynclock.LockManager) -> None:
        self._locks = locks
        self._local: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of_act(self, act: int) -> Guard:
        """Return no lock, a lock per process, or a lock for all."""
        return (self._nothing, self._in_process, self._distributed)[act - 1]

    @asynccontextmanager
    async def _nothing(self, _order: int) -> AsyncIterator[int]:
        yield 0

    @asynccontextmanager
    async def _in_process(self, order: int) -> AsyncIterator[int]:
        async with self._local[order]:
            yield 0

    def _distributed(self, order: int) -> AbstractAsyncContextManager[int]:
        return self._hold(f"order:{order}")

    @asynccontextmanager
    async def _hold(self, name: str) -> AsyncIterator[int]:
        async with self._locks.lock(name, timeout=ACQUIRE_TIMEOUT) as lease:
            yield lease.fence


async def user(store: Store, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """Buy one order; try again when a lease is lost or too few nodes answer."""
    give_up = time.monotonic() + ACQUIRE_TIMEOUT
    while True:
        try:
            return await buy(store, act, order, buyer, guard)
        except (asynclock.LeaseLostError, asynclock.QuorumUnavailableError):
            if time.monotonic() > give_up:
                raise


async def serve(folder: Path, service: str, users: int, ttl: float, nodes: Sequence[str]) -> None:
    """Serve until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    store = Store(folder / "store.sqlite")
    async with asynclock.connect(*nodes, ttl=ttl, max_ttl=ttl, label=service) as locks:
        guards = Guards(locks)
        print(json.dumps({"ready": service}), flush=True)
        while line := await reader.readline():
            task = json.loads(line)
            act, order = task["act"], task["order"]
            await asyncio.sleep(max(0.0, task["at"] - time.monotonic()))
            guard = guards.of_act(act)
            sold = await asyncio.gather(
                *(user(store, act, order, f"{service}/{n}", guard) for n in range(users))
            )
            print(json.dumps({"order": order, "sold": sum(sold)}), flush=True)
    store.close()


def main() -> None:
    """Run one service until its stdin ends, with the arguments of this process."""
    # On Ctrl-C the demo itself ends its services.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nodes fail on purpose here; the library's warnings about them would only clutter the screen.
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    folder, service, users, ttl, *nodes = sys.argv[1:]
    asyncio.run(serve(Path(folder), service, int(users), float(ttl), nodes))


if __name__ == "__main__":
    main()
