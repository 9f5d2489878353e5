"""Commands that no known server can execute at present. None of them has been executed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ... import _clock
from ..replies import Failure

TRY_AGAIN = 0.02
"""Seconds before a retry after TRYAGAIN: a slot migration has split the keys of one name."""


class Parkable(Protocol):
    """A command that can wait."""

    @property
    def until(self) -> float:
        """The moment at which the command fails if it still waits."""

    @property
    def release(self) -> bool:
        """Whether it is a release."""

    def go(self) -> None:
        """Send the command."""

    def fail(self, failure: Failure) -> None:
        """Answer the command with `failure`."""


class ParkedCommands:
    """Keeps commands until the next view of the cluster, or for a moment."""

    def __init__(self, why: Callable[[], Failure]) -> None:
        self._why = why
        """Returns why no server is known, for commands whose time is over."""
        self._parked: list[Parkable] = []
        self._retried: list[Parkable] = []

    def park(self, command: Parkable) -> None:
        """Keep a command for the next view, until its timeout."""
        self._parked.append(command)
        left = max(0.0, command.until - _clock.now())
        asyncio.get_running_loop().call_later(left, self._give_up)

    def retry(self, command: Parkable) -> None:
        """Send a command again after TRY_AGAIN seconds."""
        self._retried.append(command)
        asyncio.get_running_loop().call_later(TRY_AGAIN, self._again, command)

    @property
    def releases(self) -> bool:
        """Whether any waiting command is a release."""
        return any(command.release for command in (*self._parked, *self._retried))

    def drop(self, command: Parkable) -> bool:
        """Remove `command`; return whether it was here."""
        for waiting in (self._parked, self._retried):
            if command in waiting:
                waiting.remove(command)
                return True
        return False

    def resume(self) -> None:
        """Send all parked commands in their order, because there is a new view."""
        parked, self._parked = self._parked, []
        for command in parked:
            command.go()

    def fail(self, failure: Failure) -> None:
        """Fail all commands with `failure`."""
        waiting = [*self._parked, *self._retried]
        self._parked, self._retried = [], []
        for command in waiting:
            command.fail(failure)

    def _again(self, command: Parkable) -> None:
        if command in self._retried:
            self._retried.remove(command)
            command.go()

    def _give_up(self) -> None:
        now = _clock.now()
        late = [command for command in self._parked if command.until <= now]
        self._parked = [command for command in self._parked if command.until > now]
        for command in late:
            command.fail(self._why())
