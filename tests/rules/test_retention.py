"""For how long a fence counter is kept: the figures on which the promise about fences rests."""

import pytest

from asynclock import ConfigurationError
from asynclock._rules.validity import checked_retention, fence_retention, least_retention


def test_a_counter_outlives_its_lease_and_the_lag_of_the_clock_that_replaces_it() -> None:
    assert least_retention(10.0) == pytest.approx(60.0 + 10.102)
    assert least_retention(300.0) == pytest.approx(60.0 + 303.002)


@pytest.mark.parametrize("max_ttl", [10.0, 300.0])
def test_by_default_clocks_may_be_set_back_by_a_thousand_seconds(max_ttl: float) -> None:
    assert fence_retention(max_ttl) - least_retention(max_ttl) == pytest.approx(1000.0)
    assert checked_retention(None, max_ttl) == fence_retention(max_ttl)


def test_any_retention_that_is_long_enough_can_be_chosen() -> None:
    least = least_retention(10.0)
    for given in (least, least + 1, 1e6):
        assert checked_retention(given, 10.0) == given
    for short in (least - 0.001, 60.0, 10.0):
        with pytest.raises(ConfigurationError, match=r"must be at least 70\.102 with max_ttl=10"):
            checked_retention(short, 10.0)


@pytest.mark.parametrize("wrong", [0, -1, "long", True])
def test_what_is_no_retention_is_an_error_that_names_the_setting(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^fence_retention"):
        checked_retention(wrong, 10.0)
