"""Parses the arguments of `asynclock run` without typer, whose import would delay short commands.

    asynclock run [OPTIONS] NAME [OPTIONS] [--] COMMAND…

Our options end where the command begins, as with env, timeout and flock: the first word of the
command and all words after it belong to the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._engine.said import LONGEST_MESSAGE
from ...errors import ConfigurationError
from .._arguments import COMMON, read_options, seconds

VALUES: dict[str, Any] = {
    **COMMON,
    "--ttl": seconds,
    "--timeout": seconds,
    "--max-ttl": seconds,
    "--max-hold": seconds,
    "--at-least": seconds,
    "--permits": int,
    "--message": str,
    "--on-loss": ("kill", "warn"),
    "--wait-for": ("group", "command"),
}
"""For each option with a value: the function that reads it, or the allowed values."""
FLAGS = {"--no-wait": "no_wait", "--shared": "shared", "--exclusive": "exclusive"}
MAX_NAME = 4096
"""Maximum number of characters of a name, which goes into the environment and all messages."""
MAX_SECONDS = 86_400.0
"""Maximum ttl in seconds: a day."""


@dataclass
class RunArguments:
    """The arguments of `asynclock run`; times in seconds."""

    name: str
    command: list[str]
    ttl: float | None = None
    timeout: float | None = None
    max_ttl: float | None = None
    max_hold: float | None = None
    at_least: float | None = None
    permits: int | None = None
    message: str | None = None
    shared: bool = False
    exclusive: bool = False
    node_timeout: float | None = None
    prefix: str | None = None
    node: list[str] | None = None
    config: Path | None = None
    on_loss: str = "kill"
    wait_for: str = "group"
    no_wait: bool = False

    def check(self) -> None:
        """Raise ConfigurationError for contradictory or oversized arguments."""
        if self.no_wait and self.timeout is not None:
            raise ConfigurationError("--no-wait and --timeout exclude each other")
        if self.shared + self.exclusive + (self.permits is not None) > 1:
            raise ConfigurationError("--shared, --exclusive and --permits exclude each other")
        if self.at_least is not None and (self.shared or self.exclusive or self.permits):
            raise ConfigurationError("--at-least is for a lock that one command holds alone")
        if self.message is not None and self.shared:
            raise ConfigurationError("--message and --shared exclude each other")
        if self.message is not None and len(self.message) > LONGEST_MESSAGE:
            raise ConfigurationError(f"--message may have at most {LONGEST_MESSAGE} characters")
        if len(self.name) > MAX_NAME:
            raise ConfigurationError(
                f"a lock's name may have {MAX_NAME} characters, this one has {len(self.name)}"
            )
        for option, given in (("--ttl", self.ttl), ("--max-ttl", self.max_ttl)):
            if given is not None and given > MAX_SECONDS:
                raise ConfigurationError(
                    f"{option} {given:g} is {given / MAX_SECONDS:,.0f} days: if this machine "
                    "died, nobody would get the lock for that long. The lock is renewed while "
                    "the command runs, so 10 to 60 seconds are enough"
                )


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our arguments (the options and the name) and the words of the command."""
    words = number = 0
    while number < len(arguments):
        word = arguments[number]
        if word == "--":
            return _after_the_dashes(arguments, number, words)
        if word.startswith("-") and word != "-":
            number += 1 + (word in VALUES)
            continue
        if words == 1:
            break
        words += 1
        number += 1
    return list(arguments[:number]), list(arguments[number:])


def _after_the_dashes(arguments: Sequence[str], at: int, words: int) -> tuple[list[str], list[str]]:
    ours, rest = list(arguments[:at]), list(arguments[at + 1 :])
    if words == 0 and rest:
        name, *rest = rest
        if rest[:1] == ["--"]:
            del rest[0]
        return [*ours, "--", name], rest
    return ours, rest


def parse(arguments: Sequence[str]) -> RunArguments | None:
    """Return the arguments, or None if typer must show help or explain a mistake."""
    ours, command = split(arguments)
    found = read_options(ours, VALUES, FLAGS)
    if found is None or len(found[1]) != 1 or not command:
        return None
    options, (name,) = found
    return RunArguments(name, command, **options)
