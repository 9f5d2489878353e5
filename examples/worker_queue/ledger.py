"""The results of jobs. The table would accept several per job; the fence prevents that."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


class OvertakenError(Exception):
    """Another worker has taken the job over; nothing was written."""


class Ledger:
    """An SQLite file that all workers write to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self._connect()) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS fences (job TEXT PRIMARY KEY, fence INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS results (job TEXT, worker TEXT, fence INTEGER)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30, isolation_level="IMMEDIATE")

    def begin(self, job: str, fence: int) -> bool:
        """Record the fence before the work; return whether the job is still to be done."""
        with closing(self._connect()) as db, db:
            self._claim(db, job, fence)
            found = db.execute("SELECT count(*) FROM results WHERE job = ?", (job,)).fetchone()
            return not found[0]

    def finish(self, job: str, worker: str, fence: int) -> None:
        """Write the result. Raises OvertakenError."""
        with closing(self._connect()) as db, db:
            self._claim(db, job, fence)
            db.execute("INSERT INTO results VALUES (?, ?, ?)", (job, worker, fence))

    @staticmethod
    def _claim(db: sqlite3.Connection, job: str, fence: int) -> None:
        statement = (
            "INSERT INTO fences VALUES (?, ?) ON CONFLICT (job) DO UPDATE "
            "SET fence = excluded.fence WHERE fence <= excluded.fence"
        )
        if db.execute(statement, (job, fence)).rowcount != 1:
            raise OvertakenError(f"{job}: fence {fence} is stale")

    def results(self) -> list[tuple[str, str]]:
        """Return the job and the worker of every result."""
        with closing(self._connect()) as db:
            return db.execute("SELECT job, worker FROM results").fetchall()
