"""The pauses of a call between its attempts; each ends before the call has to."""

from __future__ import annotations

import asyncio

from .. import _clock
from .._nodes.wakeup import Watch
from .._rules import pacing
from .attempt import Attempt
from .context import Context
from .spec import LockSpec


class Pauses:
    """How long one call waits: until a push, until the holder's ttl is over, or by pacing."""

    __slots__ = ("_deadline", "_engine", "_in_vain", "_made", "_spec", "_until")

    def __init__(
        self, engine: Context, spec: LockSpec, deadline: float | None, until: float
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._deadline = deadline
        self._until = until
        self._made = self._in_vain = 0

    @property
    def expecting(self) -> bool:
        """Whether pushes are worth asking for: not too many have come in vain."""
        return self._in_vain < pacing.IN_VAIN

    async def wait(self, attempt: Attempt, watch: Watch | None, rank: int) -> None:
        """Wait until it is time for the next attempt; `rank` waiters go before this one."""
        engine = self._engine
        listening = watch is not None and not attempt.outage and engine.multiplexer.tracks()
        expecting = listening and self.expecting
        pause = self._length(attempt, rank, listening=expecting)
        self._made += 1
        if not listening or watch is None:
            await asyncio.sleep(pause)
            self._woke("pacing")
        elif await watch.wait(pause):
            self._woke("push")
            self._in_vain += watch.called  # if this attempt wins, nobody looks at it again
            if not self._spec.queue and len(engine.multiplexer.nodes) > 1:
                # The same release woke our rivals: a random pause prevents a split vote.
                await self.sleep(engine.spread.width * engine.random())
        else:
            self._woke("expiry" if expecting else "pacing")
            self._in_vain = max(0, self._in_vain - 1)

    def _woke(self, cause: str) -> None:
        if self._deadline is None or _clock.now() < self._deadline:
            self._engine.counts.wakeups[cause] += 1

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the deadline."""
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - _clock.now()))
        await asyncio.sleep(seconds)

    def _length(self, attempt: Attempt, rank: int, *, listening: bool) -> float:
        random = self._engine.random()
        remaining = None if attempt.outage else attempt.remaining
        if listening:
            pause = pacing.until_expiry(remaining, random)
        else:
            pause = pacing.without_push(self._made, remaining, random, rank=rank)
        if self._spec.ticket_ttl:
            pause = min(pause, self._spec.ticket_ttl * (0.3 + random / 10))
        end = self._until if self._deadline is None else self._deadline
        return min(pause, max(0.0, end - _clock.now()))
