"""What was done at which tick, by whom, in which term."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


class DeposedError(Exception):
    """Somebody leads in a later term: nothing was written."""


class Journal:
    """An SQLite file; entries come in the order of their terms."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self._connect()) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS ticks (term INTEGER, leader TEXT)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30, isolation_level="IMMEDIATE")

    def write(self, term: int, leader: str) -> None:
        """One more tick. Raises DeposedError."""
        with closing(self._connect()) as db, db:
            db.execute("BEGIN IMMEDIATE")
            latest = db.execute("SELECT max(term) FROM ticks").fetchone()[0]
            if latest is not None and latest > term:
                raise DeposedError(f"term {term} is over: {latest} has begun")
            db.execute("INSERT INTO ticks VALUES (?, ?)", (term, leader))

    def entries(self) -> list[tuple[int, str]]:
        """Every tick: term and leader, in order."""
        with closing(self._connect()) as db:
            return db.execute("SELECT term, leader FROM ticks ORDER BY rowid").fetchall()
