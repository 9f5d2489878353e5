"""What a call does next, for whatever its attempts show."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules import pacing
from asynclock._rules.seeking import (
    EARLY,
    LONGEST_ATTEMPT,
    MOST_HOPS,
    MOST_IN_VAIN,
    SETTLING,
    STEADY,
    Owners,
    Seeking,
    Seen,
    Step,
    limit,
)

ASKED, TIMEOUT, TICKET, PATIENCE = 100.0, 0.5, 4.0, 30.0
END = ASKED + SETTLING * TIMEOUT
HELD = ("x", "x")
SPLIT = ("x", "y")


def call(**options: Any) -> Seeking:
    terms: dict[str, Any] = {
        "began": ASKED,
        "deadline": None,
        "once": False,
        "queues": not options.get("once", False),
        "settles": True,
        "permits": 1,
        "node_timeout": TIMEOUT,
        "ticket_ttl": TICKET,
        "patience": PATIENCE,
        "owners": Owners(2, TIMEOUT),
    }
    return Seeking(**{**terms, **options})


def lost(owners: Sequence[str] = HELD, **more: Any) -> Seen:
    return Seen(started=ASKED, owners=owners, **more)


def mute(**more: Any) -> Seen:
    return Seen(**{"started": ASKED, "outage": True, **more})


ONCE: dict[str, Any] = {"once": True}
OVER = {"deadline": ASKED}
LIMITED = {"deadline": ASKED + 0.9}
SLOTS = {"permits": 3}


@pytest.mark.parametrize(
    ("options", "seen", "step"),
    [
        ({}, lost(), Step.WAIT),
        ({}, lost(SPLIT), Step.WAIT),
        ({"queues": False}, lost(), Step.WAIT),
        ({"queues": False}, lost(SPLIT), Step.SETTLE),
        (ONCE, lost(), Step.TAKEN),
        (ONCE, lost(SPLIT), Step.SETTLE),
        ({**ONCE, "settles": False}, lost(SPLIT), Step.TAKEN),
        (OVER, lost(), Step.TAKEN),
        (OVER, lost(SPLIT), Step.SETTLE),
        ({}, lost(unsettled=True), Step.AGAIN),
        ({"queues": False}, lost(unsettled=True), Step.WAIT),
        # A node leaves the name to the waiter that is first, who will settle the vote.
        (OVER, lost((), reserved=True), Step.TAKEN),
        (OVER, lost((), reserved=True, granted=True), Step.SETTLE),
        ({**OVER, **SLOTS}, lost((), reserved=True), Step.SETTLE),
        # Another slot is free.
        (SLOTS, lost(slot=True), Step.ELSEWHERE),
        ({**SLOTS, **ONCE}, lost(slot=True), Step.ELSEWHERE),
        ({**SLOTS, **ONCE}, lost(SPLIT, slot=True), Step.SETTLE),
        # Too few nodes voted.
        ({}, mute(started=ASKED - 0.9 * PATIENCE), Step.WAIT),
        ({}, mute(hopeless=True), Step.HOPELESS),
        ({}, mute(started=ASKED - PATIENCE), Step.OUTAGE),
        (LIMITED, mute(started=ASKED - PATIENCE), Step.WAIT),
        (LIMITED, mute(barred=0.9), Step.WAIT),
        (LIMITED, mute(barred=1.0), Step.OUTAGE),
        (ONCE, mute(cut=True), Step.OUTAGE),
        (ONCE, mute(discarded=True), Step.WAIT),
        (ONCE, mute(discarded=True, barred=0.6), Step.OUTAGE),
        ({"deadline": ASKED + 0.001}, mute(cut=True), Step.OUT_OF_TIME),
        (OVER, mute(started=ASKED - 0.85 * TIMEOUT, cut=True), Step.OUT_OF_TIME),
        (OVER, mute(started=ASKED - 0.95 * TIMEOUT, cut=True), Step.OUTAGE),
        (OVER, mute(), Step.OUTAGE),
    ],
)
def test_what_follows_a_first_attempt(options: dict[str, Any], seen: Seen, step: Step) -> None:
    assert call(**options).after(seen, ASKED) is step


@pytest.mark.parametrize(
    ("options", "seen", "step"),
    [
        (OVER, mute(), Step.TAKEN),
        (OVER, mute(started=ASKED - TIMEOUT), Step.OUTAGE),
        (ONCE, mute(cut=True), Step.TAKEN),
        (ONCE, mute(), Step.OUTAGE),
        ({}, mute(cut=True), Step.WAIT),
    ],
)
def test_a_call_that_met_a_holder_blames_no_node_that_had_no_time(
    options: dict[str, Any], seen: Seen, step: Step
) -> None:
    seeking = call(**options)
    seeking.after(lost(), ASKED)
    assert seeking.after(seen, ASKED) is step


@pytest.mark.parametrize(
    ("at", "seen", "step"),
    [
        (0.8, lost(), Step.AGAIN),
        (0.9, lost(), Step.TAKEN),
        (0.9, lost(SPLIT), Step.AGAIN),
        (SETTLING * TIMEOUT, lost(SPLIT), Step.TAKEN),
        (0.8, mute(), Step.AGAIN),
        (0.9, mute(), Step.OUTAGE),
    ],
)
def test_what_follows_a_pause(at: float, seen: Seen, step: Step) -> None:
    seeking = call(**LIMITED)
    assert seeking.after(seen, ASKED) is Step.WAIT
    assert seeking.waited(seen, ASKED + at) is step


def test_an_outage_lasts_from_its_first_attempt() -> None:
    seeking, later = call(), ASKED + PATIENCE
    assert seeking.after(mute(), ASKED) is Step.WAIT
    assert seeking.after(mute(started=later), later) is Step.OUTAGE
    seeking = call(**LIMITED)
    assert seeking.after(mute(), ASKED) is Step.WAIT
    assert seeking.after(mute(started=ASKED + 0.8, cut=True), ASKED + 0.9) is Step.OUTAGE


def test_a_call_without_a_queue_begins_anew_once_somebody_has_it() -> None:
    seeking, later = call(queues=False), ASKED + 1.0
    assert [seeking.after(lost(SPLIT), ASKED) for _ in range(2)] == [Step.SETTLE] * 2
    assert seeking.after(lost(), ASKED) is Step.WAIT
    seen = lost(SPLIT)
    assert seeking.after(replace(seen, started=later), later) is Step.SETTLE
    assert seeking.settled == 1


def test_the_hops_to_another_slot_come_to_an_end() -> None:
    seen = lost(slot=True)
    cases = (9, MOST_HOPS), (23, MOST_HOPS), (64, 16)
    for shown, (permits, most) in product((seen, lost(SPLIT, slot=True)), cases):
        seeking, hops = call(permits=permits), [Step.ELSEWHERE] * most
        alone = most - 1 if shown is seen else 1
        steps = [seeking.after(shown, ASKED) for _ in range(most + 1)]
        assert steps == [*hops[:alone], Step.SETTLE, *hops[alone + 1 :], Step.WAIT]
        seeking.pause(seen, ASKED, 0.5, rank=0, listens=False)
        assert [seeking.after(shown, ASKED) for _ in hops] == hops, "it has a ticket"
    seeking = call(**ONCE, **SLOTS)
    assert [seeking.after(seen, ASKED) for _ in range(4)] == [Step.ELSEWHERE] * 3 + [Step.TAKEN]
    late = call(**SLOTS, deadline=ASKED + 1.0)
    late.after(lost(), ASKED)
    assert late.after(seen, ASKED + 1.0) is Step.ELSEWHERE, "a slot that was reported as free"
    assert late.after(seen, END) is Step.TAKEN


def test_only_its_own_ticket_keeps_a_call_from_leaving_the_name_to_the_first_waiter() -> None:
    seeking, reserved = call(**OVER), lost((), reserved=True)
    assert seeking.after(lost(SPLIT), ASKED) is Step.SETTLE
    assert seeking.after(reserved, ASKED) is Step.SETTLE
    assert seeking.after(reserved, END) is Step.TAKEN, "or until its time is over"


def test_no_pause_is_longer_than_the_time_that_is_left() -> None:
    held = lost(remaining=60.0)
    for options in (LIMITED, {**ONCE, "deadline": ASKED + 0.9}):
        for at, left in ((0.8, 0.1), (2.0, 0.0)):
            pause = call(**options).pause(held, ASKED + at, 0.5, rank=0, listens=True)
            assert pause == pytest.approx(left)
    for options, left in ((ONCE, TIMEOUT), ({"deadline": ASKED + 0.1}, 0.1)):
        pause = call(**options).pause(held, ASKED, 0.5, rank=0, listens=True)
        assert pause == pytest.approx(left)


def test_an_attempt_has_a_limit_only_near_the_end() -> None:
    assert call().limit(None, ASKED) is None
    assert call(**ONCE).limit(None, ASKED) is None, "its links know better: was the loop busy?"
    seeking = call(deadline=ASKED + 5.0)
    assert seeking.limit(None, ASKED + 5.0 - LONGEST_ATTEMPT * TIMEOUT) is None
    assert seeking.limit(None, ASKED + 4.0) == seeking.limit(lost(SPLIT), ASKED + 4.0) == 1.0
    assert seeking.limit(None, ASKED + 6.0) == -1.0
    assert call(deadline=ASKED + 0.01).limit(None, ASKED) == TIMEOUT, "each call gets one answer"
    assert call(**ONCE, deadline=ASKED + 1.0).limit(None, ASKED) == 1.0
    for shown, left in ((lost(SPLIT), 1.0), (lost(), ASKED + TIMEOUT - (END - 1.0))):
        assert call(**ONCE).limit(shown, END - 1.0) == pytest.approx(left)
    for shown in (lost(SPLIT), lost(slot=True)):
        seeking = call(**ONCE)
        seeking.after(shown, ASKED)
        assert seeking.limit(lost(), END - 1.0) == 1.0, "what it may have is looked at once more"
    assert limit(3.0, 1.0, 0.6) is None


def test_a_call_that_waits_without_a_deadline_looks_only_at_refusals() -> None:
    """It has no limit, so it needn't know who has the name when it asks again."""
    seeking, later = call(queues=False), ASKED + STEADY * TIMEOUT
    assert seeking.limit(lost(SPLIT), ASKED) is None
    assert seeking.after(replace(lost(SPLIT), started=later), later) is Step.SETTLE


