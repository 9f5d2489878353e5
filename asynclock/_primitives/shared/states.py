"""What processes share beside locks: the event, the latch and the barrier, each in a register."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from ... import _clock, _settings
from ..._engine.engine import Engine
from ..._engine.inspection import Inspection
from ..._engine.spec import from_json
from ..._keys import lock_key
from ...errors import BrokenBarrierError, ConfigurationError
from ..base import Kind
from .register import Change, Description, Register, state_kind


class _Shared(_settings.Answering):
    """What event, latch and barrier have in common: a name, and a register that keeps the state."""

    __slots__ = ("_engine", "_register")
    _kind: ClassVar[Kind]

    def __init__(self, engine: Engine, name: str, keep: float) -> None:
        checked = _settings.name(name, f"the name of a {self._kind.name}")
        (key,) = self._kind.parts[0].keys(lock_key(engine.settings.prefix, checked))
        self._engine = engine
        self._register = Register(engine, checked, key, _settings.seconds(keep, "keep"))

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __aenter__ = __aexit__ = _settings.instead(
            "`await` and one of its methods, such as wait()"
        )

    @property
    def name(self) -> str:
        """The name that was passed to the manager."""
        return self._register.name

    async def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return await self._register.inspect(self._kind.name)


SET, CLEAR = "set", "clear"


def _describe_event(value: str, _now: int) -> Description:
    if value not in (SET, CLEAR):
        raise ConfigurationError("the state of this event was not written by this library")
    return {"set": value == SET}, "set" if value == SET else "cleared"


EVENT = state_kind(
    "event",
    _describe_event,
    lambda on, name, how, wait: SharedEvent(on, name, how.ttl).set(timeout=wait),
)


@_settings.made_by("connect(...).event(name)")
class SharedEvent(_Shared):
    """An `asyncio.Event` that all processes share: tasks set it, clear it and wait for it.

    Once `set` or `clear` has returned, every later call in any process sees the change, with a
    minority of nodes dead. An event has no owner and so no fence. It stays set for `keep` seconds
    after the last change and then counts as never set; processes that share a name should use the
    same `keep`. Works on every deployment. A node that lost its memory counts as dead until the
    next change, or a read that notices the loss, writes the value to it again. Until then it and
    other dead nodes together may make calls raise QuorumUnavailableError.
    """

    __slots__ = ()
    _kind = EVENT

    def __repr__(self) -> str:
        return f"<SharedEvent {self.name!r}>"

    async def set(self, *, timeout: float | None = None) -> None:
        """Set the event: all tasks that wait for it go on, and later ones don't wait.

        Raises QuorumUnavailableError after `timeout` seconds (at least two node timeouts) if too
        few nodes answered or other changes got in the way each time. After that error or a
        cancellation the event may be set or not.
        """
        await self._register.change(lambda _: SET, deadline_of(timeout))

    async def clear(self, *, timeout: float | None = None) -> None:
        """Clear the event: tasks that come later wait. Raises the same errors as `set`."""
        await self._register.change(
            lambda value: None if value is None else CLEAR, deadline_of(timeout)
        )

    async def is_set(self, *, timeout: float | None = None) -> bool:
        """Return whether the event is set now. Raises the same errors as `set`."""
        return await self._register.read(deadline_of(timeout)) == SET

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until the event is set. Return True, or False after `timeout` seconds.

        Raises QuorumUnavailableError if too few nodes answer until then. Cancelling this call
        changes nothing.
        """
        found = await self._register.until(
            lambda value: True if value == SET else None, deadline_of(timeout)
        )
        return bool(found)


def deadline_of(timeout: float | None) -> float | None:
    """Return the moment at which a timeout that starts now ends; None without a timeout."""
    seconds = _settings.optional_seconds(timeout, "timeout", zero=True)
    return None if seconds is None else _clock.now() + seconds


HIGHEST_COUNT = 1000
"""Maximum count: the state lists each count, so that none is counted twice."""


def _parsed_latch(value: str) -> tuple[int, dict[str, int]]:
    # The text comes from a server: accept only the form that this class writes.
    match from_json(value):
        case [int(count), dict(done)] if all(type(n) is int and n > 0 for n in done.values()):
            return count, done
    raise ConfigurationError("the state of this latch was not written by this library")


