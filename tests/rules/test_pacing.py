"""How long pauses are, whatever the servers said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules import pacing, validity
from asynclock._rules.pacing import until_expiry, without_push


def test_free_in() -> None:
    assert [pacing.free_in([3.0, 1.0, 2.0], needed) for needed in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert pacing.free_in([3.0, 1.0], 2) == 3.0
    assert pacing.free_in([3.0, None], 2) is None
    assert pacing.free_in([], 1) is None


def test_figures_of_a_lease() -> None:
    """Each is stated in the docs, or a promise rests on it: 1 % and 2 ms on either side."""
    assert validity.valid_until(100.0, 10.0) == pytest.approx(109.898)
    assert validity.renew_at(100.0, 9.0) == pytest.approx(103.0)
    assert validity.retry_at(100.0, 10.0) == pytest.approx(100.5)
    assert validity.retry_at(100.0, 0.1) == pytest.approx(100.02)
    assert validity.quarantine(10.0) == pytest.approx(10.102)


@pytest.mark.parametrize(
    ("pause", "given", "seconds"),
    [
        # waiters for a key without an end look at different times
        (until_expiry, (None, 0.0), 1.5),
        (until_expiry, (None, 0.999), 1.9995),
        # waiters of a lease that expires come back one after the other, once it is surely gone
        (until_expiry, (0.0, 0.0), 0.002),
        (until_expiry, (3.0, 0.0), 3.002),
        (until_expiry, (3.0, 0.5), 3.012),
        (until_expiry, (-1.0, 0.5), 0.012),
        # so do those that no push reaches
        (without_push, (40, 0.05, 0.0), 0.052),
        (without_push, (0, 60.0, 0.5), 0.005),
        (without_push, (40, 0.05, 0.999), 0.056995),
        (without_push, (1_000_000, None, 0.5), 0.25),
        (validity.longest_outage, (10.0,), 13.102),  # what guards wait, and three seconds
    ],
)
def test_figures_of_the_pauses(pause: Any, given: Any, seconds: float) -> None:
    assert pause(*given) == pytest.approx(seconds)


def test_without_pushes_a_waiter_asks_ever_more_rarely() -> None:
    pauses = [without_push(n, None, 0.5) for n in range(12)]
    assert pauses == sorted(pauses)
    assert without_push(0, None, 0.0) <= 0.0025
    assert without_push(3, None, 0.5, rank=3) == pytest.approx(4 * 0.02048)
    assert 0.37 < max(without_push(n, None, 0.999) for n in range(50)) <= 0.375
    assert 0 < without_push(40, -1.0, 0.0) < 0.01


@given(st.floats(0, 1e6), st.floats(0.05, 1e4))
def test_a_lease_that_is_to_last_until_a_moment_does(sent: float, left: float) -> None:
    until = validity.valid_until(sent, validity.ttl_until(sent, sent + left))
    assert sent + left <= until <= sent + left + 0.01
