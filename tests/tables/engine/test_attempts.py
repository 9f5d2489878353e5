"""One request to three nodes: their replies in any order, what comes of it, and what is sent."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import asynclock
from tests.tables.engine.told import (
    DONE,
    LOST,
    ME,
    SILENT,
    TOO_LATE,
    Reply,
    Table,
    error,
    later,
    no,
    on_told,
    outcome,
    yes,
)
from tests.waiting import call_off

WAITS = Reply([b"1", b"x"])
"""At a look, the ticket waits and the name is held."""
HELD = (no(number=5),) * 3
ONCE: dict[str, Any] = {"once": True}
OOM = error("OOM command not allowed")
GONE = ["release 2 abc", "leave 1 abc"]
"""What a second request sends when it is cancelled."""
Vote = tuple[Reply, ...]


@dataclass
class Row:
    """A call, the votes that it gets, and what is sent until it is over.

    A call that still waits after `wait` seconds is cancelled.
    """

    id: str
    votes: Sequence[Vote]
    result: str | type[Exception] | None
    sent: list[str]
    call: dict[str, Any] = field(default_factory=dict)
    wait: float = 0.3
    raises: Vote = (Reply([1, 9]),) * 3
    releases: Vote = (DONE,) * 3
    looks: Vote = (WAITS,) * 3


ROWS = [
    Row("a quorum wins", [(yes(), SILENT, yes())], "won", ["acquire 1 abc"]),
    Row("whichever comes first", [(later(0.1, yes()), yes(), SILENT)], "won", ["acquire 1 abc"]),
    Row(
        "won, and its ticket waits on one node",
        [(no(number=5), yes(), yes())],
        *("won", ["acquire 1 abc", "leave 1 a"]),
    ),
    Row(
        "won, and a refusal comes later",
        [(later(0.1, no(number=5)), yes(), yes())],
        *("won", ["acquire 1 abc", "leave 1 a"]),
    ),
    Row(
        "won, and one node may have the ticket",
        [(later(0.1, LOST), yes(), yes())],
        *("won", ["acquire 1 abc", "leave 1 a"]),
    ),
    Row(
        "won by a later request",
        [HELD, (no(number=5), yes(), yes())],
        *("won", ["acquire 1 abc", "acquire 2 abc", "leave 1 a"]),
        wait=1.0,
    ),
    Row(
        "cancelled before any reply",
        [(SILENT,) * 3],
        *("waits", ["acquire 1 abc", "release 1 abc", "leave 1 abc"]),
    ),
    Row(
        "cancelled after a refusal",
        [(SILENT, no(number=5), SILENT)],
        *("waits", ["acquire 1 abc", "release 1 ac", "leave 1 abc"]),
    ),
    Row(
        "a cancelled try left no ticket",
        [(SILENT, no(), SILENT)],
        *("waits", ["acquire 1 abc", "release 1 ac"]),
        call=ONCE,
    ),
    Row("a try that is won is in no queue", [(no(), yes(), yes())], "won", ["acquire 1 abc"], ONCE),
    Row("cancelled while it waits", [HELD], "waits", ["acquire 1 abc", "leave 1 abc"]),
    Row(
        "slots that the lock does not have are not asked for",
        [(no("x", b"01", number=5),) * 3],
        *("waits", ["acquire 1 abc", "leave 1 abc"]),
    ),
    Row(
        "cancelled as it asks again",
        [HELD, (SILENT,) * 3],
        *("waits", ["acquire 1 abc", "acquire 2 abc", "release 2 abc", "leave 1 abc"]),
        wait=1.0,
    ),
    Row(
        "lost, and waits in its place where it is released",
        [(no(number=5), yes(), no(number=8)), (no(number=8),) * 3],
        "waits",
        ["acquire 1 abc", "acquire 2 abc", "release 1 b", "release 2 b", "leave 1 abc"],
    ),
    Row(
        "where a node is away it waits for the number of each other one",
        [(no(number=5), later(0.1, no(number=8)), LOST), (no(number=8),) * 3],
        "waits",
        ["acquire 1 abc", "acquire 2 abc", "release 1 c", "release 2 c", "leave 1 abc"],
    ),
    Row(
        "a node that keeps its ticket as woken is no reason to ask alone",
        [(no(number=8), yes(), no(number=8)), (no(number=8),) * 3],
        *("waits", ["acquire 1 abc", "release 1 b", "leave 1 abc"]),
        looks=(WAITS, Reply([b"go", b"x"]), WAITS),
    ),
    Row(
        "a node that refused, and leaves it the name since, is one",
        [(no(number=8),) * 3, (SILENT,) * 3],
        *("waits", ["acquire 1 abc", "acquire 2 abc", *GONE]),
        looks=(WAITS, Reply([b"go", b"x"]), WAITS),
    ),
    Row(
        "a node that leaves the name to it alone is no reason to ask",
        [(no(number=8), yes(), no(number=8)), (no(number=8),) * 3],
        *("waits", ["acquire 1 abc", "release 1 b", "leave 1 abc"]),
        releases=(Reply([1, ME]),) * 3,
    ),
    Row(
        "the connections broke",
        [(yes(), LOST, LOST), HELD],
        *("waits", ["acquire 1 abc", "release 1 abc", "acquire 2 abc", "leave 1 abc"]),
    ),
    Row(
        "it came too late to the nodes",
        [(yes(), TOO_LATE, TOO_LATE), HELD],
        *("waits", ["acquire 1 abc", "release 1 abc", "acquire 2 abc", "leave 1 abc"]),
    ),
    Row(
        "a quorum can't write",
        [(yes(), OOM, OOM)],
        *(asynclock.QuorumUnavailableError, ["acquire 1 abc", "release 1 abc"]),
        call=ONCE,
    ),
    Row("one node can't write", [(OOM, yes(), yes())], "won", ["acquire 1 abc", "leave 1 a"]),
    Row(
        "silence until the node timeout",
        [(yes(), SILENT, SILENT)],
        *(asynclock.QuorumUnavailableError, ["acquire 1 abc", "release 1 abc"]),
        call=ONCE,
        wait=1.1,
    ),
    Row(
        "the timeout comes first, and late replies count no more",
        [(yes(), later(1.1, yes()), later(1.1, yes()))],
        *(asynclock.QuorumUnavailableError, ["acquire 1 abc", "release 1 abc", "leave 1 abc"]),
        call={"timeout": 0.5},
        wait=1.5,
    ),
    Row(
        "somebody has it on a quorum",
        [(yes(), no(), no())],
        *(None, ["acquire 1 abc", "release 1 a"]),
        call=ONCE,
    ),
    Row(
        "split, so a try takes a place and leaves it",
        [(yes(), no("x"), no("y")), HELD],
        None,
        ["acquire 1 abc", "release 1 a", "acquire 2 abc", "release 2 a", "leave 3 abc"],
        call=ONCE,
    ),
    # fences
    Row(
        "the node with the lower fence is told the higher one",
        [(yes(7), yes(9), SILENT)],
        *("won", ["acquire 1 abc", "raise 1 a"]),
    ),
    Row(
        "each node with a lower fence is told once",
        [(yes(7), yes(9), later(0.1, yes(8)))],
        *("won", ["acquire 1 abc", "raise 1 a", "raise 1 c"]),
        raises=(later(0.2, Reply([1, 9])),) * 3,
    ),
    Row(
        "another took the higher fence meanwhile",
        [(yes(7), yes(9), LOST), (SILENT,) * 3],
        "waits",
        ["acquire 1 abc", "raise 1 a", "release 1 abc", "acquire 2 abc", *GONE],
        raises=(Reply([0, 12]),) * 3,
    ),
    Row(
        "the node that was told broke",
        [(yes(7), yes(9), LOST), (SILENT,) * 3],
        "waits",
        ["acquire 1 abc", "raise 1 a", "release 1 abc", "acquire 2 abc", *GONE],
        raises=(LOST,) * 3,
    ),
    Row(
        "its answer comes after the timeout",
        [(yes(7), yes(9), SILENT)],
        *(
            asynclock.QuorumUnavailableError,
            ["acquire 1 abc", "raise 1 a", "release 1 abc", "leave 1 abc"],
        ),
        call={"timeout": 0.5},
        raises=(later(1.2, Reply([1, 9])),) * 3,
        wait=1.5,
    ),
    Row(
        "refused, and then silent at a second round trip",
        [HELD, (later(0.9, yes(7)), later(0.9, yes(9)), SILENT)],
        asynclock.QuorumUnavailableError,
        ["acquire 1 abc", "acquire 2 abc", "raise 2 a", *GONE],
        call={"timeout": 2.2},
        raises=(SILENT,) * 3,
        wait=2.3,
    ),
]


@pytest.mark.parametrize("kind", ["lock", "semaphore"])  # with others of the tick, and alone
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
@on_told
async def test_a_request(on: Table, row: Row, kind: str) -> None:
    on.tell("acquire", *row.votes)
    on.tell("raise", row.raises)
    on.tell("release", row.releases)
    on.tell("look", row.looks)
    call = dict(row.call)
    once, timeout = call.pop("once", False), call.pop("timeout", None)
    lock = on.locks.semaphore("a", 1, **call) if kind == "semaphore" else on.locks.lock("a", **call)
    asking = asyncio.ensure_future(
        outcome(lock.try_acquire() if once else lock.acquire(timeout=timeout))
    )
    await asyncio.sleep(row.wait)
    result: Any = "waits"
    if asking.done():
        result, _ = await asking
    await call_off(asking)
    await asyncio.sleep(0.01)
    if isinstance(result, asynclock.Lease):
        assert row.result == "won"
    elif isinstance(result, Exception):
        assert type(result) is row.result, result
    else:
        assert result == row.result
    assert on.sent() == row.sent
    await on.locks.aclose()
