"""The migration: `python -m examples.migrate_with_cli.migration FILE [OTHER]`."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path


def main(file: str, other: str | None = None) -> None:
    """Migrate from version 0 to 1, unless that was done; works until the file `other` exists."""
    with closing(sqlite3.connect(file, timeout=30)) as db, db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version >= 1:
            print("the database is up to date", flush=True)
            return
        print("migrating", flush=True)
        while other is not None and not Path(other).exists():
            time.sleep(0.05)
        db.execute("ALTER TABLE orders ADD COLUMN state TEXT NOT NULL DEFAULT 'new'")
        fence = int(os.environ["ASYNCLOCK_FENCE"])
        db.execute("INSERT INTO migrations VALUES (1, ?)", (fence,))
        db.execute("PRAGMA user_version = 1")


if __name__ == "__main__":
    main(*sys.argv[1:])
