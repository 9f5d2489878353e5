"""A register: one small value that a majority of nodes agree on. Event, latch and barrier use it.

Each change is one round of CASPaxos. First a majority promises to accept no number below ours, and
replies with the values that it has accepted. The value with the highest number is the register's
value. Then a majority accepts the changed value under our number. docs/decisions/0014 has the
reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

from .. import _clock, _settings
from .._engine import refusals
from .._engine.engine import Engine
from .._engine.inspection import Inspection, Lookout, NodeView, ask_all
from .._engine.spec import ms
from .._keys import lock_key
from .._nodes.replies import Failure
from .._nodes.script import Command, Script
from .._rules import pacing, validity
from ..errors import AsyncLockError, QuorumUnavailableError
from .base import PRELUDE
from .kind import Description, Kind, State, StateView
from .round import Round

SCRIPT = Script.load(__package__, *PRELUDE, "register.lua")


def state_kind(name: str, describe: Callable[[str, int], Description]) -> Kind:
    """Declare a kind of shared state; its key ends with its name."""
    return Kind(name, (SCRIPT,), (State(SCRIPT, name, describe=describe),))


T = TypeVar("T")

PROMISE = 5.0
"""Minimum seconds that a node keeps a promise, or four node timeouts if those are longer: no node
executes a request later than two node timeouts after it was sent (`not_after`)."""
FIRST_WIDTH = 0.002
"""Seconds within which the first pause after rival rounds ends, at random; doubled each time."""
LONGEST_WIDTH = 0.2
"""Maximum seconds of that range."""
DEFAULT_KEEP = 24 * 3600.0
"""Default seconds that a value outlives its last change."""

Change = Callable[[str | None], str | None]
"""Maps the register's value (None: none) to the new value; may be called more than once."""


