"""The waiters of a name, and their order, after what the nodes have said."""

import asyncio
from typing import Any

import pytest

from asynclock._engine import inspection as waiters
from asynclock._engine.inspection import Waiter, in_order
from asynclock._nodes.wire import Failure
from tests.engine.test_queue import line_up
from tests.engine.virtual_nodes import Nodes, virtual_single


def ticket(number: int) -> str:
    return f"{number:032x}:web-{number}:1"


def row(number: int, place: int, value: bytes = b"1") -> list[bytes]:
    return [ticket(number).encode(), b"%d" % place, value, b"%d" % place]


def numbers(*replies: Any) -> list[int]:
    return [int(waiter.ticket[:32], 16) for waiter in in_order(replies)]


def test_a_majority_of_the_nodes_that_answered_keeps_a_waiter() -> None:
    here, there = row(1, 10), row(2, 20)
    assert numbers([here, there], [here], [there]) == [1, 2]
    assert numbers([here, there], [here], []) == [1]
    assert numbers([here, there], [here], Failure("away")) == [1]
    assert numbers([here], Failure("away"), Failure("away")) == [1]
    assert numbers(Failure("away"), Failure("away")) == []


def test_the_highest_number_counts_and_the_ticket_decides_between_equals() -> None:
    assert numbers([row(2, 5), row(1, 9)], [row(2, 5), row(1, 4)]) == [2, 1]
    assert numbers([row(2, 7), row(1, 7)]) == [1, 2]


def test_one_node_is_enough_to_wake() -> None:
    assert in_order([[row(1, 1)], [row(1, 1, b"go")], []]) == (Waiter(ticket(1), woken=True),)
    (waiter,) = in_order([[row(1, 1)]])
    assert (waiter.label, waiter.woken) == ("web-1:1", False)


@virtual_single
async def test_a_long_queue_is_read_up_to_a_limit(on: Nodes) -> None:
    assert waiters.MOST_WAITERS == 1000, "docs/cli.md says so"
    lease = await on.locks.lock("a").acquire()
    async with on.connect() as one, on.connect() as two, on.connect() as three:
        tasks = [await line_up(locks.lock("a"), locks) for locks in (one, two, three)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiters, "MOST_WAITERS", 2)
            assert len((await on.locks.inspect("a")).waiting) == 2
        assert len((await on.locks.inspect("a")).waiting) == 3
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await lease.release()
