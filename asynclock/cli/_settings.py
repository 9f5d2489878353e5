"""Settings: from options, the environment and a TOML file.

Nodes come from the first of these that names any: `--node`, `--config`, `ASYNCLOCK_NODES`,
`ASYNCLOCK_CONFIG`. Other settings come from the options or else from the file.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._nodes.endpoint import as_options
from ..errors import ConfigurationError
from ..manager import LockManager, connect

NODES, CONFIG = "ASYNCLOCK_NODES", "ASYNCLOCK_CONFIG"
NODE_TIMEOUT = 1.0
"""Seconds for each reply: people can wait longer than locks, and pages of keys are slow."""
_NUMBER = (int, float)
_KEYS: Mapping[str, tuple[type, ...]] = {
    "nodes": (list,),
    "prefix": (str,),
    "ttl": _NUMBER,
    "max_ttl": _NUMBER,
    "node_timeout": _NUMBER,
    "turn": _NUMBER,
    "ticket_ttl": _NUMBER,
    "fence_retention": _NUMBER,
    "acks": (int, str),
    "durable": (bool,),
    "label": (str,),
    "restart_guard": (bool, str),
    "clock_guard": (bool,),
    "set_guard": (bool,),
    "strict": (bool,),
}
_KINDS = {
    list: "a list of URLs",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


@dataclass(frozen=True)
class Settings:
    """The arguments for `connect`."""

    nodes: tuple[str, ...] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """The prefix of each key."""
        return str(self.options.get("prefix", "asynclock:"))

    @property
    def max_ttl(self) -> float:
        """The longest ttl of all users of the nodes, in seconds."""
        longest: float = self.options.get("max_ttl", max(10.0, self.options.get("ttl", 10.0)))
        return longest

    def relaxed(self) -> Settings:
        """Return them for a command that holds no lease: it needs no ttl, and waits for nodes."""
        longest = self.max_ttl
        patient = {"node_timeout": min(NODE_TIMEOUT, longest / 4) if longest > 0 else NODE_TIMEOUT}
        options = {**patient, **self.options, "max_ttl": longest, "ttl": longest}
        return replace(self, options=options)

    def look(self, tool: str) -> LockManager:
        """Make a manager for a tool that holds no lock; its label tells that to `nodes finish`."""
        label = f"{socket.gethostname()}:{os.getpid()}:{tool}"
        return self.relaxed().connect(label=label)

    def connect(self, **more: Any) -> LockManager:
        """Make a manager; a None in `more` leaves the setting alone. Raises ConfigurationError."""
        given = {key: value for key, value in more.items() if value is not None}
        return connect(*self.nodes, **{**self.options, **given})


def load(
    node: Sequence[str] | None,
    config: Path | None,
    prefix: str | None = None,
    node_timeout: float | None = None,
    max_ttl: float | None = None,
    restart_guard: bool | str | None = None,
    acks: int | str | None = None,
) -> Settings:
    """Combine options, environment and file to settings. Raises ConfigurationError.

    The options are those that several commands have, None for those that were not given.
    """
    file = config or os.environ.get(CONFIG)
    options = read(Path(file)) if file else {}
    in_file = tuple(options.pop("nodes", ()))
    in_environment = split(os.environ.get(NODES, ""))
    named = (
        tuple(url for one in node or () for url in split(one))
        or (in_file if config else ())
        or in_environment
        or in_file
    )
    if not named:
        raise ConfigurationError(
            f"no nodes: give --node redis://host (repeat it), set ${NODES}, or name a TOML file "
            f"with --config or ${CONFIG}"
        )
    given = {"prefix": prefix, "node_timeout": node_timeout, "max_ttl": max_ttl}
    given |= {"restart_guard": restart_guard, "acks": acks}
    options |= {key: value for key, value in given.items() if value is not None}
    return Settings(named, options)


def split(text: str) -> tuple[str, ...]:
    """Split URLs at commas, except at a comma inside a URL, which no scheme follows."""
    parts = re.split(r"\s*,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)", text.strip().strip(","))
    return tuple(part.strip() for part in parts if part.strip())


def repeated(
    node: Sequence[str] | None, config: Path | None, prefix: str | None, max_ttl: float | None
) -> str:
    """Return the options that were given, as another command needs them; without passwords."""
    urls = [url for one in node or () for url in split(one)]
    return as_options(urls, {"--config": config, "--prefix": prefix, "--max-ttl": max_ttl})


def read(file: Path) -> dict[str, Any]:
    """Read a TOML file with the names of `connect`'s parameters. Raises ConfigurationError."""
    import tomllib

    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from None
    # Also the errors of a file that is no TOML or not UTF-8, and of a number with too many digits.
    except ValueError as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{file}: its lists or tables are nested too deeply") from None
    for key, value in found.items():
        kinds = _KEYS.get(key)
        if kinds is None:
            raise ConfigurationError(f"{file}: unknown setting {key!r}; known: {', '.join(_KEYS)}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(map(_KINDS.__getitem__, kinds))
            raise ConfigurationError(f"{file}: {key} must be {wanted}")
    if not all(isinstance(url, str) for url in found.get("nodes", ())):
        raise ConfigurationError(f"{file}: nodes must be a list of URLs")
    return found


# ---- Options are read without typer, whose import takes longer than most commands need -----------


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def duration(text: str) -> float:
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
    "--node-timeout": duration,
}
"""The options that most commands share, with the functions that read their values."""


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
