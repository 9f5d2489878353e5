"""The latch: many wait until something was done so many times."""

from __future__ import annotations

import json
from typing import Any

from .. import _settings
from .._engine.engine import Engine
from .._engine.inspection import Inspection
from ..errors import ConfigurationError
from .event import deadline_of
from .register import Register

MOST = 1000
"""Counts at most: each is remembered, so that none is counted twice."""


class Latch:
    """Counts down once, from `count` to 0, and lets go all who wait; it never goes up again.

    The first to count or to look starts it; `keep` seconds after the last count it is forgotten
    and the name may be used anew. Each `count_down` counts exactly once even if its messages are
    repeated. On every deployment, with a minority of nodes dead.
    """

    __slots__ = ("_engine", "_register", "count")

    def __init__(self, engine: Engine, register: Register, count: int) -> None:
        self._engine = engine
        self._register = register
        self.count = count
        """Where it starts."""

    def __repr__(self) -> str:
        return f"<Latch {self.name!r} count={self.count}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._register.name

    async def count_down(self, by: int = 1, *, timeout: float | None = None) -> int:
        """Count down, at most to 0. → what remains.

        Raises QuorumUnavailableError if too few nodes answered for `timeout` seconds; it may be
        counted or not then, as when it is cancelled. Raises ConfigurationError if others use the
        name with another count.
        """
        step = _settings.count(by, "by", MOST)
        ticket = self._engine.entropy(8).hex()

        def change(value: str | None) -> str | None:
            done = self._done(value)
            if ticket not in done and sum(done.values()) < self.count:
                done[ticket] = step
            return json.dumps([self.count, done])

        return self._left(await self._register.change(change, deadline_of(timeout)))

    async def remaining(self, *, timeout: float | None = None) -> int:
        """How often it must still be counted down. Raises as `count_down`."""
        return self._left(await self._register.read(deadline_of(timeout)))

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until nothing remains. → True, or False after `timeout` seconds.

        Raises as `count_down`. Cancelling leaves nothing behind.
        """
        found = await self._register.until(
            lambda value: True if self._left(value) == 0 else None, deadline_of(timeout)
        )
        return bool(found)

    async def inspect(self) -> Inspection:
        """What each node says."""
        return await self._register.inspect("latch")

    def _left(self, value: str | None) -> int:
        return max(0, self.count - sum(self._done(value).values()))

    def _done(self, value: str | None) -> dict[str, int]:
        # Who has counted, by how much.
        count, done = (self.count, {}) if value is None else _parsed(value)
        if count != self.count:
            raise ConfigurationError(
                f"latch {self.name!r} counts from {count}, not from {self.count}", name=self.name
            )
        return done


def _parsed(value: str) -> tuple[int, dict[str, int]]:
    # Text from a server: taken only in the shape in which we write it.
    try:
        found: Any = json.loads(value)
    except ValueError:
        found = None
    match found:
        case [int(count), dict(done)] if all(type(n) is int and n > 0 for n in done.values()):
            return count, done
    raise ConfigurationError("the state of this latch was written by something else")
