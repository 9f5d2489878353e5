"""The journal: which leader did which tick, in which term."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


class DeposedError(Exception):
    """There is a leader of a later term; nothing was written."""


class Journal:
    """An SQLite file; entries come in the order of their terms."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self._connect()) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS ticks (term INTEGER, leader TEXT)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30, isolation_level="IMMEDIATE")

    def write(self, term: int, leader: str) -> None:
        """Write one more tick. Raises DeposedError."""
        with closing(self._connect()) as db, db:
            db.execute("BEGIN IMMEDIATE")
            latest = db.execute("SELECT max(term) FROM ticks").fetchone()[0]
            if latest is not None and latest > term:
                raise DeposedError(f"term {term} is over: {latest} has begun")
            db.execute("INSERT INTO ticks VALUES (?, ?)", (term, leader))

    def entries(self) -> list[tuple[int, str]]:
        """Return term and leader of every tick, in order."""
        with closing(self._connect()) as db:
            return db.execute("SELECT term, leader FROM ticks ORDER BY rowid").fetchall()
