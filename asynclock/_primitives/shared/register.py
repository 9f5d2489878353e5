"""A register: one small value that a majority of nodes agree on, by CASPaxos (docs/decisions/0014).

First a majority promises to accept no number below ours, and replies with the values that it has
accepted. The value with the highest number is the register's. Then a majority accepts the changed
value under our number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, final

from ... import _clock
from ..._engine import refusals
from ..._engine.engine import Engine
from ..._engine.inspection import Inspection, Lookout, NodeView, ask_all
from ..._engine.spec import TOO_LATE, Vote, ms
from ..._keys import derived
from ..._nodes.multiplexer import quarantined
from ..._nodes.wire import UNREADABLE, Command, Failure, Script, reader
from ..._rules import pacing, validity
from ..._rules.quorum import countable, surely_empty
from ...errors import AsyncLockError, QuorumUnavailableError
from .. import base
from ..base import PRELUDE, Kind, Part, Trial

NUMBERS: Final = range(2**53)
FORGETFUL = Failure(
    "it has restarted and may have forgotten this name; the next change stores it again"
)


@final
class Stored(NamedTuple):
    """What a node keeps of a register that it has promised, read or changed."""

    number: int = 0
    """Number of the last change that it accepted; the reply to a change doesn't tell it."""
    value: str | None = None
    left: float | None = None
    """Seconds until the node forgets it, as far as the reply says that."""
    now: int = 0
    """The node's clock, in µs."""


@final
class Promised(NamedTuple):
    """The node has promised a higher number to another client."""

    number: int


@reader
def stored(reply: Any) -> Stored | Promised | Failure:
    """Read a reply of register.lua."""
    match reply:
        case [1, int(number), None | bytes() as value, int(left), int(now)] if number in NUMBERS:
            return Stored(number, _text(value), left / 1000 if left >= 0 else None, now)
        case [1, int(number), None | bytes() as value, int(now)] if number in NUMBERS:
            return Stored(number, _text(value), None, now)
        case [1, int(now)]:
            return Stored(now=now)
        case [0, int(number), int()] if number in NUMBERS:
            return Promised(number)
        case [-1, int()]:
            return TOO_LATE
    raise ValueError(reply)


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if value else None


@dataclass(frozen=True, slots=True)
class Found:
    """The value that a majority of nodes reported."""

    value: str | None
    agreed: bool
    """Whether a majority reported this value and no node forgot it; then no write is needed."""
    everywhere: bool
    """Whether each node reported this value."""


