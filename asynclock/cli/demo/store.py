"""The store of the demo: a store without a lock, and a user who wants an order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

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