def test_later_attempts_to_settle_wait_for_rivals() -> None:
    seeking, seen = call(**ONCE), lost(SPLIT)
    seeking.after(seen, ASKED)
    for settled in range(1, 9):
        seeking.after(seen, ASKED)
        pause = pacing.without_push(settled, None, 0.5)
        assert seeking.before_settling(ASKED, 0.5) == min(pause, TIMEOUT / 4)
    assert seeking.before_settling(END - 0.01, 0.5) == pytest.approx(0.01)


def test_pauses_grow_where_no_push_comes_and_for_those_behind() -> None:
    """An outage says nothing of the holder: the few refusals that came may be old."""
    for rank in (0, 2):
        seeking, seen = call(), [lost()] * 4 + [mute(remaining=0.001)]
        pauses = [seeking.pause(one, ASKED, 0.5, rank=rank, listens=False) for one in seen]
        wanted = [pacing.without_push(number, None, 0.5, rank=rank) for number in range(5)]
        assert pauses == pytest.approx(wanted)
        held = lost(remaining=0.3)
        waits = seeking.pause(held, ASKED, 0.5, rank=rank, listens=True)
        assert waits == pacing.until_expiry(0.3, 0.5)


def test_a_ticket_is_refreshed_well_before_it_dies() -> None:
    """Even if one refresh is lost; and the waiters of one holder do so at different times."""
    held = lost(remaining=60.0)
    soon, late = (
        call().pause(held, ASKED, random, rank=0, listens=True) / TICKET for random in (0.0, 0.999)
    )
    assert soon == pytest.approx(0.3)
    assert late == pytest.approx(0.4, abs=0.001)


