"""Leader election: the mutex, and a value that the leader publishes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from .. import _clock
from .._engine.acquiring import Acquiring, Deferred
from .._engine.engine import Engine
from .._engine.inspection import Inspection, ask_all, inspect
from .._engine.lease import Lease, Terms
from .._engine.recipe import Recipe, ms
from .._engine.refusals import label
from .._nodes.link import NOBODY, Failure
from .._nodes.script import Command, Script
from .._rules import pacing
from .._settings import COUNTER, PART
from ..errors import ConfigurationError
from .base import PRELUDE, UNSET, Timeout, limited
from .lock import SCRIPT as LOCK
from .lock import Lock, lock_key

SCRIPT = Script.load(__package__, PRELUDE, "election.lua")

KEPT = 3
"""A published value outlives so many ttls without its leader, who repeats it once per ttl."""
LONGEST_VALUE = 65_536


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as seen from outside; texts come from the server, never print them raw."""

    name: str
    term: int
    """The number of the term: the fence of the leader's lease."""
    value: str
    """What the leader publishes."""
    owner: str

    @property
    def holder(self) -> str | None:
        """The leader's label."""
        return label(self.owner)


class Term:
    """One term of leadership, as a context manager: leaving it resigns.

    A leader that loses its lease is ended as the body of any lock is: LeaseLostError.
    """

    __slots__ = ("_election", "_sequence", "_timer", "lease", "value")

    def __init__(self, election: Election, lease: Lease, value: str) -> None:
        self.lease = lease
        self.value = value
        """What is published now."""
        self._election = election
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        """When the value is said again."""

    def __repr__(self) -> str:
        return f"<Term {self.number} of {self.lease.name!r} held={self.held}>"

    @property
    def number(self) -> int:
        """Rises with every term: the fence of the lease."""
        return self.lease.fence

    @property
    def held(self) -> bool:
        """Whether we lead at this moment, by our own clock; asks nobody."""
        return self.lease.held

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that leads."""
        return self.lease.task

    async def publish(self, value: str) -> bool:
        """Say something else to observers. → whether a quorum has it now.

        False: too few nodes answered; it is repeated once per ttl while the term lasts. Raises
        LeaseLostError if the term is over.
        """
        if not self.held:
            raise self.lease.loss_error()
        self.value = _checked(value)
        self._sequence += 1
        return await self._election.say(self)

    def _record(self) -> str:
        # What the nodes are told.
        return json.dumps([self.number, self._sequence, self.lease.owner, self.value])

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def resign(self) -> bool:
        """End the term, so that somebody else may lead. → whether we led until now."""
        return await self.lease.release()

    async def __aenter__(self) -> Self:
        await self.lease.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        await self.lease.__aexit__(kind, error, trace)


class Election:
    """At most one leader at a time for its name, whatever fails, on every deployment.

    `campaign` waits until nobody else leads and then leads; the term's number is the fence of its
    lease, so terms rise and a store can refuse what an older leader sends late. After a crash the
    next leader follows within the ttl.
    """

    __slots__ = ("_engine", "_lock", "_recipe", "_terms", "_timeout", "_value_key")

    def __init__(
        self, engine: Engine, prefix: str, name: str, terms: Terms, timeout: float | None
    ) -> None:
        key = f"{lock_key(prefix, name)}{PART}"
        leader = f"{key}leader"
        self._engine = engine
        self._terms = terms
        self._timeout = timeout
        self._value_key = f"{key}value"
        self._recipe = Recipe(
            name, LOCK, (leader, leader + COUNTER), line=leader, watched=(leader,), part="leader"
        )
        self._lock = Lock(engine, self._recipe, terms, timeout)

    def __repr__(self) -> str:
        return f"<Election {self.name!r} ttl={self._terms.ttl:g}>"

    @property
    def name(self) -> str:
        """What is led."""
        return self._recipe.name

    def campaign(self, value: str = "", *, timeout: Timeout = UNSET) -> Acquiring[Term]:
        """Wait to become leader, publishing `value`: `await` it, or enter it with `async with`.

        Waits at most `timeout` seconds and raises as `Lock.acquire` does. Nobody waits for the
        value: observers learn of it a moment later. Cancelled, it leaves nothing behind.
        """
        return Deferred(partial(self._lead, _checked(value), limited(timeout, self._timeout)))

    async def _lead(self, value: str, timeout: float | None) -> Term:
        """What `campaign` does once it is awaited."""
        lease = await self._lock.acquire(timeout=timeout)
        term = Term(self, lease, value)
        lease.on_end(term._stop)
        self._tell(term)
        return term

    def _tell(self, term: Term) -> None:
        # Whoever leads need not wait for it. Repeated for a node that was away or has forgotten.
        if term.held:
            nodes = self._engine.multiplexer
            nodes.broadcast(self._publication(term), NOBODY)
            nodes.wakeups.wake(self._value_key)
            term._timer = asyncio.get_running_loop().call_later(self._terms.ttl, self._tell, term)

    async def say(self, term: Term) -> bool:
        """Put what a leader publishes where it leads. → whether a quorum took it."""
        nodes = self._engine.multiplexer
        replies = await ask_all(self._engine, self._publication(term), enough=nodes.quorum)
        nodes.wakeups.wake(self._value_key)
        took = [r for r in replies.values() if not isinstance(r, Failure) and r[0] == 1]
        return len(took) >= nodes.quorum

    def _publication(self, term: Term) -> Command:
        keys = (self._recipe.keys[0], self._value_key)
        args = ("publish", term.lease.owner, term._record(), ms(KEPT * self._terms.ttl))
        return Command(SCRIPT, keys, args)

    async def leader(self) -> Leader | None:
        """Who leads now, as far as a quorum of nodes can tell; None: nobody, or too few answered.

        Takes at most two node timeouts: the first is for what a new leader has just published.
        """
        until = _clock.now() + self._engine.settings.node_timeout
        while True:
            found, led_for = await self._look()
            if found is not None or led_for is None or _clock.now() >= until:
                return found
            await asyncio.sleep(pacing.FIRST)

    async def observe(self) -> AsyncGenerator[Leader, None]:
        """Every leader and every new value from now on, the present ones first.

        Terms never go back; a short one may be missed. Goes on through outages, and ends only when
        it is closed or the manager is.
        """
        engine, nodes = self._engine, self._engine.multiplexer
        engine.ready()
        watch = nodes.wakeups.watch((self._recipe.keys[0], self._value_key))
        last: Leader | None = None
        try:
            while not engine.closed:
                listening = nodes.tracks()
                leader, left = await self._look(armed=listening)
                if leader is not None and leader != last and leader.term >= (last or leader).term:
                    last = leader
                    yield leader
                elif listening:
                    await watch.wait(pacing.until_expiry(left, engine.random()))
                else:
                    await asyncio.sleep(pacing.LONGEST)
        finally:
            watch.close()

    async def _look(self, *, armed: bool = False) -> tuple[Leader | None, float | None]:
        # → the leader, and for how many seconds it need not be asked about again.
        nodes = self._engine.multiplexer
        if armed:
            nodes.arm(range(len(nodes.nodes)))
        keys = (self._recipe.keys[0], self._value_key, self._recipe.keys[1])
        command = Command(SCRIPT, keys, ("observe",))
        replies = await ask_all(self._engine, command)
        seen = [reply for reply in replies.values() if not isinstance(reply, Failure)]
        owners = Counter(reply[0] for reply in seen if reply[0])
        if not owners or owners.most_common(1)[0][1] < nodes.quorum:
            return None, None
        owner = owners.most_common(1)[0][0].decode("utf-8", "replace")
        left = max(reply[1] for reply in seen) / 1000
        records = [found for reply in seen if (found := _record(reply[3], owner)) is not None]
        if not records:
            return None, pacing.LONGEST
        term, _, value = max(records)
        return Leader(self.name, term, value, owner), left

    async def inspect(self) -> Inspection:
        """Who leads, node by node; takes at most one node timeout."""
        return await inspect(self._engine, self._recipe, "election")


def _checked(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_VALUE:
        raise ConfigurationError(
            f"a leader's value must be a str of at most {LONGEST_VALUE} characters"
        )
    return value


def _record(raw: bytes | None, owner: str) -> tuple[int, int, str] | None:
    # (term, sequence, value) if this leader wrote it; whatever else stands there is ignored.
    try:
        found = json.loads(raw or b"null")
    except ValueError:
        return None
    match found:
        case [int(term), int(sequence), str(writer), str(value)] if writer == owner:
            return term, sequence, value
    return None
