"""What a batch sends to a node, and what the reply says about each name (batch.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from .._nodes.replies import UNREADABLE, Failure, ServerError, failure
from .._nodes.script import BATCH, GRANTED, BatchCommand, Command, Script, Word
from .release import Release
from .said import FENCES
from .spec import LockSpec, ms

SpecAndOwner = tuple[LockSpec, str]
"""What is acquired, and the owner that is to have it."""
INTEGERS: Final = {int}
"""The types of the numbers in a reply to a batch."""
RELEASED: Final = (GRANTED, b"", 0)
"""The reply to a release by its owner, while nobody waits."""


class Message:
    """What all acquires of a batch have in common; it writes the commands."""

    __slots__ = ("_give_up_at", "_limits", "_script", "_ttl", "_waits")

    def __init__(
        self,
        script: Script,
        ttl: float,
        limits: tuple[int, int, int],
        waits: tuple[Word, ...],
        give_up_at: float,
    ) -> None:
        self._script = script
        self._ttl = ttl
        self._limits = limits
        """The fence floor, the time after which no node may acquire, and the fences' retention."""
        self._waits = waits
        # If too few clocks are known for a common `not_after`, each node gets one by its own clock.
        self._give_up_at = 0.0 if limits[1] else give_up_at

    def command(self, releases: list[Release], acquires: list[SpecAndOwner]) -> Command:
        """Build the command for all names; for one name its own, which takes a node less time."""
        if len(releases) + len(acquires) > 1:
            return self._batch_command(releases, acquires)
        return releases[0].command() if releases else self.acquire(acquires[0])

    def acquire(self, one: SpecAndOwner) -> Command:
        """Build the command for this name alone."""
        spec, owner = one
        command = spec.acquire(owner, self._ttl, *self._limits, self._waits)
        command.give_up_at = self._give_up_at
        return command

    def _batch_command(self, releases: list[Release], acquires: list[SpecAndOwner]) -> Command:
        names = [release.spec.all_keys for release in releases]
        names += [spec.all_keys for spec, _ in acquires]
        locks, counters, *others = zip(*names, strict=True)
        keys = [*locks, *chain(*others), *counters[len(releases) :]]
        wait = self._waits[0] if self._waits else 0
        args: list[Word] = [BATCH, len(releases), ms(self._ttl), *self._limits, wait]
        args += [release.owner for release in releases]
        args += [owner for _, owner in acquires]
        command = BatchCommand(self._script, keys, args, partial(self._singles, releases, acquires))
        command.unlimited = bool(releases)
        command.wakes = [key for release in releases for key in release.spec.watched]
        command.give_up_at = self._give_up_at
        return command

    def _singles(self, releases: list[Release], acquires: list[SpecAndOwner]) -> list[Command]:
        return [*(release.command() for release in releases), *map(self.acquire, acquires)]


def plain(reply: Any, releases: int, acquires: int, like: Sequence[int] = ()) -> list[int] | None:
    """Return a number per name if the node did everything and nobody waits; otherwise None.

    `like`: what another node has replied; then the numbers must be the same.
    """
    if type(reply) is not list or len(reply) < 3:
        return None
    if releases + acquires == 1:
        number = reply[1] if acquires else GRANTED
        if reply[0] != GRANTED or reply[-2] or type(number) is not int or number not in FENCES:
            return None
        return [number] if not like or like[0] == number else None
    numbers = reply[1]
    if reply[0] or type(numbers) is not list or len(numbers) != releases + acquires:
        return None
    if like:
        return numbers if numbers == like else None
    sound = set(map(type, numbers)) == INTEGERS and min(numbers) > 0
    return numbers if sound and max(numbers) in FENCES else None


def parts_of(reply: Any, releases: int, acquires: int) -> Sequence[Any]:
    """Return for each name what the node would have replied to its own command."""
    names = releases + acquires
    if type(reply) is Failure or names == 1:
        return [reply] * names
    match reply:
        case [0 | 1, list(found), int(clock)] if len(found) == names:
            return [_part(one, clock, release=n < releases) for n, one in enumerate(found)]
    return [UNREADABLE] * names


def _part(one: Any, clock: int, *, release: bool) -> Any:
    if type(one) is ServerError:
        return failure(ServerError(str(one).removesuffix(".")))  # as in a single command
    if type(one) is int:
        return RELEASED if release else (GRANTED, one, b"", clock)
    return one
