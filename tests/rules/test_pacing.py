"""Pauses stay within their bounds, whatever the servers said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asynclock._rules import pacing, validity

random = st.floats(0, 1, exclude_max=True)
remaining = st.none() | st.floats(-1, 100)


def test_free_in() -> None:
    assert pacing.free_in([3.0, 1.0, 2.0], 2) == 2.0
    assert pacing.free_in([3.0, None], 2) is None
    assert pacing.free_in([], 1) is None


@given(remaining, random)
def test_with_pushes_a_wait_ends_soon_after_expiry(left: float | None, drawn: float) -> None:
    pause = pacing.until_expiry(left, drawn)
    if left is None:
        assert 0 < pause <= pacing.BLIND
    else:
        assert max(left, 0) < pause <= max(left, 0) + pacing.GRACE + pacing.EXPIRY_SPREAD


@given(st.integers(0, 1000), remaining, random)
def test_without_pushes(attempt: int, left: float | None, drawn: float) -> None:
    pause = pacing.without_push(attempt, left, drawn)
    assert 0 < pause <= 1.5 * pacing.LONGEST


@given(st.lists(st.booleans(), max_size=200))
def test_spread(splits: list[bool]) -> None:
    spread = pacing.Spread()
    for split in splits:
        spread.split() if split else spread.won()
        assert spread.NARROW <= spread.width <= spread.WIDE


@given(st.floats(0, 1e7), st.floats(0.05, 1e5))
def test_validity(sent: float, ttl: float) -> None:
    assert validity.valid_until(sent, ttl) < sent + ttl * 0.991
    assert sent < validity.renew_at(sent, ttl) < sent + ttl
    assert validity.retry_at(sent, ttl) > sent
    assert validity.quarantine(ttl) > ttl


@given(st.floats(0, 100), st.floats(0, 100))
def test_whoever_had_it_longest_ago_asks_first(one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    assert pacing.COURTESY >= pacing.courtesy(shorter) >= pacing.courtesy(longer) > 0
    assert longer - shorter < 0.001 or pacing.courtesy(longer) < pacing.courtesy(shorter)