class Register:
    """Reads and changes one value on the nodes; has no state of its own."""

    __slots__ = ("_engine", "keep", "key", "name")

    def __init__(self, engine: Engine, name: str, key: str, keep: float) -> None:
        self.name: str = name
        self.key: str = key
        self._engine = engine
        self.keep: float = keep

    @classmethod
    def of_kind(cls, kind: Kind, engine: Engine, prefix: str, name: str, keep: float) -> Register:
        """Make the register of an event, latch or barrier. Raises ConfigurationError."""
        checked = _settings.name(name, f"the name of a {kind.name}")
        (key,) = kind.parts[0].keys(lock_key(prefix, checked))
        return cls(engine, checked, key, _settings.seconds(keep, "keep"))

    async def read(self, deadline: float | None) -> str | None:
        """Return the present value. Raises QuorumUnavailableError at the deadline; see `change`."""
        return await self._read(_Patience(self._engine, self.name, deadline))

    async def _read(self, patience: _Patience, *, armed: bool = False) -> str | None:
        while True:
            round_ = await self._ask(patience, "read", arm=armed)
            if len(round_.granted) >= self._engine.multiplexer.quorum:
                found = round_.found()
                if found.agreed:
                    if found.value is not None:
                        round_.on_forgotten = self._tell_again
                    return found.value
                # Another client's change is under way or was never finished: finish it.
                return await self._change(lambda value: value, patience)
            await patience.pause(round_)

    async def change(
        self,
        step: Change,
        deadline: float | None,
        *,
        since: float | None = None,
        rewrite: bool = False,
    ) -> str | None:
        """Change the value by `step` and return the new value.

        `step` is called again after a lost round, which may have taken effect all the same, so it
        must recognize its own change. Raises QuorumUnavailableError at the deadline (None: after
        the longest quarantine) if too few nodes answer, or if other changes got in the way each
        time. The nodes have at least two node timeouts from `since` (None: now). With `rewrite`, a
        value that not all nodes have is written to all once more. If this call is
        cancelled, the change may have been made or not.
        """
        patience = _Patience(self._engine, self.name, deadline, since)
        return await self._change(step, patience, rewrite=rewrite)

    async def undo(self, step: Change, limit: float) -> None:
        """Take back a change of a call that has ended; tried for `limit` seconds.

        This goes on while the manager is being closed. It also writes a value that a majority has:
        the change may have reached a few other nodes, from which a later call would take it over.
        """
        patience = _Undoing(self._engine, self.name, _clock.now() + limit)
        with contextlib.suppress(AsyncLockError):
            await self._change(step, patience, rewrite=True)

    async def _change(
        self, step: Change, patience: _Patience, *, rewrite: bool = False
    ) -> str | None:
        engine, nodes = self._engine, self._engine.multiplexer
        by, number, width = engine.new_owner(), 0, FIRST_WIDTH
        while True:
            # The number says when a value was written. While too few clocks are known it can't say
            # that: such a round only asks, and its replies make the clocks known.
            chosen = _clock.now()
            floor = nodes.fence_floor(chosen)
            if floor < 0:
                # Nothing is written with this number, so nodes met only now may be asked as well.
                chosen = 0.0
            number = max(floor, number + 1)
            promise = max(PROMISE, 4 * engine.settings.node_timeout)
            words: tuple[str | int, ...] = (number, by, ms(promise))
            round_ = await self._ask(patience, "prepare", *words, chosen=chosen)
            if len(round_.granted) >= nodes.quorum and floor >= 0:
                found = round_.found()
                value = step(found.value)
                enough = found.everywhere if rewrite else found.agreed
                if value == found.value and enough:
                    return value
                words = (number, by, ms(self.keep), value or "")
                round_ = await self._ask(patience, "accept", *words, chosen=chosen)
                if len(round_.granted) >= nodes.quorum:
                    return value
            number = max(number, round_.promised)
            if round_.outage:
                await patience.pause(round_)
            else:
                await patience.step_aside(width * engine.random())
                width = min(LONGEST_WIDTH, width * 2)

    def _tell_again(self) -> None:
        # In the background, because the reader has its answer already.
        if not self._engine.closed:
            self._engine.background.spawn(self._repair(), f"asynclock: tell {self.name} again")

    async def _repair(self) -> None:
        with contextlib.suppress(AsyncLockError):
            deadline = _clock.now() + self._engine.settings.max_ttl
            patience = _Patience(self._engine, self.name, deadline)
            await self._change(lambda value: value, patience, rewrite=True)

    async def until(
        self,
        ready: Callable[[str | None], T | None],
        deadline: float | None,
        *,
        longest: float | None = None,
        since: float | None = None,
    ) -> T | None:
        """Wait until `ready` returns something other than None for the value, and return that.

        Returns None at the deadline, or after `longest` seconds. Raises the same errors as
        `change`. `since` is the start of a call whose change the nodes have answered already.
        """
        patience = _Patience(self._engine, self.name, deadline, since)
        lookout = Lookout(self._engine, (self.key,))
        ends = [] if deadline is None else [deadline]
        if longest is not None:
            ends.append(_clock.now() + longest)
        try:
            while True:
                try:
                    found = ready(await self._read(patience, armed=lookout.begin()))
                except QuorumUnavailableError:
                    # The nodes have answered during this call, and had too little time this time.
                    if patience.cut_short and (lookout.waits or since is not None):
                        return None
                    raise
                now = _clock.now()
                if found is not None or any(now >= end for end in ends):
                    return found
                await lookout.wait(most=min((end - now for end in ends), default=inf))
                if deadline is not None and _clock.now() >= patience.ends_at:
                    return None
        finally:
            lookout.close()

    async def inspect(self, kind: str) -> Inspection:
        """Return what each node stores, as `value` of its view."""
        replies = await ask_all(self._engine, Command(SCRIPT, (self.key,), ("inspect",)))
        nodes = self._engine.multiplexer.nodes
        views = tuple(_view(node.address, replies[i]) for i, node in enumerate(nodes))
        return Inspection(self.name, views, self._engine.multiplexer.quorum, kind)

    async def _ask(
        self,
        patience: _Patience,
        op: str,
        *args: str | int,
        chosen: float = 0.0,
        arm: bool = False,
    ) -> Round:
        # `chosen` is the moment at which the number of a change was chosen.
        engine, nodes = self._engine, self._engine.multiplexer
        patience.ready()
        now = _clock.now()
        if args:
            number, by, keep, *value = args
            not_after = nodes.not_after(now + 2 * engine.settings.node_timeout)
            args = (number, by, keep, not_after, *value)
        command = Command(SCRIPT, (self.key,), (op, *args))
        command.numbered_at, command.wakes = chosen, (self.key,) if args else ()
        # Only the replies to these two contain the stored value.
        told = op in ("read", "prepare")
        since = now - validity.quarantine(self.keep) if told else inf
        round_ = Round(engine, self.name, now, since)
        for index, node in enumerate(nodes.nodes):
            # A node that may have forgotten must not be asked: its "nothing" would count.
            obstacle = node.obstacle(now)
            if obstacle is None:
                node.ask(command, round_, index, arm=arm)
            else:
                round_.on_reply(index, obstacle)
        await patience.wait(round_)
        return round_


