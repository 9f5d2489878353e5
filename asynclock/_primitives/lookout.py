"""Looks at keys again and again: when they change or, where no push comes, at intervals."""

from __future__ import annotations

import asyncio
from math import inf

from .._engine.engine import Engine
from .._rules import pacing


class Lookout:
    """The waits of one task between its looks at some keys; each look begins with `begin`."""

    __slots__ = ("_engine", "_watch", "listening", "waits")

    def __init__(self, engine: Engine, keys: tuple[str, ...]) -> None:
        self._engine = engine
        self._watch = engine.multiplexer.wakeups.watch(keys)
        self.listening: bool = False
        """Whether the nodes send pushes; then each look arms the next one."""
        self.waits: int = 0

    def begin(self) -> bool:
        """Forget earlier pushes and return whether this look is to arm the next one."""
        self._watch.reset()
        self.listening = self._engine.multiplexer.tracks()
        return self.listening

    async def wait(self, left: float | None = None, *, most: float = inf) -> None:
        """Wait until it is time for the next look, at most `most` seconds.

        `left` is the number of seconds after which the keys change by themselves (None: unknown).
        """
        random = self._engine.random()
        if self.listening:
            await self._watch.wait(min(most, pacing.until_expiry(left, random)))
        else:
            await asyncio.sleep(min(most, pacing.without_push(self.waits, left, random)))
        self.waits += 1

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()
