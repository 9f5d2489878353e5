"""The barrier: so many wait for each other, and go on together."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

from .. import _clock
from .._engine.engine import Engine
from .._engine.inspection import Inspection
from ..errors import AsyncLockError, ConfigurationError, QuorumUnavailableError
from .event import deadline_of
from .register import Register

MOST = 256
"""Parties at most: the state names each of them, of several rounds."""
REMEMBERED = 4
"""So many rounds ago somebody may have been let through and not know it yet."""


@dataclass(slots=True)
class _State:
    """What the register holds."""

    parties: int
    round: int
    here: dict[str, int]
    """Who waits → when it is taken for crashed, in µs of the nodes' clock."""
    passed: list[list[str]]
    """Those of the last rounds, in order of arrival."""

    def index(self, party: str) -> int | None:
        """Which place this party had in a round that is over."""
        return next((row.index(party) for row in self.passed if party in row), None)

    def text(self) -> str:
        return json.dumps([self.parties, self.round, self.here, self.passed])


class Barrier:
    """Lets `parties` callers of `wait` go on together, again and again.

    Whoever waits says so repeatedly; one that crashed no longer counts after the ttl, so that a
    round is never completed by the dead. One that gives up or is cancelled leaves. The state is
    forgotten `keep` seconds after the last arrival. On every deployment, with a minority of nodes
    dead.
    """

    __slots__ = ("_engine", "_register", "_ttl", "parties")

    def __init__(self, engine: Engine, register: Register, parties: int, ttl: float) -> None:
        self._engine = engine
        self._register = register
        self._ttl = ttl
        self.parties = parties
        """How many go on together."""

    def __repr__(self) -> str:
        return f"<Barrier {self.name!r} parties={self.parties}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._register.name

    async def wait(self, *, timeout: float | None = None) -> int:
        """Wait until all parties wait. → the place in this round's order of arrival, from 0.

        Raises TimeoutError after `timeout` seconds, QuorumUnavailableError if too few nodes answer
        until then, ConfigurationError if others use the name with another number of parties. Who
        raises or is cancelled has left and does not count, unless all had arrived already.
        """
        deadline = deadline_of(timeout)
        party = self._engine.entropy(8).hex()
        try:
            while True:
                # Said again before the others take us for crashed: twice, one may be late.
                state = self._state(await self._register.change(self._arrival(party), deadline))
                place = state.index(party)
                if place is None:
                    place = await self._register.until(
                        lambda value: self._state(value).index(party),
                        deadline,
                        longest=self._ttl / 3,
                    )
                if place is not None:
                    return place
                if deadline is not None and _clock.now() >= deadline:
                    return await self._give_up(party)
        except (asyncio.CancelledError, QuorumUnavailableError):
            if not self._engine.closed:
                self._engine.background.spawn(
                    self._vanish(party), f"asynclock: leave barrier {self.name}"
                )
            raise

    async def waiting(self, *, timeout: float | None = None) -> int:
        """How many wait now. Raises as `wait`."""
        return len(self._alive(await self._register.read(deadline_of(timeout))).here)

    async def inspect(self) -> Inspection:
        """What each node says."""
        return await self._register.inspect("barrier")

    async def _give_up(self, party: str) -> int:
        # All may have arrived in the very last moment; then we are through.
        place = await self._leave(party, 2 * self._engine.settings.node_timeout)
        if place is None:
            raise TimeoutError(f"not all {self.parties} parties came to barrier {self.name!r}")
        return place

    async def _vanish(self, party: str) -> None:
        # Tried for the ttl: after that it is taken for crashed anyway.
        with contextlib.suppress(AsyncLockError):
            await self._leave(party, self._ttl)

    async def _leave(self, party: str, limit: float) -> int | None:
        def change(value: str | None) -> str | None:
            if value is None:
                return None
            state = self._state(value)
            state.here.pop(party, None)
            return state.text()

        value = await self._register.change(change, _clock.now() + limit)
        return self._state(value).index(party)

    def _arrival(self, party: str) -> Any:
        def change(value: str | None) -> str | None:
            state = self._alive(value)
            if state.index(party) is not None:
                return value
            state.here[party] = self._now() + round(self._ttl * 1_000_000)
            if len(state.here) >= self.parties:
                state.passed = [*state.passed, list(state.here)][-REMEMBERED:]
                state.round += 1
                state.here = {}
            return state.text()

        return change

    def _now(self) -> int:
        return self._engine.multiplexer.floor(_clock.now())

    def _alive(self, value: str | None) -> _State:
        state, now = self._state(value), self._now()
        state.here = {party: until for party, until in state.here.items() if until > now}
        return state

    def _state(self, value: str | None) -> _State:
        state = _State(self.parties, 0, {}, []) if value is None else _parsed(value)
        if state.parties != self.parties:
            raise ConfigurationError(
                f"barrier {self.name!r} is for {state.parties} parties, not {self.parties}",
                name=self.name,
            )
        return state


def _parsed(value: str) -> _State:
    # Text from a server: taken only in the shape in which we write it.
    try:
        found: Any = json.loads(value)
    except ValueError:
        found = None
    match found:
        case [int(parties), int(number), dict(here), list(passed)] if all(
            type(until) is int for until in here.values()
        ) and all(isinstance(row, list) for row in passed):
            return _State(parties, number, here, passed)
    raise ConfigurationError("the state of this barrier was written by something else")