class Tally(Vote):
    """Counts the replies of all nodes; decided once a majority has answered or no longer can."""

    AIM: ClassVar[str] = "know the state of"
    NEVER: ClassVar[str] = "be known"

    def __init__(self, engine: Engine, name: str, key: str, sent: float, since: float) -> None:
        super().__init__(name, engine.multiplexer)
        self._key = key
        self._sent = sent
        self._since = since
        """A node that has kept its memory since this moment can't have forgotten a value."""
        self._empty: dict[int, tuple[float, Stored]] = {}
        """The nodes without a value that may have forgotten one. For each: the start of its memory
        by its own clock (µs), and its reply."""
        self._answered: set[int] = set()
        self.cut_short = False
        """Whether the time ended while enough nodes might still have answered."""
        self.on_forgotten: Callable[[], None] | None = None
        """Called if a reply after the decision shows that a node has forgotten the value."""
        self.missing = len(self._nodes)
        self.granted: list[Stored] = []
        self.promised = 0
        """The highest number that a refusing node has promised to another client."""
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        node, parsed = self._nodes[index], stored(reply)
        self._answered.add(index)
        if type(parsed) is Failure:
            self.failures[index] = parsed
        elif not node.trust.counts(self._sent):
            self.failures[index] = quarantined(node)
        elif type(parsed) is Promised:
            self.promised = max(self.promised, parsed.number)
        elif not parsed.number and not node.trust.remembers(self._since):
            kept = self._sent - node.trust.remembers_from
            self._empty[index] = (parsed.now - kept * 1_000_000, parsed)
        else:
            self.granted.append(parsed)
        self.missing -= 1
        self._believe()
        if not self.decided.done():
            self._judge()
        elif self._empty and self.on_forgotten is not None:
            self.on_forgotten()

    def _believe(self) -> None:
        # A node whose memory reaches back to before the newest write has not forgotten that value.
        if self._empty and self.granted:
            newest = max(one.number for one in self.granted)
            for index, (since, one) in list(self._empty.items()):
                if surely_empty(since, newest):
                    self.granted.append(one)
                    del self._empty[index]

    def _judge(self) -> None:
        sure, unsure = len(self.granted), len(self._empty)
        count = countable(len(self._nodes), sure=sure, unsure=unsure, missing=self.missing)
        if count > sure:
            self.granted += (one for _, one in self._empty.values())
        elif not self.missing:
            self.failures |= dict.fromkeys(self._empty, FORGETFUL)
        if count >= self._quorum or sure + unsure + self.missing < self._quorum or not self.missing:
            self.decided.set_result(None)

    def expire(self, before: Mapping[int, Failure]) -> None:
        """End the vote: missing nodes count as failed, with their cause from `before` if any."""
        self.cut_short = len(self.granted) + self.missing >= self._quorum
        self.failures |= dict.fromkeys(self._empty, FORGETFUL)
        for index in range(len(self._nodes)):
            if index not in self._answered:
                self.failures[index] = before.get(index) or self._unanswered(index, (self._key,))

    def found(self) -> Found:
        """Return the value with the highest number among the replies that count."""
        numbers = [one.number for one in self.granted]
        highest = max(numbers)
        newest = next(one for one in self.granted if one.number == highest)
        # A node that forgot the value must get it again before another node restarts.
        forgotten = highest and self._empty
        having = numbers.count(highest)
        agreed = having >= self._quorum and not forgotten
        return Found(newest.value, agreed, having == len(self._nodes))


class StateView(NamedTuple):
    """What one node keeps of a state; texts come from outside, never print them raw."""

    node: str
    number: int = 0
    """Number of the last change that the node accepted; the highest one counts."""
    value: str | None = None
    remaining: float | None = None
    """Seconds until the node forgets the state."""
    now: int = 0
    """The node's clock, in µs."""
    error: str | None = None

    @classmethod
    def parse(cls, node: str, reply: Any) -> StateView:
        """Read the reply of register.lua to `inspect`."""
        parsed = stored(reply)
        if isinstance(parsed, Failure):
            return cls(node, error=parsed.cause)
        if isinstance(parsed, Promised):
            return cls(node, error=UNREADABLE.cause)
        return cls(node, parsed.number, parsed.value, parsed.left, parsed.now)


Description = tuple[dict[str, Any], str]
"""A state as JSON, and in words."""


@dataclass(frozen=True, slots=True)
class State(Part):
    """A key that keeps a value and has no owner, as register.lua does."""

    describe: Callable[[str, int], Description] = field(kw_only=True)
    """Describes a value at a moment of the node's clock, in µs. Raises ConfigurationError if
    something other than this library wrote the value."""

    def keys(self, whole: str, end: str = "") -> tuple[str, ...]:
        return (derived(whole, end or self.suffix),)


SCRIPT = Script.load(base.__package__, *PRELUDE, "shared/register.lua")


def state_kind(name: str, describe: Callable[[str, int], Description], trial: Trial) -> Kind:
    """Declare a kind of shared state; its key ends with its name."""
    return Kind(name, (SCRIPT,), trial, (State(SCRIPT, name, describe=describe),))


T = TypeVar("T")

