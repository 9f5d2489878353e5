"""The backlog of a node: commands that wait for its connection to open, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from .patience import Patience
from .replies import Sink
from .script import Command

Waiting = tuple[Command, Sink, int]
"""A command, and the sink and the index for its reply."""


class ConnectBacklog:
    """Keeps commands in order; calls `give_up` when the first has waited for `patience` seconds.

    Time in which our own process stood does not count.
    """

    __slots__ = ("_asked", "_give_up", "_patience", "_taken", "_timer")

    def __init__(self, patience: float, give_up: Callable[[], None]) -> None:
        self._patience = patience
        self._give_up = give_up
        self._asked: list[Waiting] = []
        self._timer: Patience | None = None
        self._taken: asyncio.Future[None] | None = None

    def __iter__(self) -> Iterator[Command]:
        return (command for command, _, _ in self._asked)

    def add(self, command: Command, sink: Sink, index: int) -> None:
        """Keep a command until `take` is called."""
        self._asked.append((command, sink, index))
        if self._timer is None:
            self._timer = Patience(self._patience, self._give_up)

    def take(self) -> list[Waiting]:
        """Return and clear the backlog."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._taken is not None:
            self._taken.set_result(None)
            self._taken = None
        asked, self._asked = self._asked, []
        return asked

    async def wait_taken(self) -> None:
        """Wait until the backlog is empty."""
        while self._asked:
            self._taken = self._taken or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._taken)
