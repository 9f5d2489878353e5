"""Who may vote, from facts alone."""

from __future__ import annotations

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


def test_who_tells_no_run_id_is_taken_for_restarted() -> None:
    known = Trust(10.0)
    assert met(known, Facts(), 5000.0) == pytest.approx(D)
    assert "does not tell" in known.cause


def test_durable_servers_need_not_wait() -> None:
    assert met(Trust(10.0), Facts(run_id="x", uptime=0.0, durable=True), 5000.0) == 0


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
