"""Borders parse: every setting is checked at the call that takes it, relations included."""

from __future__ import annotations

import math

from .errors import ConfigurationError

HASH_TAG = "{"
"""What a prefix ends with on a Cluster, where the keys of a name must share a slot."""
COUNTER = ":fence"
"""What a lock's name must not end with: it is how the counter of another lock is called."""
PART = ":#"
"""What no name may contain: after it comes the part of a primitive that has several keys."""


def seconds(value: object, what: str, *, zero: bool = False) -> float:
    """`value` as a finite number of seconds above zero (or from zero on)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be a number of seconds, not {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        raise ConfigurationError(f"{what} must be finite and {least}, not {value!r}")
    return float(value)


def optional_seconds(value: object, what: str, *, zero: bool = False) -> float | None:
    """The same, or None."""
    return None if value is None else seconds(value, what, zero=zero)


def name(value: object, what: str = "a lock's name") -> str:
    """`value` as the name of a lock: text that can be written and collides with no counter."""
    if type(value) is not str:
        if not isinstance(value, str):
            raise ConfigurationError(f"{what} must be a str, not {type(value).__name__}")
        value = str.__str__(value)  # a member of an enum may print as something else
    if not value:
        raise ConfigurationError(f"{what} must not be empty")
    if value.endswith(COUNTER):
        raise ConfigurationError(f"{what} must not end with {COUNTER!r}: {value!r}")
    if PART in value:
        raise ConfigurationError(f"{what} must not contain {PART!r}: {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"{what} can't be written as UTF-8: {error}") from None
    return value


def count(value: object, what: str, most: int) -> int:
    """`value` as a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {most}, not {value!r}")
    return value


def ttl(value: object, *, node_timeout: float, max_ttl: float) -> float:
    """`value` as a ttl that leaves time to ask the nodes and stays within the fleet's longest."""
    checked = seconds(value, "ttl")
    if checked <= node_timeout:
        raise ConfigurationError(
            f"ttl={checked:g} must be longer than node_timeout={node_timeout:g}: "
            "a lease would end before the nodes have answered"
        )
    if checked > max_ttl:
        raise ConfigurationError(
            f"ttl={checked:g} is longer than max_ttl={max_ttl:g}: guards wait for max_ttl, "
            "so pass connect(..., max_ttl=...) with the longest ttl of your whole fleet"
        )
    return checked
