"""Every jump of a quorum counts, and once, in whichever order the nodes tell of it."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules.quorum import majority
from asynclock._rules.validity import SAME_MOMENT, StandStill


def still(size: int) -> StandStill:
    return StandStill(size, majority(size))


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_each_standstill_counts_once(size: int) -> None:
    clock = still(size)
    now = 100.0
    for _ in range(5):
        now += 0.3
        told = [clock.jumped(node, 0.4, now) for node in range(size)]
        assert sum(told) == pytest.approx(0.4)
        assert sum(one > 0 for one in told) == 1


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_however_the_nodes_put_it_together(times: int, random: object) -> None:
    """One tells of each, another of all at once, in any order: the whole is the same."""
    shuffle = random.shuffle  # type: ignore[attr-defined]
    jumps = [(0, 0.4)] * times + [(1, 0.4 * times)] + [(2, 0.4)] * times
    shuffle(jumps)
    clock = still(3)
    sooner = sum(clock.jumped(node, by, 100.0) for node, by in jumps)
    assert sooner == pytest.approx(0.4 * times)


def test_one_clock_of_three_is_theirs() -> None:
    for order in permutations(range(3)):
        clock = still(3)
        assert clock.jumped(order[0], 5.0, 100.0) == 0
        assert set(clock.silent(order[0])) == set(order[1:])


def test_what_two_of_three_have_jumped_by_ends_a_lease_sooner() -> None:
    clock = still(3)
    assert clock.jumped(0, 120.0, 100.0) == 0
    assert clock.jumped(2, 5.0, 100.1) == pytest.approx(5.0)


def test_jumps_long_after_each_other_are_not_added_up() -> None:
    clock = still(3)
    assert clock.jumped(0, 5.0, 100.0) == 0
    assert clock.jumped(1, 5.0, 100.0 + SAME_MOMENT) == 0


def test_a_clock_that_was_set_back_ends_nothing() -> None:
    clock = still(1)
    assert clock.jumped(0, -5.0, 100.0) == 0
    assert clock.jumped(0, 5.0, 100.1) == pytest.approx(5.0)


def test_a_node_that_tells_of_a_counted_jump_a_little_later_adds_nothing() -> None:
    clock = still(3)
    assert clock.jumped(0, 0.4, 100.0) == 0
    assert clock.jumped(1, 0.4, 100.0) == pytest.approx(0.4)
    assert clock.jumped(2, 0.4, 100.3) == 0
    assert clock.jumped(0, 0.4, 100.6) == 0, "one node alone: its own clock"
