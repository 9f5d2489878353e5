"""Which node may vote, decided from its facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules import trust, validity
from asynclock._rules.trust import Facts, Trust

OLD = Facts(run_id="one", uptime=1000.0, role="master")
NEW = Facts(run_id="two", uptime=3.0, role="master")
D = validity.quarantine(10.0)


def met(known: Trust, facts: Facts, now: float, **guards: bool) -> float:
    return known.met(facts, now, **{"guard": True, "guard_first": True, **guards})


def test_an_old_server_votes_at_once() -> None:
    assert met(Trust(10.0), OLD, 5000.0) == 0


def test_a_durable_server_that_kept_its_disk_has_kept_all_its_keys() -> None:
    known = Trust(10.0)
    met(known, replace(NEW, durable=True), 5000.0, disks_kept=True)
    assert known.remembers_from < 0


def test_a_young_server_waits_out_the_rest() -> None:
    # 3 s of uptime may be 1 s: INFO rounds, and updates its clock lazily.
    assert met(Trust(10.0), NEW, 5000.0) == pytest.approx(D - 1.0)


def test_on_a_single_server_the_first_contact_is_free() -> None:
    known = Trust(10.0)
    assert met(known, NEW, 5000.0, guard_first=False) == 0
    restarted = Facts(run_id="three", uptime=0.0, role="master")
    assert met(known, restarted, 5001.0, guard_first=False) == pytest.approx(D)


def test_a_known_process_needs_no_guard() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    assert met(known, OLD, 5001.0) == 0


def test_a_lying_uptime_is_bounded_by_its_last_reply() -> None:
    # A clock that jumped makes a fresh process look hours old (measured on a real server).
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    known.last_reply = 5004.0
    liar = Facts(run_id="two", uptime=3601.0, role="master")
    assert met(known, liar, 5005.0) == pytest.approx(D - 1.0)


def test_a_server_without_a_run_id_is_taken_for_restarted() -> None:
    known = Trust(10.0)
    assert met(known, Facts(), 5000.0) == pytest.approx(D)
    assert "does not say when it started" in known.why(0.0)


def test_a_server_without_a_run_id_is_taken_for_restarted_each_time() -> None:
    known = Trust(10.0)
    met(known, Facts(), 5000.0)
    known.last_reply = 6000.0
    assert met(known, Facts(), 6020.0) == pytest.approx(D)


def test_a_process_whose_mark_is_gone_may_have_lost_its_keys() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    assert met(known, replace(OLD, marked=0.0, promoted=True), 5001.0) == pytest.approx(D)


def test_a_short_quarantine_ends_no_long_one() -> None:
    known = Trust(10.0)
    assert known.quarantine(100.0, 50.0, "long") == 50.0
    assert known.quarantine(110.0, 5.0, "short") == 40.0
    assert known.why(0.0) == "long"


def test_a_node_that_was_flushed_has_no_vote_and_remembers_nothing() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    assert known.forgot(6000.0, "its keys were flushed") == pytest.approx(D)
    assert known.votes_from == pytest.approx(6000.0 + D)
    assert known.remembers_from == 6000.0


DURABLE = replace(OLD, durable=True, after="-")
SURVIVOR = replace(NEW, durable=True, after="one")


def test_a_durable_process_after_a_durable_one_need_not_wait() -> None:
    known = Trust(10.0)
    met(known, DURABLE, 5000.0)
    assert met(known, SURVIVOR, 5001.0) == 0


@pytest.mark.parametrize(
    ("before", "after", "silence"),
    [
        pytest.param(OLD, SURVIVOR, 1.0, id="the process before forgot"),
        pytest.param(DURABLE, NEW, 1.0, id="this process forgets"),
        pytest.param(DURABLE, replace(SURVIVOR, after="three"), 1.0, id="one in between"),
        pytest.param(DURABLE, replace(SURVIVOR, after="-"), 1.0, id="an empty disk"),
        pytest.param(DURABLE, replace(SURVIVOR, after=None), 1.0, id="no mark allowed"),
        pytest.param(DURABLE, SURVIVOR, D + 0.1, id="time enough for one in between"),
    ],
)
def test_a_durable_process_waits_unless_it_has_all_grants(
    before: Facts, after: Facts, silence: float
) -> None:
    known = Trust(10.0)
    met(known, before, 5000.0)
    assert met(known, after, 5000.0 + silence) == pytest.approx(D - 1.0)


@pytest.mark.parametrize("facts", [NEW, replace(NEW, durable=True)])
def test_where_disks_are_kept_a_durable_process_need_not_wait(facts: Facts) -> None:
    waits = 0 if facts.durable else pytest.approx(D - 1.0)
    assert met(Trust(10.0), facts, 5000.0, disks_kept=True) == waits
    known = Trust(10.0)
    met(known, replace(OLD, durable=True), 4000.0)
    assert met(known, facts, 5000.0, disks_kept=True) == waits


def test_a_durable_process_waits_after_one_that_was_not_though_disks_are_kept() -> None:
    """The earlier one may have lost what it granted last, on whatever disk."""
    known = Trust(10.0)
    met(known, OLD, 4000.0)
    assert met(known, replace(NEW, durable=True), 5000.0, disks_kept=True) > 0


def test_a_durable_process_that_was_a_replica_waits_though_disks_are_kept() -> None:
    known = Trust(10.0)
    met(known, replace(OLD, role="slave"), 4000.0)
    assert met(known, replace(NEW, durable=True), 5000.0, disks_kept=True) > 0


def test_a_durable_process_that_is_met_for_the_first_time_waits() -> None:
    assert met(Trust(10.0), SURVIVOR, 5000.0) == pytest.approx(D - 1.0)


def test_a_promoted_primary_waits_for_those_who_do_not_know_yet() -> None:
    """Other clients may use the old primary for `lag` seconds after the mark was left."""
    promoted = replace(OLD, marked=0.0, promoted=True, lag=2.0)
    longer = validity.quarantine(12.0)
    assert met(Trust(10.0), promoted, 5000.0) == pytest.approx(longer)
    assert met(Trust(10.0), replace(promoted, marked=3.0), 5000.0) == pytest.approx(longer - 3.0)


def test_a_promoted_primary_renews_once_nobody_is_granted_anything_by_the_one_before() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    assert known.renews_from <= 5000.0
    met(known, replace(OLD, run_id="two", marked=0.5, promoted=True, lag=2.0), 5001.0)
    assert known.renews_from == pytest.approx(5001.0 + validity.quarantine(2.0) - 0.5)


def test_after_a_change_of_the_record_no_earlier_reply_counts() -> None:
    """Neither a grant nor a renewal."""
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    known.doubt(5001.0)
    assert known.votes_from == known.renews_from == 5001.0
    known.doubt(5000.5)
    assert known.votes_from == known.renews_from == 5001.0


def test_a_replica_that_is_promoted_waits() -> None:
    known = Trust(10.0)
    assert met(known, replace(OLD, role="slave"), 5000.0) == 0
    assert met(known, OLD, 5001.0) == pytest.approx(D - 1.0)
    assert known.why(0.0) == "was a replica at the last connection and may lack locks"


def test_a_node_that_refused_to_write_as_a_replica_waits() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    known.demoted()
    assert met(known, OLD, 5001.0) == pytest.approx(D - 1.0)


def test_the_guard_can_be_turned_off() -> None:
    assert met(Trust(10.0), NEW, 5000.0, guard=False) == 0


@pytest.mark.parametrize("by", [-120.0, -0.5, 0.5, 120.0])
def test_a_jump_is_seen(by: float) -> None:
    known = Trust(10.0)
    assert known.sample(1000.0, 0.0, 0.001) == 0
    seen = known.sample(1001.0 + by, 1.0, 1.001)
    assert seen == pytest.approx(by, abs=0.005)
    assert known.jumped(1.001, seen) == pytest.approx(D)
    assert known.sample(1002.0 + by, 2.0, 2.001) == 0  # told once


@pytest.mark.parametrize("by", [-0.01, 0.01])
def test_a_small_jump_is_seen(by: float) -> None:
    """A process that waits for the clock of a virtual machine loses as much of each lease."""
    known = Trust(10.0)
    known.sample(1000.0, 0.0, 0.001)
    assert known.sample(1001.0 + by, 1.0, 1.001) == pytest.approx(by, abs=0.005)


def test_a_jump_behind_a_slow_reply_is_seen() -> None:
    """A reply that took a second tells little; it does not undo what quick ones have told."""
    known = Trust(10.0)
    known.sample(1000.0, 0.0, 0.001)
    assert known.sample(1001.5, 1.0, 2.0) == 0
    assert known.sample(1003.3, 3.0, 3.001) == pytest.approx(0.3, abs=0.01)


@given(
    by=st.floats(-5, 5).filter(lambda by: abs(by) > 0.7),
    trips=st.tuples(st.floats(0.0001, 0.3), st.floats(0.0001, 0.3)),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_jump_is_never_told_smaller_than_it_was(
    by: float, trips: tuple[float, float], shares: tuple[float, float]
) -> None:
    """Leases must lose all that our clock missed, also when the reply that shows it was slow."""
    known = Trust(10.0)
    known.sample(1000.0 + trips[0] * shares[0], 0.0, trips[0])
    seen = known.sample(1001.0 + trips[1] * shares[1] + by, 1.0, 1.0 + trips[1])
    assert (seen > 0) is (by > 0)
    assert abs(by) - 1e-6 <= abs(seen) <= abs(by) + sum(trips) + 0.01


def test_an_old_reading_that_is_told_late_is_no_jump() -> None:
    known = Trust(10.0)
    known.sample(1000.0, 0.0, 0.001)
    assert known.sample(1006.0, 1.0, 1.001) == pytest.approx(5.0, abs=0.01)
    assert known.sample(1000.5, 0.5, 1.002) == 0  # it was read before the jump


@given(
    rate=st.floats(-0.0005, 0.0005),
    trips=st.lists(
        st.tuples(st.floats(0.0001, 0.3), st.floats(0, 1), st.floats(0.001, 30)), max_size=60
    ),
)
def test_slewing_and_slow_trips_are_no_jumps(
    rate: float, trips: list[tuple[float, float, float]]
) -> None:
    known, now = Trust(10.0), 100.0
    for trip, share, pause in trips:
        read = 1e9 + (now + trip * share) * (1 + rate)
        assert known.sample(read, now, now + trip) == 0
        now += trip + pause


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7))
def test_the_floor_is_a_clock_that_some_node_has(offsets: list[float]) -> None:
    found = trust.low_median(offsets)
    assert found in offsets
    assert sum(offset <= found for offset in offsets) >= (len(offsets) + 1) // 2
    assert sum(offset >= found for offset in offsets) >= (len(offsets) + 1) // 2


def test_evicting_policies() -> None:
    assert Facts(maxmemory_policy="allkeys-lru").evicts
    assert Facts(maxmemory_policy="volatile-ttl").evicts
    assert not Facts(maxmemory_policy="noeviction").evicts
    assert not Facts().evicts


def test_the_clock_of_a_new_primary_is_no_jump() -> None:
    known = Trust(10.0)
    met(known, replace(OLD, marked=100.0), 5000.0)
    known.sample(1000.0, 5000.0, 5000.001)
    met(known, replace(OLD, run_id="two", marked=0.5, promoted=True), 5001.0)
    assert known.sample(2000.0, 5001.0, 5001.001) == 0


def test_only_a_primary_may_vote() -> None:
    assert not Facts().replica
    assert not Facts(role="master").replica
    assert Facts(role="slave").replica
    assert Facts(role="sentinel").replica


def test_each_reply_bounds_the_age_of_a_process_that_comes_after() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    known.sample(1e9, 5003.9, 5004.0)
    liar = Facts(run_id="two", uptime=3601.0, role="master")
    assert met(known, liar, 5005.0) == pytest.approx(D - 1.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(OLD, NEW, id="a plain server that restarts"),
        pytest.param(replace(OLD, marked=50.0), replace(OLD, marked=51.0), id="a new connection"),
    ],
)
def test_a_jump_between_two_connections_to_one_machine_is_seen(before: Facts, after: Facts) -> None:
    known = Trust(10.0)
    met(known, before, 5000.0)
    known.sample(1000.0, 5000.0, 5000.001)
    met(known, after, 5001.0)
    assert known.sample(1001.5, 5001.0, 5001.001) == pytest.approx(0.5, abs=0.01)


def test_a_durable_replica_that_was_met_is_no_promise_for_the_next_process() -> None:
    known = Trust(10.0)
    met(known, replace(OLD, role="slave", durable=True), 4000.0)
    assert met(known, replace(NEW, durable=True), 5000.0, disks_kept=True) > 0


def test_since_when_a_node_remembers() -> None:
    """Since it has certainly run, or later where another primary was used in between."""
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    assert known.remembers_from == pytest.approx(4002.0)
    met(known, OLD, 5100.0)
    assert known.remembers_from == pytest.approx(4002.0), "it has kept all since then"
    met(known, replace(OLD, run_id="two", marked=5.0, promoted=True, lag=2.0), 5200.0)
    assert known.remembers_from == pytest.approx(5197.0)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (NEW, "started 5 s ago and may have forgotten locks"),
        (replace(OLD, marked=1.0), "became the primary 3 s ago and may lack locks"),
        (replace(NEW, marked=60.0), "started 5 s ago and may have forgotten locks"),
    ],
)
def test_people_are_told_why_a_node_has_no_vote(facts: Facts, cause: str) -> None:
    known = Trust(10.0)
    assert met(known, facts, 5000.0) > 0
    assert known.why(5002.0) == cause


def test_the_cause_of_a_longer_quarantine_takes_the_place_of_the_one_before() -> None:
    known = Trust(10.0)
    met(known, replace(NEW, uptime=0.0), 5000.0)
    assert known.why(5000.0) == "started less than a second ago and may have forgotten locks"
    known.forgot(5001.0, "lost its keys {ago}")
    assert known.why(5003.0) == "lost its keys 2 s ago"


def test_a_node_that_was_never_met_may_be_a_replica() -> None:
    known = Trust(10.0)
    known.demoted()
    assert known.facts is None
    assert met(known, OLD, 5000.0) == 0


def test_a_clock_that_wanders_by_less_than_a_jump_at_a_time_has_not_jumped() -> None:
    known = Trust(10.0)
    for number, offset in enumerate((0.0, 0.0015, 0.0022, 0.003)):
        at = 5000.0 + number / 100
        assert known.sample(at + offset, at, at) == 0


def test_the_offset_of_a_clock_is_the_middle_of_what_is_possible() -> None:
    known = Trust(10.0)
    assert known.offset is None
    known.sample(6000.0, 5000.0, 5000.2)
    assert known.offset == pytest.approx(999.9)


def test_a_jump_is_seen_however_long_our_clock_has_run() -> None:
    known = Trust(10.0)
    known.sample(1e9, 1e6, 1e6 + 0.001)
    assert known.sample(1e9 + 1.05, 1e6 + 1, 1e6 + 1.001) == pytest.approx(0.05, abs=0.01)


def test_of_an_even_number_of_clocks_the_lower_of_the_middle_two_counts() -> None:
    assert trust.low_median([4.0, 1.0, 3.0, 2.0]) == 2.0
    assert trust.low_median([2.0, 1.0]) == 1.0


def test_a_jump_is_told_with_its_direction() -> None:
    for by, text in ((5.0, "its clock jumped by +5.000 s"), (-0.5, "its clock jumped by -0.500 s")):
        known = Trust(10.0)
        known.jumped(5000.0, by)
        assert known.why(5000.0) == text


def test_a_whole_second_is_told() -> None:
    known = Trust(10.0)
    known.quarantine(5000.0, 9.0, "it was flushed {ago}")
    assert known.why(5001.0) == "it was flushed 1 s ago"
    assert known.why(5000.9) == "it was flushed less than a second ago"
