"""What a grant makes of each answer, and when renewal looks at it next."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._engine.grant import FOREVER, Grant
from asynclock._engine.moments import Moments
from asynclock._engine.options import LeaseOptions

NOW, TTL = 100.0, 10.0
END = NOW + TTL


def won(**facts: Any) -> Grant:
    """Return a grant with fence 10 that nodes 0 and 1 gave."""
    usual = {"ttl": TTL, "valid_until": END, "voters": [0, 1], "asked_since": NOW, "queue": None}
    return Grant(None, "me", 10, **{**usual, **facts})  # type: ignore[arg-type]


class NoLease:
    """Stands in for a lease."""


def hand_to(grant: Grant, now: float, **options: Any) -> None:
    lease: Any = NoLease
    grant.handed_to(lease, 11, LeaseOptions(TTL, **options), now)


def test_each_lease_on_a_grant_has_its_own_options() -> None:
    grant = won()
    hand_to(grant, NOW, max_hold=30.0)
    assert grant.hold_until == grant.renew_until == NOW + 30
    hand_to(grant, NOW + 20, max_hold=30.0)
    assert grant.hold_until == grant.renew_until == NOW + 50, "it counts from its own beginning"
    assert grant.held_since == NOW + 20
    hand_to(grant, NOW + 21, renew=False)
    assert (grant.renew_until, grant.hold_until) == (0.0, FOREVER)
    hand_to(grant, NOW + 22)
    assert grant.renew_until == FOREVER


def test_an_older_answer_takes_back_no_time() -> None:
    grant = won()
    grant.extended(END + 9, 2, 8.0)
    grant.extended(END + 4, 1, 20.0)
    assert (grant.valid_until, grant.ttl) == (END + 9, 8.0)


def test_a_request_for_a_shorter_ttl_prolongs_the_lease_when_it_is_answered() -> None:
    grant = won()
    grant.shortened(END + 3, 5, 8.0)
    assert (grant.valid_until, grant.ttl) == (END, 8.0), "until then the old end counts"
    grant.extended(END + 3, 5, 8.0)
    assert grant.valid_until == END + 3
    grant.extended(END + 9, 4, 20.0)
    assert (grant.valid_until, grant.ttl) == (END + 3, 8.0), "this request is older"


def test_each_node_that_may_cut_the_lease_short_is_remembered() -> None:
    grant, other = won(), won()
    for index, ttl in ((0, 5.0), (2, 3.0), (0, 7.0)):
        grant.may_end_sooner(index, ttl)
    assert grant.cut_short == {0: 5.0, 2: 3.0}
    assert not other.cut_short


def test_the_first_node_that_may_take_the_key_back_sets_the_moment() -> None:
    grant = won()
    for at in (NOW + 5, NOW + 3, NOW + 8):
        grant.restore_by(at)
    assert grant.restore_at == NOW + 3
    grant.restore_asked()
    assert grant.restore_at == FOREVER


def test_nodes_that_took_the_key_back_are_told_apart() -> None:
    grant, other = won(), won()
    grant.doubt(0)
    assert grant.voters == (1,)
    grant.put_back(0, NOW + 1, 40, voted=True)
    grant.put_back(2, NOW + 2, 30, voted=False)
    assert sorted(grant.voters) == [0, 1]
    assert grant.restored == {0: NOW + 1, 2: NOW + 2}
    assert grant.top == 40, "the highest counter of all counts"
    assert not other.restored


def test_fences_are_reserved_above_all_that_a_node_has_given() -> None:
    grant = won()
    assert grant.top == 10
    grant.put_back(2, NOW, 50, voted=False)
    assert grant.reserve(5, done=None) == 55  # type: ignore[arg-type]
    grant.reserved(range(51, 56))
    assert [grant.take_fence() for _ in range(3)] == [51, 52, 53]
    assert list(grant.fences) == [54, 55]


def test_a_grant_between_two_leases_was_not_dropped() -> None:
    grant = won()
    grant.reference = lambda: None  # type: ignore[assignment]
    assert grant.dropped
    grant.vacated()
    assert not grant.dropped


def test_a_grant_that_is_over_counts_for_nothing() -> None:
    grant = won()
    hand_to(grant, NOW)
    grant.check_at(NOW + 3)
    grant.over()
    assert (grant.valid_until, grant.alarm, grant.lease) == (0.0, 0.0, None)


def noted(moments: Moments, *at: float) -> list[Grant]:
    grants = []
    for moment in at:
        grant = won()
        grant.check_at(moment)
        moments.add(grant, moment)
        grants.append(grant)
    return grants


def test_grants_of_one_moment_are_due_together() -> None:
    moments = Moments()
    first, second, later = noted(moments, 1.0, 1.0, 2.0)
    assert moments.first == 1.0
    assert moments.take(1.0) == [first, second]
    assert moments.first == 2.0
    assert moments.take(1.5) == []
    assert moments.take(2.0) == [later]
    assert moments._entries == 0
    assert moments.first is None


def test_a_grant_is_due_once_at_its_last_moment() -> None:
    moments = Moments()
    moved, over, stays = noted(moments, 1.0, 1.0, 1.0)
    for grant, at in ((moved, 3.0), (stays, 1.0)):
        grant.check_at(at)
        moments.add(grant, at)
    over.over()
    assert moments.take(2.0) == [stays]
    assert moments.take(3.0) == [moved]


def test_no_timer_is_set_for_moments_at_which_nothing_is_due() -> None:
    moments = Moments()
    _, over, last = noted(moments, 1.0, 2.0, 3.0)
    over.over()
    moments.take(1.0)
    assert moments.first == 3.0
    assert moments.take(3.0) == [last]


def test_what_is_left_of_grants_that_are_over_is_dropped() -> None:
    moments = Moments()
    live = noted(moments, *(5.0 + number for number in range(10)))
    for over in noted(moments, *(number / 100 for number in range(300, 0, -1))):
        over.over()
    moments.tidy(len(live))
    assert (moments.first, len(moments._heap), moments._entries) == (5.0, 10, 10)
    assert moments.take(99.0) == live
    noted(moments, 50.0, 60.0)
    moments.clear()
    assert moments.first is None
    for over in noted(moments, *(float(number) for number in range(1, 61))):
        over.over()
    moments.tidy(1)
    assert moments._entries == 60, "so few take no room that matters"
    for over in noted(moments, *(float(number) for number in range(1, 5))):
        over.over()
    moments.tidy(1)
    assert moments._entries == 64, "nor do so many"
    noted(moments, 99.0, 99.0)
    moments.tidy(1)
    assert moments._entries == 2


def test_many_live_grants_are_not_gone_through_for_each_of_them() -> None:
    """Their renewal would block the event loop."""
    moments = Moments()
    rebuilt = 0
    heap = moments._heap
    for grant in noted(moments, *(number / 7 for number in range(300))):
        moments.add(grant, grant.alarm)
        moments.tidy(300)
        rebuilt += moments._heap is not heap
        heap = moments._heap
    assert rebuilt == 0


@pytest.mark.parametrize("live", [100, 1000])
def test_grants_come_and_go_at_a_steady_cost(live: int) -> None:
    moments = Moments()
    rebuilt, heap = 0, moments._heap
    grants = noted(moments, *(float(number) for number in range(live)))
    for step in range(10 * live):
        grant = grants[step % live]
        grant.check_at(live + float(step))
        moments.add(grant, grant.alarm)
        moments.tidy(live)
        rebuilt += moments._heap is not heap
        heap = moments._heap
    assert rebuilt <= 5, "each time for three times as many entries as there are grants"
    assert moments._entries <= 4 * live


def test_a_request_of_before_a_shorter_ttl_counts_no_longer_whenever_it_is_answered() -> None:
    """A node may execute it before the shorter one, whose reply is lost."""
    grant = won()
    grant.asked(END + 5)
    assert grant.asked_until == END + 5
    grant.asked(END + 2)
    assert grant.asked_until == END + 5, "the latest end that a node may have been told"
    grant.shortened(END - 4, 5, 8.0)
    assert (grant.valid_until, grant.ttl, grant.asked_until) == (END - 4, 8.0, END - 4)
    grant.extended(END + 9, 4, 20.0)
    assert (grant.valid_until, grant.ttl) == (END - 4, 8.0)
    grant.extended(END + 1, 6, 9.0)
    assert (grant.valid_until, grant.ttl) == (END + 1, 9.0)


def test_the_last_renewal_ends_with_max_hold_and_keeps_the_ttl() -> None:
    grant = won()
    hand_to(grant, NOW, max_hold=TTL + 2)
    grant.extended(END + 5, 1, 7.0)
    assert (grant.valid_until, grant.ttl) == (END + 2, TTL)
    short = won(valid_until=END + 4)
    hand_to(short, NOW, max_hold=TTL + 2)
    short.extended(END + 5, 1, 7.0)
    assert short.valid_until == END + 4, "the first ttl may be longer than max_hold"


def test_only_the_newest_call_of_extend_and_its_ttl_are_wanted() -> None:
    grant = won()
    assert grant.wanted_ttl == TTL
    first, second = grant.wants(1, 20.0), grant.wants(2, 30.0)
    assert grant.wanted_ttl == 30.0
    grant.answered(first)
    assert grant.wanted_ttl == 30.0, "the second one has no answer yet"
    grant.answered(second)
    assert grant.wanted_ttl == TTL


def test_only_the_newest_request_for_fences_is_under_way() -> None:
    grant = won()
    first, second = object(), object()
    assert grant.reserve(5, first) == 15  # type: ignore[arg-type]
    assert grant.reserve(5, second) == 20, "above what the first one asked for"  # type: ignore[arg-type]
    grant.reservation_ended(first)  # type: ignore[arg-type]
    assert grant.reserving is second
    grant.reservation_ended(second)  # type: ignore[arg-type]
    assert grant.reserving is None
    grant.reserved(range(16, 21))
    grant.drop_fences()
    assert not grant.fences


def test_a_grant_that_is_not_renewed_ends_with_its_ttl() -> None:
    grant = won()
    hand_to(grant, NOW)
    grant.end_sooner(2.0)
    assert grant.valid_until == END - 2
    grant.stop_renewing()
    assert (grant.renew_until, grant.valid_until) == (0.0, END - 2)