PROMISE = 5.0
"""Minimum seconds that a node keeps a promise, or four node timeouts if those are longer: no node
executes a request later than two node timeouts after it was sent (`not_after`)."""
FIRST_WIDTH = 0.002
"""Seconds within which the first pause after rival changes ends, at random; doubled each time."""
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

    async def read(self, deadline: float | None) -> str | None:
        """Return the present value. Raises QuorumUnavailableError at the deadline; see `change`."""
        return await self._read(_Patience(self._engine, self.name, deadline))

    async def _read(self, patience: _Patience, *, armed: bool = False) -> str | None:
        while True:
            tally = await self._ask(patience, "read", arm=armed)
            if len(tally.granted) >= self._engine.multiplexer.quorum:
                found = tally.found()
                if found.agreed:
                    if found.value is not None:
                        tally.on_forgotten = self._tell_again
                    return found.value
                # Another client's change is under way or was never finished: finish it.
                return await self._change(lambda value: value, patience)
            await patience.pause(tally)

    async def change(
        self, step: Change, deadline: float | None, *, rewrite: bool = False
    ) -> str | None:
        """Change the value by `step` and return the new value.

        `step` is called again after a lost vote, which may have taken effect all the same, so it
        must recognize its own change. Raises QuorumUnavailableError at the deadline (None: after
        the longest quarantine) if too few nodes answer, or if other changes got in the way each
        time. The nodes have at least two node timeouts. With `rewrite`, a value that not all nodes
        have is written to all. If this is cancelled, the change may have been made or not.
        """
        patience = _Patience(self._engine, self.name, deadline)
        return await self._change(step, patience, rewrite=rewrite)

    async def settle(self, step: Change, limit: float, *, closing: bool) -> None:
        """Change the value in the background, for at most `limit` seconds; errors are ignored.

        With `closing` this goes on while the manager is being closed. A value that a majority has
        is written to all nodes as well: the change of a call that has ended may have reached a few
        other nodes, from which a later call would take it over.
        """
        patience = _Patience(self._engine, self.name, _clock.now() + limit, closing=closing)
        with contextlib.suppress(AsyncLockError):
            await self._change(step, patience, rewrite=True)

    async def _change(
        self, step: Change, patience: _Patience, *, rewrite: bool = False
    ) -> str | None:
        engine, nodes = self._engine, self._engine.multiplexer
        by, number, width = engine.owners.new(), 0, FIRST_WIDTH
        while True:
            # The number says when a value was written. While too few clocks are known it can't say
            # that: such a request only asks, and its replies make the clocks known.
            chosen = _clock.now()
            floor = nodes.fence_floor(chosen)
            if floor < 0:
                # Nothing is written with this number, so nodes met only now may be asked as well.
                chosen = 0.0
            number = max(floor, number + 1)
            promise = max(PROMISE, 4 * engine.settings.node_timeout)
            words: tuple[str | int, ...] = (number, by, ms(promise))
            tally = await self._ask(patience, "prepare", *words, chosen=chosen)
            if len(tally.granted) >= nodes.quorum and floor >= 0:
                found = tally.found()
                value = step(found.value)
                enough = found.everywhere if rewrite else found.agreed
                if value == found.value and enough:
                    return value
                words = (number, by, ms(self.keep), value or "")
                tally = await self._ask(patience, "accept", *words, chosen=chosen)
                if len(tally.granted) >= nodes.quorum:
                    return value
            number = max(number, tally.promised)
            if tally.outage:
                await patience.pause(tally)
            else:
                await patience.step_aside(width * engine.random())
                width = min(LONGEST_WIDTH, width * 2)

    def _tell_again(self) -> None:
        # In the background, because the reader has its answer already.
        work = self.settle(lambda value: value, self._engine.settings.max_ttl, closing=False)
        self._engine.background.spawn(work, f"asynclock: tell {self.name} again")

    async def until(
        self,
        ready: Callable[[str | None], T | None],
        deadline: float | None,
        *,
        longest: float = inf,
        since: float | None = None,
    ) -> T | None:
        """Wait until `ready` returns something other than None for the value, and return that.

        Returns None at the deadline, or after `longest` seconds. Raises the same errors as
        `change`. `since` is the start of a call whose change the nodes have answered already.
        """
        patience = _Patience(self._engine, self.name, deadline, since)
        lookout = Lookout(self._engine, (self.key,))
        end = min(inf if deadline is None else deadline, _clock.now() + longest)
        try:
            while True:
                try:
                    found = ready(await self._read(patience, armed=lookout.begin()))
                except QuorumUnavailableError:
                    # The nodes have answered during this call, and had too little time this time.
                    if patience.cut_short and (lookout.made or since is not None):
                        return None
                    raise
                now = _clock.now()
                if found is not None or now >= end:
                    return found
                await lookout.wait(most=end - now)
                if _clock.now() >= patience.ends_at:
                    return None
        finally:
            lookout.close()

    async def inspect(self, kind: str) -> Inspection:
        """Return what each node stores, as `value` of its view."""
        replies = await ask_all(self._engine, Command(SCRIPT, (self.key,), ("inspect",)))
        nodes = self._engine.multiplexer
        found = [StateView.parse(node.address, replies[i]) for i, node in enumerate(nodes.nodes)]
        views = [NodeView(v.node, None, v.remaining, v.number, v.error, v.value) for v in found]
        return Inspection(self.name, tuple(views), nodes.quorum, kind)

    async def _ask(
        self,
        patience: _Patience,
        op: str,
        *args: str | int,
        chosen: float = 0.0,
        arm: bool = False,
    ) -> Tally:
        # `chosen` is the moment at which the number of a change was chosen.
        engine, nodes = self._engine, self._engine.multiplexer
        if not patience.closing:
            engine.ready()
        now = _clock.now()
        if args:
            not_after = nodes.not_after(now + 2 * engine.settings.node_timeout)
            args = (*args[:3], not_after, *args[3:])
        command = Command(SCRIPT, (self.key,), (op, *args))
        command.numbered_at, command.wakes = chosen, (self.key,) if args else ()
        # Only the replies to these two contain the stored value.
        told = op in ("read", "prepare")
        since = now - validity.quarantine(self.keep) if told else inf
        tally = Tally(engine, self.name, self.key, now, since)
        for index, node in enumerate(nodes.nodes):
            # A node that may have forgotten must not be asked: its "nothing" would count.
            obstacle = node.obstacle(now)
            if obstacle is None:
                node.ask(command, tally, index, arm=arm)
            else:
                tally.on_reply(index, obstacle)
        await patience.wait(tally)
        return tally


