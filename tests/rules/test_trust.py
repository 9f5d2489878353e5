"""Which node may vote, decided from its facts alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules import validity
from asynclock._rules.validity import Facts, Trust

OLD = Facts(run_id="one", uptime=1000.0, role="master")
NEW = Facts(run_id="two", uptime=3.0, role="master")
LIAR = Facts(run_id="two", uptime=3601.0, role="master")
"""A clock that jumped makes a fresh process look hours old (measured on a real server)."""
UNKNOWN = Facts()
REPLICA = replace(OLD, role="slave")
DURABLE = replace(OLD, durable=True, after="-")
SURVIVOR = replace(NEW, durable=True, after="one")
KEEPS = replace(NEW, durable=True)
PROMOTED = replace(OLD, marked=0.0, promoted=True, lag=2.0)
D = validity.quarantine(10.0)
LONGER = validity.quarantine(12.0)
FIRST = 5000.0
REST = D - 1.0  # 3 s of uptime may be 1 s: INFO rounds, and updates its clock lazily.


@pytest.fixture
def known() -> Trust:
    return Trust(10.0)


def met(known: Trust, facts: Facts, now: float, **guards: bool) -> float:
    return known.met(facts, now, **{"guard": True, "guard_first": True, **guards})


@pytest.mark.parametrize(
    ("facts", "guards", "waits"),
    [
        pytest.param(OLD, {}, 0, id="an old server"),
        pytest.param(NEW, {}, REST, id="a young server waits out the rest"),
        pytest.param(NEW, {"guard": False}, 0, id="the guard is off"),
        pytest.param(NEW, {"guard_first": False}, 0, id="the first contact with a single server"),
        pytest.param(UNKNOWN, {}, D, id="without a run_id it is taken for restarted"),
        pytest.param(Facts(run_id="one"), {}, D, id="without an age as well"),
        pytest.param(SURVIVOR, {}, REST, id="a durable process that is met for the first time"),
        pytest.param(KEEPS, {"disks_kept": True}, 0, id="durable, where disks are kept"),
        pytest.param(NEW, {"disks_kept": True}, REST, id="not durable, where disks are kept"),
        # Other clients may use the old primary for `lag` seconds after the mark was left.
        pytest.param(PROMOTED, {}, LONGER, id="a promoted primary"),
        pytest.param(replace(PROMOTED, marked=3.0), {}, LONGER - 3.0, id="a primary for 3 s"),
        pytest.param(REPLICA, {}, 0, id="a replica"),
    ],
)
def test_a_node_at_the_first_meeting(facts: Facts, guards: dict[str, bool], waits: float) -> None:
    assert met(Trust(10.0), facts, FIRST, **guards) == pytest.approx(waits)


ONE = {"guard_first": False}
DISKS = {"disks_kept": True}
RESTARTED = replace(NEW, run_id="three", uptime=0.0)
EMPTY, BETWEEN = replace(SURVIVOR, after="-"), replace(SURVIVOR, after="three")


@pytest.mark.parametrize(
    ("before", "after", "silence", "guards", "waits"),
    [
        pytest.param(OLD, OLD, 1.0, {}, 0, id="a known process"),
        pytest.param(NEW, RESTARTED, 1.0, ONE, D, id="a single server that restarts"),
        pytest.param(OLD, LIAR, 1.0, {}, REST, id="its last reply bounds a lying uptime"),
        pytest.param(UNKNOWN, UNKNOWN, 20.0, {}, D, id="no run_id, each time"),
        pytest.param(OLD, replace(PROMOTED, lag=0.0), 1.0, {}, D, id="the mark is gone"),
        pytest.param(DURABLE, SURVIVOR, 1.0, {}, 0, id="durable after durable"),
        pytest.param(OLD, SURVIVOR, 1.0, {}, REST, id="the process before forgot"),
        pytest.param(DURABLE, NEW, 1.0, {}, REST, id="this process forgets"),
        pytest.param(DURABLE, BETWEEN, 1.0, {}, REST, id="one in between"),
        pytest.param(DURABLE, EMPTY, 1.0, {}, REST, id="an empty disk"),
        pytest.param(DURABLE, KEEPS, 1.0, {}, REST, id="no mark allowed"),
        pytest.param(DURABLE, SURVIVOR, D + 0.1, {}, REST, id="time enough for one in between"),
        pytest.param(replace(OLD, durable=True), KEEPS, 1.0, DISKS, 0, id="disks are kept"),
        pytest.param(replace(OLD, durable=True), NEW, 1.0, DISKS, REST, id="it has no disk"),
        # The earlier one may have lost what it granted last, on whatever disk.
        pytest.param(OLD, KEEPS, 1.0, DISKS, REST, id="the one before had no disk"),
        pytest.param(REPLICA, KEEPS, 1.0, DISKS, REST, id="the one before was a replica"),
        pytest.param(
            *(replace(REPLICA, durable=True), KEEPS, 1.0, DISKS, REST), id="a durable replica"
        ),
        pytest.param(REPLICA, OLD, 1.0, {}, REST, id="a replica that is promoted"),
    ],
)
def test_a_node_that_is_met_again(
    before: Facts, after: Facts, silence: float, guards: dict[str, bool], waits: float
) -> None:
    known = Trust(10.0)
    met(known, before, FIRST, **guards)
    known.last_reply = FIRST + silence - 1.0 if after is LIAR else known.last_reply
    assert met(known, after, FIRST + silence, **guards) == pytest.approx(waits)


def test_each_reply_bounds_the_age_of_a_process_that_comes_after(known: Trust) -> None:
    met(known, OLD, FIRST)
    known.sample(1e9, 5003.9, 5004.0)
    assert met(known, LIAR, 5005.0) == pytest.approx(D - 1.0)


def test_a_durable_server_that_kept_its_disk_has_kept_all_its_keys(known: Trust) -> None:
    met(known, KEEPS, FIRST, disks_kept=True)
    assert known.remembers_from < 0


def test_a_short_quarantine_ends_no_long_one(known: Trust) -> None:
    assert known.quarantine(100.0, 50.0, "long") == 50.0
    assert known.quarantine(110.0, 5.0, "short") == 40.0
    assert known.quarantine(110.0, 40.0, "as long") == 40.0
    assert known.quarantine(200.0, 0.0, "none") == 0.0
    assert known.why(0.0) == "long"


def test_a_node_that_was_flushed_has_no_vote_and_remembers_nothing(known: Trust) -> None:
    met(known, OLD, FIRST)
    assert known.forgot(6000.0, "its keys were flushed") == pytest.approx(D)
    assert known.votes_from == pytest.approx(6000.0 + D)
    assert known.remembers_from == 6000.0


def test_a_promoted_primary_renews_once_nobody_is_granted_anything_by_the_one_before() -> None:
    known = Trust(10.0)
    met(known, OLD, FIRST)
    assert known.renews_from <= FIRST
    met(known, replace(PROMOTED, run_id="two", marked=0.5), 5001.0)
    assert known.renews_from == pytest.approx(5001.0 + validity.quarantine(2.0) - 0.5)


def test_after_a_change_of_the_record_no_earlier_reply_counts(known: Trust) -> None:
    """Neither a grant nor a renewal."""
    met(known, OLD, FIRST)
    for at in (5001.0, 5000.5):
        known.doubt(at)
        assert known.votes_from == known.renews_from == 5001.0
        assert (known.counts(5001.0), known.counts(5000.9)) == (True, False)


def test_a_node_that_refused_to_write_as_a_replica_waits(known: Trust) -> None:
    known.demoted()
    assert known.facts is None
    assert met(known, OLD, FIRST) == 0, "it may be one that was never met"
    known.demoted()
    assert met(known, OLD, 5001.0) == pytest.approx(D - 1.0)
    assert known.why(0.0) == "was a replica at the last connection and may lack locks"


def test_since_when_a_node_remembers(known: Trust) -> None:
    """Since it has certainly run, or later where another primary was used in between."""
    met(known, OLD, FIRST)
    assert known.remembers_from == pytest.approx(4002.0)
    met(known, OLD, 5100.0)
    assert known.remembers_from == pytest.approx(4002.0), "it has kept all since then"
    assert known.remembers(known.remembers_from)
    assert not known.remembers(4001.9)
    met(known, replace(PROMOTED, run_id="two", marked=5.0), 5200.0)
    assert known.remembers_from == pytest.approx(5197.0)


def test_a_machine_that_has_just_started_tells_nothing_of_the_age_of_a_server() -> None:
    """Our boot-time clock shows 2 s: that is not the silence of a server that was never met."""
    known, young = Trust(10.0), replace(NEW, uptime=9.0)
    assert met(known, young, 2.0) == pytest.approx(D - 7.0)
    assert known.remembers_from == pytest.approx(2.0 - 7.0)
    assert known.why(2.0) == "started 9 s ago and may have forgotten locks"


def test_a_change_of_the_record_is_not_forgotten_at_the_next_meeting(known: Trust) -> None:
    """Renewals that were sent before the change do not count, whatever a new primary allows."""
    met(known, OLD, 5000.0)
    known.doubt(5100.0)
    met(known, replace(PROMOTED, run_id="two", marked=50.0), 5100.0)
    assert known.renews_from == 5100.0


def test_a_node_that_has_had_its_vote_for_long_has_lost_none_of_its_replies(known: Trust) -> None:
    assert met(known, OLD, 5000.0) == 0.0
    assert (known.votes_from, known.renews_from, known.why(5000.0)) == (0.0, 0.0, "")


def test_the_longer_of_two_times_without_a_vote_is_what_a_meeting_returns(known: Trust) -> None:
    met(known, OLD, 5000.0)
    known.quarantine(5000.0, 50.0, "it was set aside")
    known.last_reply = 5001.0
    assert met(known, NEW, 5001.0) == pytest.approx(49.0)
    assert known.why(5001.0) == "it was set aside"


def test_the_lag_of_a_group_makes_the_memory_of_a_new_primary_shorter(known: Trust) -> None:
    """Another client may have used the one before meanwhile."""
    met(known, replace(OLD, lag=2.0), 5000.0)
    assert known.remembers_from == pytest.approx(5000.0 - 998.0 + 2.0)


def test_a_heir_with_every_grant_keeps_its_vote_once_nobody_uses_the_one_before() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    heir = replace(PROMOTED, run_id="two", marked=3.0, complete=True)
    assert met(known, heir, 5100.0) == 0.0


def test_a_witness_that_changed_tells_of_a_flush_unless_the_process_did_as_well() -> None:
    known = Trust(10.0)
    met(known, OLD, FIRST)
    assert [known.saw(b"one", at, "its keys were flushed") for at in (FIRST, 5001.0)] == [0, 0]
    assert known.saw(b"two", 5002.0, "its keys were flushed") == pytest.approx(D)
    known.votes_from = 0.0
    met(known, NEW, 5003.0)
    assert known.saw(b"three", 5003.0, "its keys were flushed") == 0
    assert "started" in known.why(5003.0)


# ---- what people are told ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("facts", "now", "cause"),
    [
        (NEW, 5002.0, "started 5 s ago and may have forgotten locks"),
        (replace(OLD, marked=1.0), 5002.0, "became the primary 3 s ago and may lack locks"),
        (replace(NEW, marked=60.0), 5002.0, "started 5 s ago and may have forgotten locks"),
        (RESTARTED, FIRST, "started less than a second ago and may have forgotten locks"),
        *(
            (unknown, FIRST, "does not say when it started and may have forgotten locks")
            for unknown in (UNKNOWN, Facts(run_id="one"), Facts(uptime=0.0))
        ),
    ],
)
def test_people_are_told_why_a_node_has_no_vote(facts: Facts, now: float, cause: str) -> None:
    known = Trust(10.0)
    assert met(known, facts, FIRST) > 0
    assert known.why(now) == cause
    # the cause of a longer quarantine takes the place of the one before
    known.forgot(now + 1.0, "lost its keys {ago}")
    assert known.why(now + 3.0) == "lost its keys 2 s ago"


@pytest.mark.parametrize(
    ("now", "told"),
    [(5001.0, "it was flushed 1 s ago"), (5000.9, "it was flushed less than a second ago")],
)
def test_a_whole_second_is_told(known: Trust, now: float, told: str) -> None:
    known.quarantine(FIRST, 9.0, "it was flushed {ago}")
    assert known.why(now) == told


def test_only_a_primary_may_vote() -> None:
    roles = {None: False, "master": False, "slave": True, "sentinel": True}
    for role, replica in roles.items():
        assert (Facts(role=role) if role else Facts()).replica is replica


def test_evicting_policies() -> None:
    policies = {None: False, "noeviction": False, "allkeys-lru": True, "volatile-ttl": True}
    for policy, evicts in policies.items():
        assert (Facts(maxmemory_policy=policy) if policy else Facts()).evicts is evicts


# ---- clocks --------------------------------------------------------------------------------------
@pytest.mark.parametrize("by", [-120.0, -0.5, -0.01, 0.01, 0.5, 120.0])
@pytest.mark.parametrize("ran", [0.0, 1e6])
def test_a_jump_is_seen(known: Trust, by: float, ran: float) -> None:
    """Small ones as well, and however long our clock has run.

    A process that waits for the clock of a virtual machine loses as much of each lease.
    """
    assert known.sample(1e6 + ran, ran, ran + 0.001) == 0
    seen = known.sample(1e6 + ran + 1.0 + by, ran + 1.0, ran + 1.001)
    assert seen == pytest.approx(by, abs=0.005)
    assert known.jumped(ran + 1.001, seen) == pytest.approx(D)
    assert known.sample(1e6 + ran + 2.0 + by, ran + 2.0, ran + 2.001) == 0, "it is told once"
    assert known.why(ran + 1.001) == f"its clock jumped by {seen:+.3f} s"


def test_the_jump_after_a_jump_is_seen_however_long_ago_the_clocks_were_first_compared() -> None:
    """The drift that is allowed counts from the last reading."""
    known = Trust(10.0)
    known.sample(1e9, 100.0, 100.001)
    later = 100.0 + 1e5
    assert known.sample(1e9 + 1e5 + 500, later, later + 0.001) > 400
    seen = known.sample(1e9 + 1e5 + 501.05, later + 1, later + 1.001)
    assert seen == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ("readings", "seen"),
    [
        # A reply that took a second tells little; it does not undo what quick ones have told.
        pytest.param([(1001.5, 1.0, 2.0), (1003.3, 3.0, 3.001)], [0.0, 0.3], id="a slow reply"),
        pytest.param([(1006.0, 1.0, 1.001), (1000.5, 0.5, 1.002)], [5.0, 0.0], id="an old reading"),
        pytest.param(
            [(1000 + 0.0107 * n + 0.0008, 0.01 * n, 0.01 * n) for n in range(1, 6)],
            [0.0] * 5,
            id="a clock that wanders by less at a time",
        ),
    ],
)
def test_what_readings_tell(readings: list[tuple[float, float, float]], seen: list[float]) -> None:
    known = Trust(10.0)
    known.sample(1000.0, 0.0, 0.0 if len(readings) > 2 else 0.001)
    for reading, jump in zip(readings, seen, strict=True):
        assert known.sample(*reading) == (pytest.approx(jump, abs=0.01) if jump else 0)


@pytest.mark.parametrize(
    ("before", "after", "jump"),
    [
        pytest.param(OLD, NEW, 0.5, id="a plain server that restarts"),
        pytest.param(replace(OLD, marked=50.0), replace(OLD, marked=51.0), 0.5, id="reconnected"),
        pytest.param(
            *(replace(OLD, marked=100.0), replace(PROMOTED, run_id="two", marked=0.5), 0.0),
            id="a new primary has another clock",
        ),
    ],
)
def test_a_jump_between_two_connections(before: Facts, after: Facts, jump: float) -> None:
    known = Trust(10.0)
    met(known, before, FIRST)
    known.sample(1000.0, 5000.0, 5000.001)
    met(known, after, 5001.0)
    seen = known.sample(1001.5, 5001.0, 5001.001)
    assert seen == (pytest.approx(jump, abs=0.01) if jump else 0)


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
    """Of an even number the lower of the middle two."""
    found = validity.low_median(offsets)
    assert found == sorted(offsets)[(len(offsets) - 1) // 2]


def test_the_offset_of_a_clock_is_the_middle_of_what_is_possible(known: Trust) -> None:
    assert known.offset is None
    known.sample(6000.0, 5000.0, 5000.2)
    assert known.offset == pytest.approx(999.9)
