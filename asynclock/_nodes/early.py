"""What is asked of a node before its connection is open: it waits, but not for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .link import Sink
from .script import Command

Asked = tuple[Command, Sink, int]


class Early:
    """Commands that came too early, in order. Tells when the first has waited for `patience` s."""

    __slots__ = ("_asked", "_give_up", "_patience", "_timer")

    def __init__(self, patience: float, give_up: Callable[[], None]) -> None:
        self._patience = patience
        self._give_up = give_up
        self._asked: list[Asked] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, command: Command, sink: Sink, index: int) -> None:
        """Keep it until `take`."""
        self._asked.append((command, sink, index))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    def take(self) -> list[Asked]:
        """Whatever waits: it is waited for no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asked, self._asked = self._asked, []
        return asked
