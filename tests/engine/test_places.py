"""The waiters of a name, put together from what the nodes keep. For people to read."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import asynclock
from asynclock._engine.ticket import WOKEN
from asynclock._engine.waiters import MOST_WAITERS, Waiter, in_order, question
from asynclock._nodes.replies import Failure
from tests.waiting import until

OWN = b"0123456789abcdef" * 2 + b":web"
WAITS = b"1"


def test_waiters_are_told_in_the_order_of_their_highest_numbers() -> None:
    """Nodes may have different numbers for one that has just come."""
    first = [b"a", b"3", WAITS, b"3"], [b"b", b"5", WAITS, b"5"], [b"c", b"11", WAITS, b"11"]
    second = [b"b", b"5", WAITS, b"5"], [b"a", b"7", WAITS, b"7"], [b"c", b"11", WAITS, b"11"]
    expected = tuple(Waiter(name, woken=False) for name in "bac")
    assert in_order([[*first], [*second], [*first]]) == expected
    assert in_order([[*second], [*first]]) == expected


def test_only_a_waiter_that_a_majority_of_the_answers_has_is_told() -> None:
    """A ticket that just one node keeps may be left over."""
    both, one = [b"both", b"1", WAITS, b"1"], [b"one", b"0", WAITS, b"0"]
    assert in_order([[both, one], [both], []]) == (Waiter("both", woken=False),)
    assert in_order([[one], [], Failure("away")]) == ()
    assert in_order([[one], Failure("away"), Failure("away")]) == (Waiter("one", woken=False),)
    assert in_order([]) == ()


def test_a_waiter_was_woken_if_one_node_has_told_it() -> None:
    answers = [[[b"a", b"1", WOKEN, b"1"]], [[b"a", b"1", WAITS, b"1"]], [[b"a", b"1", None, b"1"]]]
    assert in_order(answers) == (Waiter("a", woken=True),)


def test_a_waiter_says_since_when_it_waits_if_the_nodes_can_tell() -> None:
    """Tickets of this library are numbered by a node's clock; of readers in milliseconds."""

    def since(number: bytes) -> Any:
        (waiter,) = in_order([[[OWN, b"1", WAITS, number]]])
        return waiter.since, waiter.shared

    assert since(b"1795331604939299") == (1795331604.939299, False)
    assert since(b"4001795331604939") == (1795331604.939, True)
    assert since(b"1795331604939") == (1795331604.939, False)
    assert since(b"-1") == (None, True), "a reader that goes next"
    assert since(b"1") == (None, False), "a writer that was a reader"
    earlier, later = b"1795331604000000", b"1795331605000000"
    (waiter,) = in_order([[[OWN, earlier, WAITS, earlier]], [[OWN, later, WAITS, later]]])
    assert waiter.since == 1795331604.0


@pytest.mark.parametrize("kind", ["lock", "fair_lock", "semaphore", "write", "read", "election"])
async def test_a_waiter_of_each_kind_says_since_when_it_waits(kind: str) -> None:
    def wanted(locks: asynclock.LockManager) -> Any:
        match kind:
            case "semaphore":
                return locks.semaphore("a", 1).acquire()
            case "read" | "write":
                return getattr(locks.rwlock("a"), kind)().acquire()
            case "election":
                return locks.election("a").campaign()
        return getattr(locks, kind)("a").acquire()

    nodes = [f"memory://waits-{kind}-{number}" for number in range(3)]
    async with asynclock.connect(*nodes) as holder, asynclock.connect(*nodes) as others:
        await holder.ready(voting=True)
        await others.ready(voting=True)
        held = await (holder.rwlock("a").write().acquire() if kind == "read" else wanted(holder))
        began = time.time()
        waiting = asyncio.ensure_future(wanted(others))
        try:

            async def shown() -> Any:
                return [one async for one in holder.inspect_all() if one.waiting]

            (first,) = (await until(shown))[0].waiting
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])
        assert first.since == pytest.approx(began, abs=20)
        assert first.shared is (kind == "read")
        assert held


def test_of_a_waiter_people_see_its_label_and_nothing_that_is_no_text_fails() -> None:
    (ours, other) = in_order(
        [[[OWN, b"1", WAITS, b"1"], [b"\xff-of-another-library", b"2", WAITS, b"2"]]]
    )
    assert (ours.ticket, ours.label) == (OWN.decode(), "web")
    assert (other.ticket, other.label) == ("\ufffd-of-another-library", "\ufffd-of-ano…")


def test_a_node_is_asked_for_a_bounded_number_of_waiters() -> None:
    command = question("a", "a:#queue")
    assert (command.keys, command.args) == (("a", "a:#queue"), ("inspect", MOST_WAITERS))
    assert MOST_WAITERS == 1000