def _describe_latch(value: str, _now: int) -> Description:
    count, done = _parsed_latch(value)
    left = max(0, count - sum(done.values()))
    return {"count": count, "remaining": left}, f"{left} of {count} to go"


LATCH = state_kind(
    "latch",
    _describe_latch,
    lambda on, name, how, wait: Latch(on, name, 1, how.ttl).count_down(timeout=wait),
)


@_settings.made_by("connect(...).latch(name, count)")
class Latch(_Shared):
    """Counts down once from `count` to 0 and then lets all waiting tasks go on; it never resets.

    The nodes forget the latch `keep` seconds after the last count; then the name may be used again.
    Each `count_down` counts exactly once even if its messages are repeated. Works on every
    deployment, with a minority of nodes dead.
    """

    __slots__ = ("count",)
    _kind = LATCH

    def __init__(self, engine: Engine, name: str, count: int, keep: float) -> None:
        self.count: int = _settings.count(count, "count", HIGHEST_COUNT)
        """The number that the latch starts from."""
        super().__init__(engine, name, keep)

    def __repr__(self) -> str:
        return f"<Latch {self.name!r} count={self.count}>"

    async def count_down(self, by: int = 1, *, timeout: float | None = None) -> int:
        """Count down by `by`, at most to 0, and return what remains.

        Two callers may get the same number, 0 as well, because a call that has to ask the nodes
        again returns what remains by then. So don't choose one of them by it: use a lock.

        Raises QuorumUnavailableError if too few nodes answered for `timeout` seconds. After that
        error or a cancellation the call may have counted or not. Raises ConfigurationError if
        others use the name with another count.
        """
        step = _settings.count(by, "by", HIGHEST_COUNT)
        ticket = self._engine.owners.new_token()

        def change(value: str | None) -> str | None:
            done = self._done(value)
            if sum(done.values()) < self.count:
                done[ticket] = step
            return json.dumps([self.count, done])

        return self._remaining(await self._register.change(change, deadline_of(timeout)))

    async def remaining(self, *, timeout: float | None = None) -> int:
        """Return the number of counts that remain. Raises the same errors as `count_down`."""
        return self._remaining(await self._register.read(deadline_of(timeout)))

    async def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until nothing remains. Return True, or False after `timeout` seconds.

        Raises the same errors as `count_down`. Cancelling this call changes nothing.
        """
        found = await self._register.until(
            lambda value: True if self._remaining(value) == 0 else None, deadline_of(timeout)
        )
        return bool(found)

    def _remaining(self, value: str | None) -> int:
        return max(0, self.count - sum(self._done(value).values()))

    def _done(self, value: str | None) -> dict[str, int]:
        # How much each call of count_down has counted, by its ticket.
        count, done = (self.count, {}) if value is None else _parsed_latch(value)
        if count != self.count:
            raise ConfigurationError(
                f"latch {self.name!r} counts from {count}, not from {self.count}", name=self.name
            )
        return done


MOST_PARTIES = 256
"""Maximum number of parties: the state lists each party of several rounds."""
REMEMBERED = 4
"""Number of past rounds kept, so that a slow party can still learn that it has passed."""


@dataclass(slots=True)
class _State:
    """The state of a barrier, as the register stores it."""

    parties: int
    round: int
    here: dict[str, int]
    """When each waiting party counts as crashed, in µs of the nodes' clock."""
    passed: list[list[str]]
    """The parties of the last complete rounds, in order of arrival."""
    broken: bool = False
    """Whether the barrier was aborted and not reset since."""
    sent_away: list[list[str]] = field(default_factory=list)
    """The parties that waited when the barrier was aborted or reset, for the last few times."""

    def index(self, party: str) -> int | None:
        """Return the party's place in a complete round, or None if its round isn't complete."""
        return next((row.index(party) for row in self.passed if party in row), None)

    def refuses(self, party: str) -> bool:
        """Whether the party must stop waiting, unless its round is complete."""
        return self.broken or any(party in row for row in self.sent_away)

    # changes: each returns whether it has changed anything

    def arrive(self, party: str, now: int, ttl: int) -> bool:
        """Let a party wait for `ttl` µs, or complete the round with it."""
        self.drop_crashed(now)
        if self.index(party) is not None or self.refuses(party):
            return False
        self.here[party] = now + ttl
        if len(self.here) >= self.parties:
            self.passed = [*self.passed, list(self.here)][-REMEMBERED:]
            self.round += 1
            self.here = {}
        return True

    def leave(self, party: str) -> bool:
        """Stop the wait of one party, unless its round is complete."""
        return self.here.pop(party, None) is not None

    def send_away(self, *, broken: bool) -> bool:
        """Stop the wait of all parties that are here."""
        if not self.here and self.broken == broken:
            return False
        if self.here:
            self.sent_away = [*self.sent_away, list(self.here)][-REMEMBERED:]
        self.here, self.broken = {}, broken
        return True

    def drop_crashed(self, now: int) -> None:
        """Count no party that should have reported before `now`."""
        self.here = {party: until for party, until in self.here.items() if until > now}

    def text(self) -> str:
        return json.dumps(
            [self.parties, self.round, self.here, self.passed, self.broken, self.sent_away]
        )


