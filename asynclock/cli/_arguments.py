"""Reads options without typer, whose import takes longer than most commands need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """Return the seconds of a duration: `30`, `0.5`, `250ms`, `5m`, `1h30m`. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        parts = re.findall(r"([0-9.]+)(ms|[smhd])", text)
        if not parts or "".join(map("".join, parts)) != text:
            raise ValueError(
                f"{text!r} is no duration: write seconds, or a unit behind each number (ms, s, m, "
                "h, d), such as 250ms, 5m or 1h30m"
            ) from None
        return sum(float(number) * _UNITS[unit] for number, unit in parts)


COMMON: Mapping[str, Any] = {
    "--node": str,
    "--config": Path,
    "--prefix": str,
    "--node-timeout": seconds,
}
"""The options of _options.py, with the functions that read their values."""


def read_options(
    words: Sequence[str], values: Mapping[str, Any], flags: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]] | None:
    """Return the options by the names of their fields, and the words that are no options.

    Return None if typer must show help or explain a mistake.

    Args:
        words: the words after the command.
        values: for each option with a value, the function that reads it, or the allowed values.
        flags: the field of each option without a value.
    """
    found: dict[str, Any] = {}
    others: list[str] = []
    waiting = iter(words)
    for word in waiting:
        option, equals, value = word.partition("=")
        if word == "--":
            others += waiting
        elif not word.startswith("-") or word == "-":
            others.append(word)
        elif word in flags:
            found[flags[word]] = True
        elif not _read(found, option, values.get(option), value if equals else next(waiting, None)):
            return None
    return found, others


def _read(found: dict[str, Any], option: str, kind: Any, value: str | None) -> bool:
    if kind is None or value is None or (isinstance(kind, tuple) and value not in kind):
        return False
    try:
        read = value if isinstance(kind, tuple) else kind(value)
    except ValueError:
        return False
    if option == "--node":
        found.setdefault("node", []).append(read)
    else:
        found[option.removeprefix("--").replace("-", "_")] = read
    return True
