"""The shop of the demo: a store without any lock of its own, and a user who wants an order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

PAYMENT = 0.005
"""Seconds between looking whether an order is free and writing the sale: a card is charged."""

Guard = Callable[[int], AbstractAsyncContextManager[int]]
"""Order → a context that gives the fence with which to sell it (0: there is none)."""


class Shop:
    """Sales in an SQLite file. It would let one order be sold any number of times."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, timeout=20.0, isolation_level=None)
        # A demo need not survive a power cut; readers must not wait for writers.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS sales (act INT, order_id INT, buyer TEXT, fence INT)"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_order ON sales (act, order_id)")

    def sales(self, act: int, order: int) -> int:
        """How often the order was sold."""
        found = self._db.execute(
            "SELECT count(*) FROM sales WHERE act = ? AND order_id = ?", (act, order)
        )
        return int(found.fetchone()[0])

    def sell(self, act: int, order: int, buyer: str, fence: int) -> None:
        """Write a sale down."""
        self._db.execute("INSERT INTO sales VALUES (?, ?, ?, ?)", (act, order, buyer, fence))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


async def grab(shop: Shop, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """What each user does: look, pay, take. Wrong, unless `guard` lets in one at a time."""
    async with guard(order) as fence:
        if shop.sales(act, order):
            return False
        await asyncio.sleep(PAYMENT)
        shop.sell(act, order, buyer, fence)
        return True
