"""Sales, guarded by a fence: the store decides, whatever happened to the lease.

The tables would accept any number of sales of an order. But they reject a write with a lower fence
than the one before, so they reject a holder that froze and lost its lock.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Protocol

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, fence BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sales (order_id INTEGER, buyer TEXT, fence BIGINT)",
)
CLAIM = "UPDATE orders SET fence = {p} WHERE id = {p} AND fence <= {p}"
SOLD = "SELECT count(*) FROM sales WHERE order_id = {p}"
SELL = "INSERT INTO sales VALUES ({p}, {p}, {p})"


class StaleError(Exception):
    """A newer holder has written before; nothing was written."""


class Store(Protocol):
    """The interface that the service needs."""

    def sold(self, order: int) -> bool:
        """Return whether the order was sold."""

    def sell(self, order: int, buyer: str, fence: int) -> None:
        """Record a sale. Raises StaleError."""

    def create(self, orders: int) -> None:
        """Make the tables and this many unsold orders."""

    def sales(self) -> list[tuple[int, str]]:
        """Return the order and the buyer of each sale."""


class SQL:
    """A store in either database; only the connection and the placeholder differ."""

    def __init__(self, connect: Any, placeholder: str, *prepare: str) -> None:
        self._connect = connect
        self._p = placeholder
        self._prepare = prepare

    def _run(self, *steps: tuple[str, tuple[Any, ...]]) -> Any:
        # One transaction; each connection is used by one thread for one call.
        with closing(self._connect()) as db, db:
            for statement, values in steps:
                cursor = db.execute(statement.format(p=self._p), values)
                if statement is CLAIM and cursor.rowcount != 1:
                    raise StaleError(f"a newer holder was here first: {values}")
                rows = cursor.fetchall() if cursor.description else None
            return rows

    def sold(self, order: int) -> bool:
        """Return whether the order was sold."""
        return bool(self._run((SOLD, (order,)))[0][0])

    def sell(self, order: int, buyer: str, fence: int) -> None:
        """Record a sale. Raises StaleError."""
        self._run((CLAIM, (fence, order, fence)), (SELL, (order, buyer, fence)))

    def create(self, orders: int) -> None:
        """Make the tables and this many unsold orders."""
        steps: list[tuple[str, tuple[Any, ...]]] = [(one, ()) for one in self._prepare]
        steps += [(f"DROP TABLE IF EXISTS {table}", ()) for table in ("orders", "sales")]
        steps += [(statement, ()) for statement in SCHEMA]
        insert = "INSERT INTO orders VALUES ({p}, 0)"
        self._run(*steps, *((insert, (order,)) for order in range(orders)))

    def sales(self) -> list[tuple[int, str]]:
        """Return the order and the buyer of each sale."""
        found: list[tuple[int, str]] = self._run(("SELECT order_id, buyer FROM sales", ()))
        return found


def open_store(address: str) -> Store:
    """A store by `postgresql://…`, or by the path of an SQLite file."""
    if address.startswith("postgresql://"):
        import psycopg

        return SQL(lambda: psycopg.connect(address), "%s")

    def connect() -> sqlite3.Connection:
        db = sqlite3.connect(address, timeout=30)
        db.execute("PRAGMA synchronous=OFF")  # the example need not survive a power cut
        return db

    # Readers must not wait for writers; the file remembers that.
    return SQL(connect, "?", "PRAGMA journal_mode=WAL")
