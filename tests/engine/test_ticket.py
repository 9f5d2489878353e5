"""A waiter's place on the nodes: its number, and what wakes it. In virtual time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.left import Left, leave
from asynclock._engine.said import Released
from asynclock._engine.ticket import PATIENCE, WOKEN, Armed, Ticket, woken
from asynclock._nodes.replies import Failure
from asynclock._nodes.wakeup import PUSH_WINDOW, Wakeups
from asynclock._primitives import lock
from tests.waiting import in_virtual_time

SPEC = lock.spec("p:", "a")
NAME, MINE = SPEC.keys[0], SPEC.ticket_key("mine")
WAITS = b"1"


def test_a_waiter_settles_once_on_the_highest_number() -> None:
    ticket = Ticket(SPEC, "mine", 0.0)
    ticket.settle([7, 9], 1, enough=False)
    assert (ticket.number, ticket.unsettled) == (0, False), "too few nodes have named one"
    ticket.settle([7, 9, 7], 1, enough=True)
    assert (ticket.number, ticket.unsettled) == (9, True), "two nodes must be told"
    ticket.settle([9, 9, 12], 0, enough=True)
    assert (ticket.number, ticket.unsettled) == (9, True), "it gave others their place by it"
    ticket.settle([9, 9, 9], 0, enough=True)
    assert (ticket.number, ticket.unsettled, ticket.rank) == (9, False, 0)


def test_without_a_number_a_waiter_has_nothing_to_tell() -> None:
    ticket = Ticket(SPEC, "mine", 0.0)
    ticket.settle([], 0, enough=True)
    assert (ticket.number, ticket.unsettled) == (0, False)


async def _after(*replies: tuple[int, Any], queued: str = "012") -> float | None:
    """How long a waiter sleeps after these looks at the nodes; None if nothing wakes it."""
    wakeups = Wakeups(3, 2)
    watch = wakeups.watch((NAME,), ticket=MINE)
    armed = Armed(watch, lambda index: str(index) in queued)
    for index, reply in replies:
        armed.on_reply(index, reply)
    return await _slept(watch)


async def _slept(watch: Any) -> float | None:
    began = _clock.now()
    return _clock.now() - began if await watch.wait(1.0) else None


@in_virtual_time
async def test_a_turn_on_a_quorum_wakes_at_once() -> None:
    assert await _after((0, [WOKEN, b"x"]), (2, [WOKEN, b"x"])) == 0


@in_virtual_time
async def test_a_turn_on_one_node_wakes_a_moment_later() -> None:
    assert await _after((1, [WOKEN, b"x"])) == pytest.approx(PUSH_WINDOW)


@in_virtual_time
async def test_a_ticket_that_is_gone_wakes_as_well() -> None:
    assert await _after((1, [None, b"x"])) == pytest.approx(PUSH_WINDOW)
    assert await _after((1, [None, b"x"]), (2, [None, b"x"])) == 0


@in_virtual_time
async def test_a_node_that_left_us_the_name_before_is_no_reason_to_ask_alone() -> None:
    assert await _after((1, [WOKEN, b"x"]), queued="02") is None
    assert await _after((1, [WOKEN, b"x"]), (0, [WOKEN, b"x"]), queued="02") == 0
    assert await _after((1, [None, None]), (2, [None, None]), queued="0") is None


@in_virtual_time
async def test_a_name_that_is_free_wakes_the_first_waiter_a_moment_later() -> None:
    assert await _after((1, [WAITS, None])) == pytest.approx(PUSH_WINDOW)


@in_virtual_time
async def test_nothing_new_and_no_answer_wake_nobody() -> None:
    assert await _after((0, [WAITS, b"x"]), (1, Failure("away")), (2, Failure("away"))) is None


def test_whom_a_reply_woke() -> None:
    several = replace(SPEC, queue="")
    assert woken(SPEC, Released(True, (b"mine",))) == [MINE]
    assert woken(SPEC, Released(True, (b"mine", b"other"))) == [MINE, SPEC.ticket_key("other")]
    assert woken(several, Released(True, (b"p:a:#queue:#x",))) == ["p:a:#queue:#x"]
    assert woken(SPEC, Released(True)) == []


@in_virtual_time
async def test_a_node_that_leaves_the_name_to_the_sender_of_the_release_counts_once() -> None:
    """It is no reason for the sender to ask again before a quorum has."""
    for ours, slept in ((MINE, None), (None, PUSH_WINDOW)):
        wakeups = Wakeups(3, 2)
        watch = wakeups.watch((), ticket=MINE)
        left = Left(wakeups, SPEC, ours)
        left.on_reply(0, [1, b"mine", 99])
        left.on_reply(0, [1, b"mine", 99])
        left.on_reply(1, Failure("away"))
        assert await _slept(watch) == (None if slept is None else pytest.approx(slept))
        left.on_reply(2, [1, b"mine", 99])
        assert await _slept(watch) == 0


@in_virtual_time
async def test_a_leave_is_sent_again_until_the_ticket_has_died() -> None:
    """The ticket may have been refreshed a moment ago, however long its waiter has waited."""
    sent: list[Any] = []
    nodes: Any = SimpleNamespace(
        wakeups=Wakeups(3, 2), deliver=lambda command, _sink, to: sent.append((command, to))
    )
    since = _clock.now() - 60
    leave(nodes, SPEC, "mine", since, {0, 2})
    ((command, to),) = sent
    assert set(to) == {0, 2}
    assert command.asked_since == since
    assert command.retry_until == pytest.approx(_clock.now() + PATIENCE)
    assert command.unlimited, "a node with many open requests must still take it"


def test_a_dead_waiter_delays_the_next_by_at_most_two_seconds() -> None:
    """As docs/guarantees.md promises."""
    assert PATIENCE == 2.0


def test_a_waiter_tells_the_nodes_how_long_its_place_lasts_and_its_number() -> None:
    ticket = Ticket(SPEC, "mine", 0.0)
    assert (ticket.words(), ticket.place()) == ((2000, "mine", 0), (0, "mine", 2000, 0))
    ticket.settle([7, 9], 3, enough=True)
    assert (ticket.words(), ticket.place()) == ((2000, "mine", 9), (0, "mine", 2000, 9))
    assert (ticket.rank, ticket.key) == (3, MINE)