class _Patience:
    """Decides how long one call tolerates an outage and when it must end."""

    def __init__(
        self, engine: Engine, name: str, deadline: float | None, since: float | None = None
    ) -> None:
        now = _clock.now()
        self._engine = engine
        self._name = name
        outage = validity.longest_outage(engine.settings.max_ttl)
        self._until = now + outage if deadline is None else deadline
        # A change takes two round trips, so allow time for them whatever the deadline.
        answers = (now if since is None else since) + 2 * engine.settings.node_timeout
        self.ends_at = inf if deadline is None else max(deadline, answers)
        """The moment at which the call ends in any case; inf without a deadline."""
        self.cut_short = False
        """Whether the call ended while enough nodes might still have answered."""
        self._failures: dict[int, Failure] = {}
        self._number = 0

    def ready(self) -> None:
        """Begin to connect on the first call. Raises ConfigurationError, as `Context.ready`."""
        self._engine.ready()

    async def wait(self, round_: Round) -> None:
        """Wait until the round is decided or the call must end."""
        left = None if self.ends_at == inf else self.ends_at - _clock.now()
        try:
            async with asyncio.timeout(left):
                await round_.decided
        except TimeoutError:
            round_.expire(self._failures)
            self.cut_short = round_.cut_short

    async def step_aside(self, seconds: float) -> None:
        """Let rival changes go first. Raises QuorumUnavailableError if there is no time left."""
        if _clock.now() + seconds >= self.ends_at:
            raise QuorumUnavailableError(
                f"other changes of {self._name!r} got in the way until the timeout",
                name=self._name,
            )
        await asyncio.sleep(seconds)

    async def pause(self, round_: Round) -> None:
        """Wait before asking again.

        Raises QuorumUnavailableError if the outage lasts too long, ConfigurationError if it would
        never end.
        """
        self.ready()
        if round_.hopeless:
            raise refusals.hopeless(round_)
        left = self._until - _clock.now()
        if left <= 0 or (self.ends_at != inf and round_.barred > left):
            raise refusals.outage(round_)
        self._failures = round_.failures
        pause = pacing.without_push(self._number, None, self._engine.random())
        self._number += 1
        await asyncio.sleep(min(pause, left))


class _Undoing(_Patience):
    """The patience of a change that goes on while the manager is being closed."""

    def ready(self) -> None:
        """Ask the nodes even though the manager refuses every call."""


def _view(address: str, reply: Any) -> NodeView:
    view = StateView.parse(address, reply)
    return NodeView(address, None, view.remaining, view.number, view.error, view.value)
