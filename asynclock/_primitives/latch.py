"""The latch: tasks wait until it has been counted down a given number of times."""

from __future__ import annotations

import json

from .. import _settings
from .._engine.engine import Engine
from .._engine.inspection import Inspection
from .._engine.said import from_json
from ..errors import ConfigurationError
from .event import deadline_of
from .kind import Description
from .register import Register, state_kind

HIGHEST_COUNT = 1000
"""Maximum count: the state lists each count, so that none is counted twice."""


def _parsed(value: str) -> tuple[int, dict[str, int]]:
    # The text comes from a server: accept only the form that this class writes.
    match from_json(value):
        case [int(count), dict(done)] if all(type(n) is int and n > 0 for n in done.values()):
            return count, done
    raise ConfigurationError("the state of this latch was not written by this library")


def _describe(value: str, _now: int) -> Description:
    count, done = _parsed(value)
    left = max(0, count - sum(done.values()))
    return {"count": count, "remaining": left}, f"{left} of {count} to go"


KIND = state_kind("latch", _describe)


@_settings.made_by("connect(...).latch(name, count)")
class Latch(_settings.Answering):
    """Counts down once from `count` to 0 and then lets all waiting tasks go on; it never resets.

    The nodes forget the latch `keep` seconds after the last count; then the name may be used again.
    Each `count_down` counts exactly once even if its messages are repeated. Works on every
    deployment, with a minority of nodes dead.
    """

    __slots__ = ("_engine", "_register", "count")

    def __init__(self, engine: Engine, prefix: str, name: str, count: int, keep: float) -> None:
        self.count: int = _settings.count(count, "count", HIGHEST_COUNT)
        """The number that the latch starts from."""
        self._engine = engine
        self._register = Register.of_kind(KIND, engine, prefix, name, keep)

    def __repr__(self) -> str:
        return f"<Latch {self.name!r} count={self.count}>"

    @property
    def name(self) -> str:
        """The name that was passed to `LockManager.latch`."""
        return self._register.name

    async def count_down(self, by: int = 1, *, timeout: float | None = None) -> int:
        """Count down by `by`, at most to 0, and return what remains.

        Two callers may get the same number, 0 as well, because a call that has to ask the nodes
        again returns what remains by then. So don't choose one of them by it: use a lock.

        Raises QuorumUnavailableError if too few nodes answered for `timeout` seconds. After that
        error or a cancellation the call may have counted or not. Raises ConfigurationError if
        others use the name with another count.
        """
        step = _settings.count(by, "by", HIGHEST_COUNT)
        ticket = self._engine.entropy(8).hex()

        def change(value: str | None) -> str | None:
            done = self._done(value)
            if ticket not in done and sum(done.values()) < self.count:
                done[ticket] = step
            return json.dumps([self.count, done])

        return self._left(await self._register.change(change, deadline_of(timeout)))

    async def remaining(self, *, timeout: float | None = None) -> int:
        """Return the number of counts that remain. Raises the same errors as `count_down`."""
        return self._left(await self._register.read(deadline_of(timeout)))

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until nothing remains. Return True, or False after `timeout` seconds.

        Raises the same errors as `count_down`. Cancelling this call changes nothing.
        """
        found = await self._register.until(
            lambda value: True if self._left(value) == 0 else None, deadline_of(timeout)
        )
        return bool(found)

    async def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return await self._register.inspect(KIND.name)

    def _left(self, value: str | None) -> int:
        return max(0, self.count - sum(self._done(value).values()))

    def _done(self, value: str | None) -> dict[str, int]:
        # How much each call of count_down has counted, by its ticket.
        count, done = (self.count, {}) if value is None else _parsed(value)
        if count != self.count:
            raise ConfigurationError(
                f"latch {self.name!r} counts from {count}, not from {self.count}", name=self.name
            )
        return done