def test_a_server_whose_pushes_come_in_vain_is_asked_for_them_again_later() -> None:
    assert 3 <= MOST_IN_VAIN <= 20, "each of them costs a look"
    seeking = call()
    for _ in range(2):
        for _ in range(MOST_IN_VAIN):
            assert seeking.expects_pushes
            seeking.pushed(called=False)
            seeking.pushed(called=True)
        assert not seeking.expects_pushes
        seeking.unpushed()
        assert seeking.expects_pushes
        seeking.pushed(called=True)
        assert not seeking.expects_pushes
        for _ in range(MOST_IN_VAIN + 1):
            seeking.unpushed()


SEEN = st.builds(
    Seen,
    started=st.just(ASKED),
    outage=st.booleans(),
    cut=st.booleans(),
    barred=st.sampled_from([0.0, 5.0]),
    discarded=st.booleans(),
    owners=st.lists(st.sampled_from("xyz"), max_size=3),
    granted=st.booleans(),
    reserved=st.booleans(),
    slot=st.booleans(),
    unsettled=st.booleans(),
    remaining=st.none() | st.floats(0, 60),
)


@given(
    st.lists(st.tuples(SEEN, st.floats(0.001, 0.6), st.floats(0, 0.999)), min_size=1, max_size=40),
    st.none() | st.floats(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 3]),
)
def test_a_call_ends_in_time_and_never_gives_up_a_name_that_nobody_has(
    attempts: list[tuple[Seen, float, float]],
    timeout: float | None,
    once: bool,
    queues: bool,
    permits: int,
) -> None:
    deadline = None if timeout is None else ASKED + timeout
    seeking = call(deadline=deadline, once=once, queues=queues and not once, permits=permits)
    first: dict[str, float] = {}
    now, last = ASKED, None
    for shown, took, random in attempts:
        left = seeking.limit(last, now)
        if left is not None and left <= 0:
            assert now >= (ASKED + TIMEOUT if deadline is None else deadline)
            return
        seen = replace(shown, started=now)
        now += took if left is None else min(took, left)
        step = seeking.after(seen, now)
        if not seen.outage:
            last = seen
            for owner in seen.owners:
                first.setdefault(owner, now)
        if step is Step.WAIT:
            pause = seeking.pause(seen, now, random, rank=0, listens=random < 0.5)
            assert 0 <= pause <= 0.4 * TICKET
            assert deadline is None or pause <= max(0.0, deadline - now) + 1e-9
            now += pause
            step = seeking.waited(seen, now)
        if step is Step.TAKEN and not seen.outage and now < END:
            named = any(
                seen.owners.count(one) >= 2 or seen.started - first[one] >= STEADY * TIMEOUT
                for one in seen.owners
            )
            assert named or (seen.reserved and permits == 1)
        if step in (Step.TAKEN, Step.OUTAGE, Step.HOPELESS, Step.OUT_OF_TIME):
            assert once or deadline is None or now + max(seen.barred, EARLY) >= deadline
            return
    if deadline is not None:
        assert now <= max(deadline, END) + 0.6
