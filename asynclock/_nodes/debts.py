"""Releases that one node may not have got: repeated for as long as they can matter.

A broken connection may have swallowed a release, or the server may still execute an acquire that
came through it (a zombie). Releases are idempotent per owner, so each doubtful one is sent again:
when the node is back, and at growing intervals until no zombie can be executed any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from .. import _clock
from .link import LAGGING
from .script import Command, Word

MAX_OWED = 100_000


class Debts:
    """What one client owes one node; `deliver` sends a release, now or when the node is back."""

    def __init__(self, node_timeout: float, deliver: Callable[[Command], None]) -> None:
        self._timeout = node_timeout
        self._deliver = deliver
        self._owed: deque[Command] = deque(maxlen=MAX_OWED)
        self.zombies: set[Word] = set()
        """Owners whose acquire may still reach the server through a connection that broke."""
        self.set_back = 0.0
        """Seconds by which its clock was set back before our eyes: keys live as much longer."""

    def add(self, commands: Iterable[Command]) -> None:
        """Those of `commands` that are releases could not be sent."""
        # For how long, shows when the node is back: its clock may have been set back meanwhile.
        self._owed.extend(command for command in commands if command.owed_until)

    def swallowed(self, unanswered: Sequence[Command]) -> None:
        """A connection broke before these were answered."""
        self.add(unanswered)
        # A lease may be won without this node, and released here before its acquire arrives.
        owners = {one.args[1] for one in unanswered if one.args[0] == "acquire"}
        if owners:
            self.zombies |= owners
            forget = self.zombies.difference_update
            lasting = LAGGING * self._timeout + 0.1
            asyncio.get_running_loop().call_later(lasting, forget, owners)

    def passing(self, release: Command) -> None:
        """A release is being sent."""
        if release.args[1] in self.zombies:
            self.zombies.discard(release.args[1])
            self._come_again([release])

    def pay(self) -> None:
        """The node is back."""
        again = self._still_owed(self.take())
        for command in again:
            self._deliver(command)
        if again:
            self._come_again(again)

    def take(self) -> list[Command]:
        """Releases that have not reached it, for whoever has its keys now."""
        owed = list(self._owed)
        self._owed.clear()
        return owed

    def _come_again(self, releases: list[Command]) -> None:
        # A zombie of the broken connection is most likely executed soon, and not at all after
        # its not_after: LAGGING node timeouts and 50 ms after its attempt began.
        loop = asyncio.get_running_loop()
        for timeouts in (1, 2, 4, LAGGING):
            loop.call_later(timeouts * self._timeout + 0.1, self._repeat, releases)

    def _repeat(self, commands: list[Command]) -> None:
        for command in self._still_owed(commands):
            self._deliver(command)

    def _still_owed(self, commands: Iterable[Command]) -> list[Command]:
        since = _clock.now() - self.set_back
        return [command for command in commands if command.owed_until > since]
