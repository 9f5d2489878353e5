"""The queue of one name inside a process: who goes next, and for how long the process stays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from asynclock._engine.local_queue import KEEP_TIME, LocalQueue, Proceed
from asynclock._engine.options import LeaseOptions

TURN = 0.5
NOW = 100.0
OPTIONS = LeaseOptions(ttl=10.0)


@dataclass
class Held:
    """A grant that this process got just now."""

    ttl: float = 10.0
    valid_until: float = NOW + 9.9
    since: float = NOW
    contended: bool = False


def line(permits: int = 1) -> LocalQueue[Held]:
    return LocalQueue("a", "a", permits, TURN)


async def test_each_turn_goes_to_the_first_that_still_waits() -> None:
    queue, grant = line(), Held()
    waiters = [queue.join(OPTIONS) for _ in range(6)]
    waiters[0].cancel()
    assert queue.hand_on(grant, OPTIONS, NOW)
    assert queue.hand_on(grant, OPTIONS, NOW)
    waiters[3].cancel()
    assert queue.let_ask(Proceed.NOW)
    assert queue.let_ask(Proceed.NOW)
    assert [one.result() for one in (waiters[i] for i in (1, 2, 4, 5))] == [
        grant,
        grant,
        Proceed.NOW,
        Proceed.NOW,
    ]
    assert not queue.let_ask(Proceed.NOW)
    assert not queue.hand_on(grant, OPTIONS, NOW)


@pytest.mark.parametrize(
    "wanted",
    [
        LeaseOptions(ttl=5.0),
        LeaseOptions(ttl=20.0),
        replace(OPTIONS, renew=False),
        replace(OPTIONS, handoff="strict"),
        replace(OPTIONS, handoff=False),
        replace(OPTIONS, max_hold=60.0),
    ],
)
async def test_a_waiter_on_other_terms_gets_no_lease_and_keeps_its_place(
    wanted: LeaseOptions,
) -> None:
    queue = line()
    first, second = queue.join(wanted), queue.join(OPTIONS)
    for _ in range(2):
        assert not queue.hand_on(Held(), OPTIONS, NOW)
    assert queue.let_ask(Proceed.NOW)
    assert first.done()
    assert not second.done()


async def test_the_ttl_that_a_lease_was_extended_to_is_the_one_that_counts() -> None:
    queue = line()
    waiter = queue.join(LeaseOptions(ttl=20.0, interrupt=False))
    assert queue.hand_on(Held(ttl=20.0), OPTIONS, NOW)
    assert waiter.done()


@pytest.mark.parametrize(
    ("grant", "given_up"),
    [
        (Held(), replace(OPTIONS, handoff=False)),
        (Held(), replace(OPTIONS, max_hold=60.0)),
        (Held(valid_until=NOW), OPTIONS),
        (Held(since=NOW - KEEP_TIME - 0.001), OPTIONS),
        (Held(since=NOW - TURN, contended=True), OPTIONS),
    ],
)
async def test_a_lease_that_may_not_pass_on_leaves_the_waiter_where_it_is(
    grant: Held, given_up: LeaseOptions
) -> None:
    queue = line()
    waiter = queue.join(given_up)
    assert not queue.hand_on(grant, given_up, NOW)
    assert not waiter.done()
    assert waiter in queue.waiters


def test_a_process_stays_for_its_turn_or_until_it_has_asked_who_waits() -> None:
    queue = line()
    for contended, limit in ((True, TURN), (False, KEEP_TIME)):
        grant = Held(contended=contended)
        assert not queue.used_up(grant, NOW + limit - 0.001)
        assert queue.used_up(grant, NOW + limit + 0.001)


def test_a_freed_name_is_kept_only_for_the_rest_of_a_turn_that_others_wait_for() -> None:
    queue = line()
    assert not queue.keep(Held(), NOW), "nobody else would get it"
    assert not queue.keep(Held(contended=True), NOW + TURN), "the turn is over"
    assert queue.take_kept(NOW) is None
    assert queue.keep(Held(contended=True), NOW + TURN / 2)
    assert queue.take_kept(NOW + TURN / 2) == NOW
    assert queue.take_kept(NOW + TURN / 2) is None, "it is taken once"
    assert queue.keep(Held(contended=True), NOW)
    assert queue.take_kept(NOW + 1.1 * TURN) is None, "the turn is over"
    assert not line(2).keep(Held(contended=True), NOW), "another process may wait for any permit"


async def test_a_waiter_that_leaves_returns_the_turn_that_it_has_got() -> None:
    queue, grant = line(), Held()
    waiting, cancelled, given, told, late = (queue.join(OPTIONS) for _ in range(5))
    assert queue.leave(waiting) is None
    cancelled.cancel()
    assert queue.leave(cancelled) is None
    assert queue.hand_on(grant, OPTIONS, NOW)
    assert queue.leave(given) is grant
    assert queue.let_ask(Proceed.NOW)
    assert queue.leave(told) is Proceed.NOW
    queue.give_up(late)
    assert queue.leave(late) is None
    assert not queue.waiters
    assert not waiting.done()


async def test_a_timeout_ends_a_wait_unless_the_turn_came_first() -> None:
    queue = line()
    first, second = queue.join(OPTIONS), queue.join(OPTIONS)
    assert queue.let_ask(Proceed.NOW)
    queue.give_up(first)
    assert first.result() is Proceed.NOW
    queue.give_up(second)
    assert second.result() is None
    assert not queue.waiters
    assert not queue.let_ask(Proceed.NOW)


async def test_names_without_waiters_share_nothing() -> None:
    one, other = line(), line()
    waiter = one.join(OPTIONS)
    assert not other.waiters
    assert not line().waiters
    assert not other.let_ask(Proceed.NOW)
    assert not waiter.done()


def test_a_process_is_full_when_it_has_all_permits() -> None:
    queue, grants = line(2), [Held(), Held(since=NOW + 1)]
    for grant, full in zip(grants, (False, True), strict=True):
        queue.grants.append(grant)
        assert queue.full is full
    for _ in range(2):
        queue.free(grants[0])
    assert queue.grants == grants[1:]


async def test_a_wait_ends_in_the_loop_in_which_it_began() -> None:
    assert line().join(OPTIONS).get_loop() is asyncio.get_running_loop()