class _Patience:
    """Decides how long one call tolerates an outage and when it must end."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        deadline: float | None,
        since: float | None = None,
        *,
        closing: bool = False,
    ) -> None:
        now = _clock.now()
        self.closing: bool = closing
        """Whether the call goes on while the manager is being closed."""
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

    async def wait(self, tally: Tally) -> None:
        """Wait until the vote is decided or the call must end."""
        left = None if self.ends_at == inf else self.ends_at - _clock.now()
        try:
            async with asyncio.timeout(left):
                await tally.decided
        except TimeoutError:
            tally.expire(self._failures)
            self.cut_short = tally.cut_short

    async def step_aside(self, seconds: float) -> None:
        """Let rival changes go first. Raises QuorumUnavailableError if there is no time left."""
        if _clock.now() + seconds >= self.ends_at:
            raise QuorumUnavailableError(
                f"other changes of {self._name!r} got in the way until the timeout",
                name=self._name,
            )
        await asyncio.sleep(seconds)

    async def pause(self, tally: Tally) -> None:
        """Wait before asking again.

        Raises QuorumUnavailableError if the outage lasts too long, ConfigurationError if it would
        never end.
        """
        if tally.hopeless:
            raise refusals.hopeless(tally)
        left = self._until - _clock.now()
        if left <= 0 or (self.ends_at != inf and tally.barred > left):
            raise refusals.outage(tally)
        self._failures = tally.failures
        pause = pacing.without_push(self._number, None, self._engine.random())
        self._number += 1
        await asyncio.sleep(min(pause, left))
