"""From when a node votes, renews and remembers: what is rare at a meeting or between two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asynclock._rules.trust import Facts, Trust
from tests.rules.test_trust import NEW, OLD, D, met


def test_a_machine_that_has_just_started_tells_nothing_of_the_age_of_a_server() -> None:
    """Our boot-time clock shows 2 s: that is not the silence of a server that was never met."""
    known, young = Trust(10.0), replace(NEW, uptime=9.0)
    assert met(known, young, 2.0) == pytest.approx(D - 7.0)
    assert known.remembers_from == pytest.approx(2.0 - 7.0)
    assert known.why(2.0) == "started 9 s ago and may have forgotten locks"


def test_a_change_of_the_record_is_not_forgotten_at_the_next_meeting() -> None:
    """Renewals that were sent before the change do not count, whatever a new primary allows."""
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    known.doubt(5100.0)
    met(known, replace(OLD, run_id="two", marked=50.0, promoted=True, lag=2.0), 5100.0)
    assert known.renews_from == 5100.0


def test_a_node_that_has_had_its_vote_for_long_has_lost_none_of_its_replies() -> None:
    known = Trust(10.0)
    assert met(known, OLD, 5000.0) == 0.0
    assert (known.votes_from, known.renews_from, known.why(5000.0)) == (0.0, 0.0, "")


@pytest.mark.parametrize("facts", [Facts(run_id="one"), Facts(uptime=0.0)])
def test_a_server_that_says_only_half_of_it_does_not_say_when_it_started(facts: Facts) -> None:
    known = Trust(10.0)
    assert met(known, facts, 5000.0) == pytest.approx(D)
    assert known.why(5000.0) == "does not say when it started and may have forgotten locks"


def test_the_jump_after_a_jump_is_seen_however_long_ago_the_clocks_were_first_compared() -> None:
    """The drift that is allowed counts from the last reading."""
    known = Trust(10.0)
    known.sample(1e9, 100.0, 100.001)
    later = 100.0 + 1e5
    assert known.sample(1e9 + 1e5 + 500, later, later + 0.001) > 400
    seen = known.sample(1e9 + 1e5 + 501.05, later + 1, later + 1.001)
    assert seen == pytest.approx(0.05, abs=0.01)


def test_the_longer_of_two_times_without_a_vote_is_what_a_meeting_returns() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    known.quarantine(5000.0, 50.0, "it was set aside")
    known.last_reply = 5001.0
    assert met(known, NEW, 5001.0) == pytest.approx(49.0)
    assert known.why(5001.0) == "it was set aside"


def test_the_lag_of_a_group_makes_the_memory_of_a_new_primary_shorter() -> None:
    """Another client may have used the one before meanwhile."""
    known = Trust(10.0)
    met(known, replace(OLD, lag=2.0), 5000.0)
    assert known.remembers_from == pytest.approx(5000.0 - 998.0 + 2.0)


def test_a_heir_with_every_grant_keeps_its_vote_once_nobody_uses_the_one_before() -> None:
    known = Trust(10.0)
    met(known, OLD, 5000.0)
    heir = replace(OLD, run_id="two", marked=3.0, promoted=True, lag=2.0, complete=True)
    assert met(known, heir, 5100.0) == 0.0
