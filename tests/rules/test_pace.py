"""When a name is likely to be free, from what one process has seen of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules.pacing import MOST_REMEMBERED, SHORTEST, UNKNOWN, Pace, Paces, age

left = st.none() | st.floats(-1, 100)
random = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 50), random, st.integers(1, 9), left, st.floats(0, 100), st.booleans())
def test_a_pause_is_drawn_below_the_estimate_and_the_ttl(
    ahead: int, drawn: float, permits: int, remaining: float | None, held: float, many: bool
) -> None:
    pace = Pace()
    pace.held(held)
    pace.seen_many(5.0) if many else pace.seen("x", 4.0, 5.0)
    known = {"permits": permits, "remaining": remaining}
    whole = pace.pause(ahead, 0.0, **known)
    assert whole / 2 <= pace.pause(ahead, drawn, **known) <= whole
    if remaining is not None:
        assert whole <= max(0.0, remaining)


def test_waiters_that_ask_at_once_draw_pauses_down_to_half_of_the_estimate() -> None:
    assert Pace().pause(0, 0.5) == 0.75 * UNKNOWN
    assert Pace().pause(0, 0.0) > Pace().pause(0, 0.1) > Pace().pause(0, 0.9) > 0.5 * UNKNOWN


def test_nothing_is_known_of_a_new_name() -> None:
    assert Pace().pause(0, 0.0) == UNKNOWN
    assert Pace().pause(3, 0.0, permits=2) == 2 * UNKNOWN


def test_holds_of_this_process_have_a_mean_that_fades() -> None:
    pace = Pace()
    for seconds, mean in ((4.0, 4.0), (8.0, 5.0), (1.0, 4.0)):
        pace.held(seconds)
        assert pace.pause(0, 0.0) == mean
    assert pace.pause(2, 0.0) == 12.0
    assert pace.pause(2, 0.0, permits=3) == 4.0


def test_a_hold_is_expected_to_go_on_for_as_long_as_it_has_lasted() -> None:
    pace = Pace()
    for looked, pause in ((10.0, SHORTEST), (10.5, 0.5), (13.0, 3.0)):
        pace.seen("x", 10.0, looked)
        assert pace.pause(0, 0.0) == pause
    pace.seen("x", 12.0, 14.0)  # a renewal makes it look younger
    assert pace.pause(1, 0.0) == 8.0


def test_another_holder_began_after_the_last_look_and_ends_what_was_thought_of_longer_holds() -> (
    None
):
    pace = Pace()
    pace.held(60.0)
    pace.seen("x", 10.0, 10.1)
    assert pace.pause(0, 0.0) == 60.0
    pace.seen("y", 3.0, 10.3)  # its ttl lets it look older
    assert pace.pause(0, 0.0) == pytest.approx(0.3)


def test_where_several_may_hold_it_counts_how_long_looks_were_in_vain() -> None:
    pace = Pace()
    for looked, pause in (
        (10.0, SHORTEST),
        (10.5, 0.5),
        (13.0, SHORTEST),  # it may have been free in between
        (14.0, 1.0),
        (16.0, 3.0),
        (22.1, SHORTEST),
        (23.0, pytest.approx(0.9)),
    ):
        pace.seen_many(looked)
        assert pace.pause(5, 0.0, permits=2) == pause
    pace.held(0.25)
    assert pace.pause(1, 0.0, permits=2) == 0.25
    pace.seen_many(23.1)
    assert pace.pause(3, 0.0, permits=2) == 0.5, "we had our turn, so it was free"


@given(st.lists(random, min_size=40, max_size=40), st.booleans())
def test_a_caller_that_comes_back_when_it_is_told_backs_off(drawn: list[float], many: bool) -> None:
    """Whatever is drawn: each look takes a moment as well."""
    pace, now, looks = Pace(), 100.0, 0
    while now < 108.0:
        pace.seen_many(now) if many else pace.seen("x", 100.0, now)
        now += pace.pause(0, drawn[looks]) + 0.005
        looks += 1
    assert looks < 25


def test_a_waiter_learns_from_the_ranks_that_it_gains() -> None:
    pace = Pace()
    for rank, now in ((4, 10.0), (4, 10.5), (2, 11.0), (3, 11.1), (2, 11.3)):
        pace.ranked("t", rank, now)
    assert pace.pause(0, 0.0) == pytest.approx(0.5 + (0.2 - 0.5) / 4)
    pace.ranked("another", 0, 12.0)
    assert pace.pause(0, 0.0) == pytest.approx(0.425)
    assert pace.rank == 0
    for ticket, rank, now in (("one", 2, 20.0), ("other", 2, 21.0), ("other", 1, 30.0)):
        pace.ranked(ticket, rank, now)
    assert pace.pause(0, 0.0) > 2.0, "a ticket of the same rank is another one"


@pytest.mark.parametrize(
    ("left", "known"),
    [(10.0, 0.0), (9.0, 1.0), (5.5, 4.5), (5.0, 0.0), (0.1, 0.0), (30.0, 0.0), (None, 0.0)],
)
def test_the_rest_of_our_own_ttl_tells_an_age(left: float | None, known: float) -> None:
    assert age(left, 10.0) == known


def test_the_number_of_names_is_bounded_and_the_one_in_use_stays() -> None:
    paces = Paces()
    for name in ("used", *range(MOST_REMEMBERED - 1), "used", "new"):
        paces.of(name)
    assert len(paces) == MOST_REMEMBERED
    assert {"used", "new", 1} <= paces.keys()
    assert 0 not in paces
    paces.held("never refused", 1.0)
    assert "never refused" not in paces
    paces.held("used", 4.0)
    assert paces.of("used").pause(0, 0.0) == 4.0