def _parsed_barrier(value: str) -> _State:
    # The text comes from a server: accept only the form that this class writes.
    match from_json(value):
        case [int(parties), int(number), dict(here), list(passed), bool(broken), list(away)] if all(
            type(until) is int for until in here.values()
        ) and all(isinstance(row, list) for row in (*passed, *away)):
            return _State(parties, number, here, passed, broken, away)
    raise ConfigurationError("the state of this barrier was not written by this library")


def _describe_barrier(value: str, now: int) -> Description:
    state = _parsed_barrier(value)
    waiting = sum(until > now for until in state.here.values())
    found = {
        "parties": state.parties,
        "waiting": waiting,
        "round": state.round,
        "broken": state.broken,
    }
    if state.broken:
        return found, f"broken in round {state.round + 1}, until it is reset"
    return found, f"{waiting} of {state.parties} wait for round {state.round + 1}"


BARRIER = state_kind(
    "barrier",
    _describe_barrier,
    lambda on, name, how, wait: Barrier(on, name, 1, how.ttl, how.ttl).wait(timeout=wait),
)


@_settings.made_by("connect(...).barrier(name, parties)")
class Barrier(_Shared):
    """Lets `parties` callers of `wait` go on together, again and again.

    This is `asyncio.Barrier` for all processes; `abort` and `reset` mean the same.
    A waiting party reports to the nodes again and again. A party that crashed stops counting after
    the ttl, so a crashed party doesn't complete a round. A party whose timeout ends or that is
    cancelled leaves. The nodes forget the state `keep` seconds after the last arrival. Works on
    every deployment, with a minority of nodes dead.
    """

    __slots__ = ("_ttl", "parties")
    _kind = BARRIER

    def __init__(self, engine: Engine, name: str, parties: int, ttl: float, keep: float) -> None:
        self.parties: int = _settings.count(parties, "parties", MOST_PARTIES)
        """The number of parties that go on together."""
        super().__init__(engine, name, keep)
        self._ttl = ttl

    def __repr__(self) -> str:
        return f"<Barrier {self.name!r} parties={self.parties}>"

    async def wait(self, *, timeout: float | None = None) -> int:
        """Wait until all parties wait; return this party's place in the order of arrival, from 0.

        Raises TimeoutError after `timeout` seconds, QuorumUnavailableError if too few nodes answer
        until then, BrokenBarrierError if the barrier is broken or is reset meanwhile,
        ConfigurationError if others use the name with another number of parties. After an error or
        a cancellation this party no longer counts, unless all had arrived already; a cancellation
        takes at most two node timeouts for that.
        """
        deadline, since = deadline_of(timeout), _clock.now()
        party = self._engine.owners.new_token()
        ttl = round(self._ttl * 1_000_000)
        arrival = self._step(lambda state: state.arrive(party, self._now(), ttl))
        undos = self._engine.undos
        undos[party] = self._vanish
        try:
            while True:
                # Repeated twice per ttl, so that one late report doesn't make us count as crashed.
                state = self._state(await self._register.change(arrival, deadline))
                place = self._place(state, party)
                if place is None:
                    place = await self._register.until(
                        lambda value: self._place(self._state(value), party),
                        deadline,
                        longest=self._pause(deadline),
                        since=since,
                    )
                if place is not None:
                    return place
                if deadline is not None and _clock.now() >= deadline:
                    return await self._give_up(party)
        except (TimeoutError, BrokenBarrierError):
            raise  # it has left already
        except asyncio.CancelledError:
            if undos.pop(party, None) is not None:  # otherwise the manager has begun to close
                timeout = 2 * self._engine.settings.node_timeout
                await asyncio.wait([self._vanish(party)], timeout=timeout)
            raise
        except BaseException:
            if undos.pop(party, None) is not None:
                self._engine.clean_up(partial(self._vanish, party))
            raise
        finally:
            undos.pop(party, None)

    async def waiting(self, *, timeout: float | None = None) -> int:
        """Return the number of parties that wait now. Raises the same errors as `wait`."""
        state = self._state(await self._register.read(deadline_of(timeout)))
        state.drop_crashed(self._now())
        return len(state.here)

    async def abort(self, *, timeout: float | None = None) -> None:
        """Break the barrier: all parties that wait, and all later ones, get BrokenBarrierError.

        That lasts until `reset`. A round that was complete before stays complete: its parties go
        on. Raises QuorumUnavailableError after `timeout` seconds (at least two node timeouts) if
        too few nodes answered; after that error or a cancellation the barrier may be broken or not.
        """
        await self._send_away(timeout, broken=True)

    async def reset(self, *, timeout: float | None = None) -> None:
        """Make the barrier usable again, and empty: all parties that wait get BrokenBarrierError.

        Raises the same errors as `abort`.
        """
        await self._send_away(timeout, broken=False)

    async def broken(self, *, timeout: float | None = None) -> bool:
        """Return whether the barrier is broken. Raises the same errors as `abort`."""
        return self._state(await self._register.read(deadline_of(timeout))).broken

    async def _send_away(self, timeout: float | None, *, broken: bool) -> None:
        change = self._step(lambda state: state.send_away(broken=broken))
        await self._register.change(change, deadline_of(timeout))

    def _place(self, state: _State, party: str) -> int | None:
        place = state.index(party)
        if place is None and state.refuses(party):
            raise BrokenBarrierError(
                f"barrier {self.name!r} is broken until it is reset"
                if state.broken
                else f"barrier {self.name!r} was reset while this party waited",
                name=self.name,
            )
        return place

    def _pause(self, deadline: float | None) -> float:
        # No report shortly before the deadline: there might be no time to complete it.
        near = deadline is not None and deadline - _clock.now() < self._ttl * 2 / 3
        return inf if near else self._ttl / 3

    async def _give_up(self, party: str) -> int:
        # If all have arrived at the last moment, this party has passed.
        limit = _clock.now() + 2 * self._engine.settings.node_timeout
        value = await self._register.change(self._leaving(party), limit)
        place = self._place(self._state(value), party)
        if place is None:
            raise TimeoutError(f"not all {self.parties} parties arrived at barrier {self.name!r}")
        return place

    def _vanish(self, party: str) -> asyncio.Task[Any]:
        # Tried for one ttl: after that the party counts as crashed anyway.
        undo = self._register.settle(self._leaving(party), self._ttl, closing=True)
        return self._engine.undo(undo, f"asynclock: leave barrier {self.name}")

    def _leaving(self, party: str) -> Change:
        return self._step(lambda state: state.leave(party))

    def _step(self, act: Callable[[_State], bool]) -> Change:
        def change(value: str | None) -> str | None:
            state = self._state(value)
            return state.text() if act(state) else value

        return change

    def _now(self) -> int:
        return self._engine.multiplexer.fence_floor(_clock.now())

    def _state(self, value: str | None) -> _State:
        state = _State(self.parties, 0, {}, []) if value is None else _parsed_barrier(value)
        if state.parties != self.parties:
            raise ConfigurationError(
                f"barrier {self.name!r} is for {state.parties} parties, not {self.parties}",
                name=self.name,
            )
        return state
