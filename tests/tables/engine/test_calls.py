"""How long a call asks the nodes, when it asks again, and with what it ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import asynclock
from asynclock._nodes.wakeup import PUSH_WINDOW
from asynclock._rules.seeking import MOST_HOPS, SETTLING, STEADY
from asynclock._rules.validity import longest_outage
from tests.engine.virtual_nodes import NODE_TIMEOUT, PATIENCE, TTL, start
from tests.tables.engine.told import (
    LOST,
    SILENT,
    Reply,
    Table,
    error,
    later,
    no,
    on_told,
    outcome,
    yes,
)
from tests.tables.inside import chance, now
from tests.waiting import call_off, until

Vote = tuple[Reply, ...]
WON, HELD = (yes(),) * 3, (no(number=5),) * 3
SPLIT, OUT, MUTE = (yes(), no("x"), no("y")), (LOST, LOST, no("x")), (SILENT,) * 3
DENIED = error("NOPERM no right")
OUTAGE = asynclock.QuorumUnavailableError
LATE = asynclock.AcquireTimeoutError
ONCE: dict[str, Any] = {"once": True}


def slow(seconds: float, vote: Vote) -> Vote:
    return tuple(later(seconds, reply) for reply in vote)


@dataclass
class Row:
    """A call, its votes one after the other, and what comes of it after how many seconds.

    asks: how often it asks, at least and at most, or the moments.
    """

    id: str
    votes: Sequence[Vote]
    result: Any
    took: tuple[float, float]
    asks: tuple[int, int] | list[float] = (1, 1)
    call: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("lock", "semaphore")


def within(timeout: float) -> dict[str, Any]:
    return {"timeout": timeout}


RESTART = longest_outage(TTL)
"""Seconds of an outage that a call without a timeout waits out."""
SETTLED = SETTLING * NODE_TIMEOUT
STEADILY = STEADY * NODE_TIMEOUT
"""Seconds after which a rival that has had one node all the time counts as a holder."""
ALL = ("lock", "semaphore", "multi")

ROWS = [
    # others have it
    Row("held until the timeout", [HELD], LATE, (0.5, 0.5), (1, 2), within(0.5), ALL),
    Row("the answer came after it", [slow(0.7, HELD)], LATE, (0.7, 0.7), (1, 1), within(0.5), ALL),
    Row("asks again before its ticket dies", [HELD], "waits", (3, 3), (4, 5)),
    Row("without a queue at once and then rarely", [HELD], "waits", (3, 3), (2, 8), {}, ("multi",)),
    Row("without a queue twice at once", [HELD], "waits", (0.5, 0.5), [0.0, 0.0], {}, ("multi",)),
    Row("refused, then cut by the timeout", [HELD, MUTE], LATE, (1.5, 1.5), (2, 2), within(1.5)),
    Row(
        "refused, then broken",
        [HELD, slow(0.3, (LOST,) * 3)],
        LATE,
        (0.9, 1.2),
        (2, 2),
        within(0.9),
    ),
    Row("refused, then silent for long", [HELD, MUTE], OUTAGE, (2.5, 2.5), (2, 3), within(2.5)),
    Row("refused, silent, and won", [HELD, MUTE, WON], "won", (1.5, 9), (2, 9), within(20)),
    # a try
    Row("a try is refused", [HELD], None, (0, 0), (1, 1), ONCE),
    Row("a try that had a part is refused", [(yes(), no(), no())], None, (0, 0), (1, 1), ONCE),
    Row("a split try is settled", [slow(0.9, SPLIT), WON], "won", (0.9, 0.9), [0.0, 0.9], ONCE),
    Row("a split try meets a holder", [SPLIT, HELD], None, (0, 0), (2, 2), ONCE),
    Row("a split try meets an outage", [SPLIT, OUT], OUTAGE, (0, 0.3), (2, 2), ONCE),
    Row("a split try meets silence", [SPLIT, MUTE], OUTAGE, (1, 1), (2, 2), ONCE),
    *(
        Row(f"a try against {name}", [vote], None, (STEADILY, STEADILY + 0.3), (3, 40), ONCE)
        for name, vote in {
            "a split that stays": SPLIT,
            "owners of one node each": (no("x"), no("y"), no("z")),
            "a split of two nodes": (yes(), no("x"), LOST),
        }.items()
    ),
    *(
        Row(
            f"a split that changes with {call}",
            [slow(0.01, (yes(), no(f"x{n}"), no(f"y{n}"))) for n in range(60)],
            *(result, (SETTLED, SETTLED + 0.02), (10, 40), call),
        )
        for call, result in ((ONCE, None), (within(0.0), LATE), (within(0.3), LATE))
    ),
    Row(
        "a short call whose vote is split",
        [slow(0.9, SPLIT), WON],
        "won",
        (0.9, 0.9),
        [0.0, 0.9],
        within(0.3),
    ),
    # too few nodes answer
    Row("an outage", [OUT], OUTAGE, (RESTART, RESTART + 1), (10, 80), {}, ("lock",)),
    Row("an outage until the timeout", [OUT], OUTAGE, (0.4, 0.75), (2, 12), within(0.4)),
    Row("a long one until then", [OUT], OUTAGE, (15, 16), (10, 99), within(15), ("lock",)),
    Row("an outage in a try", [OUT], OUTAGE, (0, 0), (1, 1), ONCE),
    Row("silence in a try", [MUTE], OUTAGE, (1, 1), (1, 1), ONCE),
    Row("silence", [MUTE], OUTAGE, (1, 1), (1, 1), within(0.0)),
    Row("an outage, then won", [OUT, WON], "won", (0, 0.5), (2, 2)),
    Row(
        "outages are not added up",
        [*[OUT] * 20, HELD, OUT],
        *(OUTAGE, (RESTART + 3, RESTART + 9), (20, 99), {}, ("lock",)),
    ),
    *(
        Row(
            f"no right with {call}",
            [(DENIED, DENIED, yes())],
            *(asynclock.ConfigurationError, (0, 0), (1, 1), call),
        )
        for call in ({}, within(5.0), ONCE)
    ),
    Row("one node without a right", [(DENIED, yes(), yes())], "won", (0, 0)),
]


@pytest.mark.parametrize(
    ("row", "kind"),
    [pytest.param(row, kind, id=f"{row.id}-{kind}") for row in ROWS for kind in row.kinds],
)
@on_told
async def test_a_call(on: Table, row: Row, kind: str) -> None:
    on.tell("acquire", *row.votes)
    lock: Any = {
        "lock": on.locks.lock("a"),
        "semaphore": on.locks.semaphore("a", 1),
        "multi": on.locks.multi_lock("a", "b"),
    }[kind]
    call = lock.try_acquire() if row.call == ONCE else lock.acquire(**row.call)
    asking = asyncio.create_task(outcome(call))
    longest = row.took[1] if row.result == "waits" else 60.0
    done, _ = await asyncio.wait([asking], timeout=longest)
    found, took = asking.result() if done else ("waits", longest)
    at = [one.at for one in on.heard("acquire") if one.node == "a"]
    asking.cancel()
    if isinstance(found, asynclock.Lease | asynclock.MultiLease):
        assert row.result == "won"
    elif isinstance(found, Exception):
        assert type(found) is row.result, found
    else:
        assert found == row.result
    assert row.took[0] - 0.001 <= took <= row.took[1] + 0.001
    if isinstance(row.asks, list):
        assert [moment - at[0] for moment in at] == pytest.approx(row.asks, abs=0.001)
    else:
        assert row.asks[0] <= len(at) <= row.asks[1], [moment - at[0] for moment in at]
    if "timeout" in row.call and "split" not in row.id:
        assert at[-1] < at[0] + max(row.call["timeout"], 1e-9), "nothing begins after it"
    await on.locks.aclose()


@on_told
async def test_free_slots_are_tried_at_once_and_then_with_pauses(on: Table) -> None:
    """If all of them are taken in the end, the call waits in the queue."""
    on.tell("acquire", (no("x", b"01"),) * 3)
    found, took = await outcome(on.locks.semaphore("a", 3).acquire(timeout=0.5))
    at = [one.at for one in on.heard("acquire") if one.node == "a"]
    assert type(found) is LATE
    assert 0.499 <= took < 0.6
    assert at[-1] < at[0] + 0.0005
    assert len(at) == 1 + MOST_HOPS
    counts = on.locks.statistics()
    assert counts.attempts - 1 == len(at), "and the first of the manager"
    assert counts.refused == 2, "of which only these are no hop: the ticket's, and the last"
    before = on.locks.statistics().attempts
    assert await on.locks.semaphore("a", 3).try_acquire() is None
    assert on.locks.statistics().attempts - before == 1 + 3, "one hop for each permit"


@on_told
async def test_a_refusal_at_the_very_timeout_is_told_though_a_slot_is_free(on: Table) -> None:
    chance(on.locks, lambda: 0.0)
    on.tell("acquire", (yes(), no("x", b"01111111"), later(0.3, no("y", b"01111111"))))
    seen: list[tuple[str, float]] = []
    on.locks.observe(lambda event: seen.append((type(event).__name__, now())))
    found, took = await outcome(on.locks.semaphore("a", 9).acquire(timeout=4.2))
    assert type(found) is LATE
    assert (dict(seen)["Contended"] - now(), took) == pytest.approx((0, 4.2), abs=0.001)


@on_told
async def test_refusals_and_split_votes_are_counted(on: Table) -> None:
    on.tell("acquire", HELD, SPLIT, HELD, WON)
    seen: list[str] = []
    on.locks.observe(lambda event: seen.append(type(event).__name__))
    await on.locks.multi_lock("a", "b").acquire()
    counts = on.locks.statistics()
    assert (counts.attempts - 1, counts.refused, counts.split_votes) == (4, 3, 1)
    assert (seen.count("Contended"), seen.count("SplitVote")) == (3, 1)


@on_told
async def test_a_call_that_begins_in_an_outage_waits_for_the_holder_it_meets(on: Table) -> None:
    on.tell("acquire", OUT, OUT, HELD)
    assert type((await outcome(on.locks.lock("a").try_acquire()))[0]) is OUTAGE
    await until(lambda: {one.state for one in on.locks.nodes()} == {"up"})
    waiting = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.001)
    assert on.locks.statistics().waiting == 1
    await asyncio.sleep(0.3)
    assert not waiting.done()
    waiting.cancel()


@on_told
async def test_a_call_that_settles_a_split_vote_waits_and_keeps_its_number(on: Table) -> None:
    numbered = tuple(no(owner, number=5) for owner in "xyz")
    on.tell("acquire", SPLIT, numbered, numbered, WON)
    assert await on.locks.semaphore("a", 2).try_acquire()
    asked = [one.words[8:9] for one in on.heard("acquire") if one.node == "a"]
    assert asked == [[], ["-1"], ["5"], ["5"]]


@on_told
async def test_a_call_that_reaches_a_minority_for_long_leaves_its_queue_until_it_is_back(
    on: Table,
) -> None:
    """It would keep out those who reach a quorum. Then it takes its old number again."""
    on.tell("acquire", HELD, (no(number=5), *(error("LOADING the data"),) * 2))
    waiting = start(on.locks.lock("a").acquire())
    await asyncio.sleep(2 * PATIENCE)
    assert [one.node for one in on.heard("leave")] == [*"abc"]
    left = len(on.heard("acquire"))
    on.tell("acquire", HELD)
    await asyncio.sleep(0.5 * PATIENCE)
    back = [one.words[6:] for one in on.heard("acquire")[left:] if one.node == "a"]
    assert [words[2:] for words in back] == [[], ["5"]]
    await call_off(waiting)


@pytest.mark.parametrize(
    ("looks", "at_once"),
    [((b"go", b"go", b"1"), True), ((b"1", b"go", b"1"), False), ((b"1", None, None), True)],
)
@on_told
async def test_a_ticket_whose_turn_came_on_a_quorum_waits_for_no_other_push(
    on: Table, *, looks: tuple[bytes | None, ...], at_once: bool
) -> None:
    """A node that granted counts if it left the name to the ticket; others also if they lost it."""
    on.tell("acquire", (yes(), *(no(number=5),) * 2))
    on.tell("look", tuple(Reply([word, b"x"]) for word in looks))
    waiting = start(on.locks.lock("a").acquire())
    await asyncio.sleep(0.1)
    first, second = [one.at for one in on.heard("acquire") if one.node == "c"][:2]
    assert (second - first < PUSH_WINDOW / 2) is at_once
    await call_off(waiting)


@on_told
async def test_only_the_waiters_that_an_error_names_are_asked_for(on: Table) -> None:
    on.tell("acquire", (no(number=5, rank=9),) * 3)
    waiting = start(on.locks.lock("a").acquire(timeout=60.0))
    await asyncio.sleep(0.3)
    assert len(on.heard("look")) == 3, "its ticket alone, as no error is near"
    await call_off(waiting)
    await outcome(on.locks.lock("a").acquire(timeout=0.5))
    assert {one.words[1] for one in on.heard("inspect")} == {"4"}


@pytest.mark.parametrize(
    ("kind", "many"),
    [("lock", False), ("semaphore", True), ("read", True), ("write", True), ("multi", True)],
)
@on_told
async def test_where_several_may_hold_a_name_another_holder_is_no_end_of_a_hold(
    on: Table, *, kind: str, many: bool
) -> None:
    make: Any = {
        "lock": on.locks.lock,
        "semaphore": lambda name: on.locks.semaphore(name, 2),
        "read": lambda name: on.locks.rwlock(name).read(),
        "write": lambda name: on.locks.rwlock(name).write(),
        "multi": lambda name: on.locks.multi_lock(name, f"{name}2"),
    }[kind]
    on.tell("acquire", *((no(f"x{number}"),) * 3 for number in range(7)))
    advised = []
    for name in "aaaaaab":
        error, _ = await outcome(make(name).acquire(timeout=0))
        advised.append(error.retry_after)
        await asyncio.sleep(0.9)
    assert (advised[5] > 1.0) is many
    assert advised[6] < 0.1, "nothing is known of the other name"
