"""Leader election: the mutex, and a value that the leader publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import lru_cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import ReferenceType

from ... import _clock, _settings
from ..._engine.acquire import Acquire, AcquireContext, LazyAcquire
from ..._engine.engine import Engine
from ..._engine.inspection import Inspection, Lookout, inspect
from ..._engine.lease import Lease, live, send_message, step_down
from ..._engine.spec import LeaseOptions, LockSpec, label, published
from ..._keys import lock_key
from ..._process import of_one_process
from ..._rules import pacing
from ...errors import ConfigurationError
from ..base import UNSET, Held, Kind, Named, Queue, Timeout, limited
from ..lock import SCRIPT as LOCK

CANDIDATES = Queue(LOCK, "candidates")
LEADER = Held(LOCK, "leader", queue=CANDIDATES.suffix)


async def _trial(on: Engine, name: str, options: LeaseOptions, wait: float) -> None:
    async with Election(on, name, options, wait).campaign() as term:
        await term.publish("doctor")


KIND = Kind("election", (LOCK,), _trial, (LEADER, CANDIDATES))

OnWanted = Literal["resign"] | None
LONGEST_VALUE = 65_536


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader, as an observer sees it. The texts are untrusted: never print them raw."""

    name: str
    term: int
    """The number of the term: the fence of the leader's lease."""
    value: str
    """The value that the leader publishes."""
    owner: str

    @property
    def holder(self) -> str | None:
        """The leader's label, for people to read."""
        return label(self.owner)


@of_one_process
class Term:
    """One term of leadership, as a context manager: leaving it resigns.

    A loss of the lease interrupts the body with LeaseLostError, as with any lock.
    """

    __slots__ = ("__weakref__", "_resigns", "lease", "value")

    def __init__(self, lease: Lease, value: str, *, resigns: bool) -> None:
        self.lease: Lease = lease
        self.value: str = value
        """The value that is published now."""
        self._resigns = resigns

    def __repr__(self) -> str:
        return f"<Term {self.number} of {self.lease.name!r} held={self.held}>"

    @property
    def number(self) -> int:
        """The number of the term, which is the fence of its lease and rises with every term."""
        return self.lease.fence

    @property
    def held(self) -> bool:
        """Whether we lead at this moment by our own clock, without asking the nodes."""
        return self.lease.held

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that leads in an `async with`; None while the term is not entered."""
        return self.lease.task

    async def publish(self, value: str) -> bool:
        """Publish another value to observers; return whether a quorum stores it now.

        If it is False, too few nodes answered; the value is sent again with each renewal. Raises
        LeaseLostError if the term is over.
        """
        live(self.lease)
        self.value = _checked(value)
        (check,) = send_message(self.lease, self.value)
        return await check.decided

    async def resign(self) -> bool:
        """End the term, so that another candidate may lead; return whether we led until now."""
        return await self.lease.release()

    async def __aenter__(self) -> Self:
        await self.lease.__aenter__()
        if self._resigns:
            self.lease.on_wanted(step_down)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None:
        return await self.lease.__aexit__(kind, error, trace)


@lru_cache(maxsize=1024)
def spec(prefix: str, name: str) -> LockSpec:
    """Return the spec of the lock that a leader has."""
    return LEADER.spec(name, lock_key(prefix, name), part=LEADER.suffix)


@_settings.made_by("connect(...).election(name)")
class Election(Named):
    """At most one leader at a time for its name, whatever fails, on every deployment.

    `campaign` waits until no other candidate leads, and then leads. The term's number is the fence
    of its lease, so terms rise and a store can reject late writes of an earlier leader. After a
    crash the next leader follows within the ttl.
    """

    __slots__ = ()

    def __init__(
        self, engine: Engine, name: str, options: LeaseOptions, timeout: float | None
    ) -> None:
        what = spec(engine.settings.prefix, _settings.name(name, "an election's name"))
        super().__init__(engine, what, options, timeout)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __aenter__ = __aexit__ = _settings.instead(
            "`async with election.campaign()`"
        )

    def campaign(
        self, value: str = "", *, timeout: Timeout = UNSET, on_wanted: OnWanted = None
    ) -> AcquireContext[Term]:
        """Wait to become leader, publishing `value`: `await` it, or enter it with `async with`.

        With `on_wanted="resign"`, `LockManager.ask_back` ends the body of the `async with`, as a
        cancellation does while this process still leads; then the term ends without an error.

        Waits at most `timeout` seconds and raises the same errors as `Lock.acquire`. The call
        doesn't wait until the value is stored: observers see it a moment later. After a
        cancellation nothing is held.
        """
        if on_wanted not in (None, "resign"):
            raise ConfigurationError(f'on_wanted must be "resign" or None, not {on_wanted!r}')
        limit = limited(timeout, self._timeout)
        lead = partial(self._lead, _checked(value), on_wanted == "resign", limit)
        return LazyAcquire(self.name, lead)

    async def _lead(self, value: str, resigns: bool, timeout: float | None, since: float) -> Term:
        """Do the work of `campaign` when it is awaited."""
        lease = await Acquire(self._engine, self._spec, self._options, timeout, since=since)
        term = Term(lease, value, resigns=resigns)
        # When the tick ends: a term that is over by then needs no request, and a request now would
        # cut the batch of this tick short.
        asyncio.get_running_loop().call_soon(_announce, ReferenceType(term))
        return term

    async def leader(self) -> Leader | None:
        """Return the leader that a quorum names; None without one, or if too few nodes answered.

        Takes at most two node timeouts: a new leader's value may still be on its way.
        """
        until = _clock.now() + self._engine.settings.node_timeout
        while True:
            found, led_for = await self._look()
            if found is not None or led_for is None or _clock.now() >= until:
                return found
            await asyncio.sleep(pacing.FIRST_PAUSE)

    async def observe(self) -> AsyncGenerator[Leader, None]:
        """Yield the present leader, and from then on each new leader and each new value.

        Terms never go back; a short term may be missed. The iteration continues through outages.
        It ends only when it is closed or the manager is closed.
        """
        self._engine.ready()
        lookout = Lookout(self._engine, (self._spec.keys[0], *self._spec.read_beside().keys))
        last: Leader | None = None
        try:
            while not self._engine.closed:
                leader, left = await self._look(armed=lookout.begin())
                if leader is not None and leader != last and leader.term >= (last or leader).term:
                    last = leader
                    yield leader
                else:
                    await lookout.wait(left)
        finally:
            lookout.close()

    async def _look(self, *, armed: bool = False) -> tuple[Leader | None, float | None]:
        # Returns the leader, and the seconds for which there is no need to ask again.
        found = await inspect(self._engine, self._spec, KIND.name, (), arm=armed)
        if found.owner is None:
            return None, None
        value = published((view.raw_message for view in found.nodes), found.owner)
        if value is None:
            return None, pacing.LONGEST_PAUSE
        return Leader(self.name, *value, found.owner), found.remaining

    async def inspect(self) -> Inspection:
        """Return the leader's id, node by node; takes at most one node timeout."""
        return await inspect(self._engine, self._spec, KIND.name)


def _announce(reference: ReferenceType[Term]) -> None:
    # The leader need not wait for the replies. The weak reference lets us notice that the program
    # has dropped the term.
    term = reference()
    if term is not None and term.held:
        send_message(term.lease, term.value)


def _checked(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_VALUE:
        raise ConfigurationError(
            f"a leader's value must be a str of at most {LONGEST_VALUE} characters"
        )
    return value
