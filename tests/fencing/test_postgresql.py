"""The recipe for SQL, as the documentation prints it, on a real PostgreSQL server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, IsolationLevel

from asynclock.fencing import FenceStamp, StaleFenceError
from tests.fencing import page
from tests.fencing.page import stamp
from tests.waiting import until

HERE = "tests/fencing/test_postgresql.py"


@pytest.fixture
async def shown() -> dict[str, Any]:
    namespace = await page.run(f"{HERE}::test_a_row_keeps_the_highest_fence", {})
    return await page.run(f"{HERE}::test_a_claim_guards_a_whole_transaction", namespace)


@pytest.fixture
async def db(postgresql: str, shown: dict[str, Any]) -> AsyncIterator[AsyncConnection]:
    async with await AsyncConnection.connect(postgresql, autocommit=True) as db:
        await db.execute("DROP TABLE IF EXISTS orders, fences")
        await db.execute(shown["SCHEMA"])
        await db.execute(shown["FENCES"])
        yield db


async def rows(db: AsyncConnection, query: str) -> list[Any]:
    return await (await db.execute(query)).fetchall()  # type: ignore[call-overload]  # any text


async def blocked(db: AsyncConnection, backend: int) -> None:
    """Until that backend waits for another's lock."""
    await until(lambda: rows(db, f"SELECT unnest(pg_blocking_pids({backend}))"), "it is blocked")


async def test_a_row_keeps_the_highest_fence(db: AsyncConnection, shown: dict[str, Any]) -> None:
    save = shown["save"]
    await save(db, 42, "new", stamp(5))
    await save(db, 42, "packed", stamp(5))
    await save(db, 42, "sent", stamp(2**53 - 1))
    with pytest.raises(StaleFenceError):
        await save(db, 42, "late", stamp(2**53 - 2))
    assert await rows(db, "SELECT * FROM orders") == [(42, "sent", 2**53 - 1)]


@pytest.mark.parametrize(
    ("isolation", "refusal"),
    [
        (IsolationLevel.READ_COMMITTED, StaleFenceError),
        (IsolationLevel.REPEATABLE_READ, psycopg.errors.SerializationFailure),
        (IsolationLevel.SERIALIZABLE, psycopg.errors.SerializationFailure),
    ],
)
async def test_an_older_holder_that_waits_for_the_row_is_refused(
    db: AsyncConnection,
    postgresql: str,
    shown: dict[str, Any],
    isolation: IsolationLevel,
    refusal: type[Exception],
) -> None:
    """The newer one commits while the older one waits: it must not see the row as it was."""
    await shown["save"](db, 42, "new", stamp(5))
    async with (
        await AsyncConnection.connect(postgresql) as newer,
        await AsyncConnection.connect(postgresql) as older,
    ):
        await older.set_isolation_level(isolation)
        await newer.execute(shown["SAVE"], {"id": 42, "state": "sent", "fence": 9})
        late = asyncio.create_task(shown["save"](older, 42, "late", stamp(7)))
        await blocked(db, older.info.backend_pid)
        await newer.commit()
        with pytest.raises(refusal):
            await late
    assert await rows(db, "SELECT state, fence FROM orders") == [("sent", 9)]


async def test_a_claim_guards_a_whole_transaction(
    db: AsyncConnection, postgresql: str, shown: dict[str, Any]
) -> None:
    """Rows without a fence of their own: the older holder waits, then writes none of them."""
    await db.execute("INSERT INTO orders VALUES (1, 'new', 0), (2, 'new', 0)")

    async def pay(connection: AsyncConnection, lease: FenceStamp, state: str) -> None:
        async with connection.transaction():
            await shown["claim"](connection, lease)
            await connection.execute("UPDATE orders SET state = %s", (state,))

    async with (
        await AsyncConnection.connect(postgresql) as newer,
        await AsyncConnection.connect(postgresql) as older,
    ):
        async with newer.transaction():
            await shown["claim"](newer, stamp(9))
            await newer.execute("UPDATE orders SET state = 'sent' WHERE id = 1")
            late = asyncio.create_task(pay(older, stamp(7), "late"))
            await blocked(db, older.info.backend_pid)
            await newer.execute("UPDATE orders SET state = 'sent' WHERE id = 2")
        with pytest.raises(StaleFenceError):
            await late
        await pay(older, stamp(10), "paid")
    assert await rows(db, "SELECT state FROM orders") == [("paid",), ("paid",)]
