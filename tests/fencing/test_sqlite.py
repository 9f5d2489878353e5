"""The recipe for SQL, as the documentation prints it, on SQLite."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from asynclock.fencing import StaleFenceError
from tests.fencing import page
from tests.fencing.page import stamp


@pytest.fixture
async def shown() -> dict[str, Any]:
    test = "tests/fencing/test_sqlite.py::test_a_row_keeps_the_highest_fence"
    return await page.run(test, {})


async def test_a_row_keeps_the_highest_fence(shown: dict[str, Any], tmp_path: Path) -> None:
    save = shown["save"]
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        db.execute(shown["SCHEMA"])
        save(db, 42, "new", stamp(5))
        save(db, 42, "packed", stamp(5))
        save(db, 42, "sent", stamp(2**53 - 1))
        save(db, 43, "another row", stamp(1))
        with pytest.raises(StaleFenceError) as caught:
            save(db, 42, "late", stamp(2**53 - 2))
        assert caught.value.fence == 2**53 - 2
        rows = db.execute("SELECT * FROM orders ORDER BY id").fetchall()
        assert rows == [(42, "sent", 2**53 - 1), (43, "another row", 1)]
