"""What each kind of setting may be; tests/nodes/test_bad_input.py has the calls that take them."""

from __future__ import annotations

import enum
import math
from datetime import timedelta
from typing import Any

import pytest

from asynclock import ConfigurationError, _settings


class Shop(str, enum.Enum):  # noqa: UP042 - a StrEnum formats as its value
    """Formats as `Shop.ORDERS`, and is equal to its value."""

    ORDERS = "orders"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -0.001, True, "1", None])
def test_what_is_no_number_of_seconds(value: Any) -> None:
    for zero in (True, False):
        with pytest.raises(ConfigurationError, match="a pause must be"):
            _settings.seconds(value, "a pause", zero=zero)


def test_seconds_are_a_float() -> None:
    assert type(_settings.seconds(3, "a pause")) is float
    assert _settings.seconds(_settings.MOST_SECONDS, "a pause") == _settings.MOST_SECONDS
    with pytest.raises(ConfigurationError, match="at most 1e"):
        _settings.seconds(2e10, "a pause")
    assert _settings.seconds(0, "a pause", zero=True) == 0.0
    with pytest.raises(ConfigurationError, match="above 0"):
        _settings.seconds(0, "a pause")
    with pytest.raises(ConfigurationError, match="write 90"):
        _settings.seconds(timedelta(minutes=1.5), "a pause")
    assert _settings.optional_seconds(None, "a pause") is None
    assert _settings.optional_seconds(2, "a pause") == 2.0


def test_a_name_is_text() -> None:
    name = _settings.name(Shop.ORDERS)
    assert (f"{name}", type(name)) == ("orders", str)
    assert _settings.name("ä\0 {}") == "ä\0 {}"
    for wrong in ("", b"a", 7, None, "a\ud800"):
        with pytest.raises(ConfigurationError, match="a lock's name"):
            _settings.name(wrong)


def test_a_label_is_short_text() -> None:
    for value in (None, "", "orders 7", "x" * 200):
        assert _settings.label(value) == value
    for wrong in ("x" * 201, 7, b"a", "a\0b", "\ud800"):
        with pytest.raises(ConfigurationError, match="label"):
            _settings.label(wrong)


def test_which_guards_there_are() -> None:
    for value, wanted in ((True, True), (False, False), ("disk", "disk")):
        assert _settings.restart_guard(value) == wanted
    for wrong in ("disks", "False", ""):
        with pytest.raises(ConfigurationError, match="restart_guard"):
            _settings.restart_guard(wrong)


def test_which_ways_to_hand_over_there_are() -> None:
    pairs = ((True, True), ("block", True), ("strict", "strict"), (False, False))
    for value, wanted in pairs:
        assert _settings.handoff(value) == wanted
    for wrong in (None, 1, 0, "", "never"):
        with pytest.raises(ConfigurationError, match="handoff"):
            _settings.handoff(wrong)


def test_a_count_is_a_whole_number_within_its_bounds() -> None:
    assert [_settings.count(value, "permits", 3) for value in (1, 2, 3)] == [1, 2, 3]
    for wrong in (0, 4, -1, True, 1.0, "1", None):
        with pytest.raises(ConfigurationError, match="permits must be a whole number from 1 to 3"):
            _settings.count(wrong, "permits", 3)


def test_a_ttl_lies_between_the_node_timeout_and_the_longest_one() -> None:
    for value in (1.001, 10):
        assert _settings.ttl(value, node_timeout=1.0, max_ttl=10.0) == value
    for wrong, cause in ((1.0, "longer than node_timeout=1"), (10.001, "longer than max_ttl=10")):
        with pytest.raises(ConfigurationError, match=cause):
            _settings.ttl(wrong, node_timeout=1.0, max_ttl=10.0)


def test_an_unknown_argument_is_named_with_what_to_write_instead() -> None:
    assert str(_settings.unknown(["expire"])).endswith(
        "'expire': write ttl= (seconds that the lease lives without renewal)"
    )
    assert str(_settings.unknown(["patience"])) == "unexpected keyword argument 'patience'"
