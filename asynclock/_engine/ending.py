"""What goes on beside a lease or after it: its release, the next fences, the detached ticket.

By default many fences are reserved at once and ahead of need, so that a hand-over needs no network;
handoff="strict" reserves one at each hand-over (docs/fencing.md, "Handing a lease over").
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

from .. import _clock
from .._nodes.wire import RELEASE, REST, Command, Failure, Word
from ..errors import ConfigurationError
from ..events import GONE
from .context import Context
from .grant import Grant
from .spec import LeaseOptions, LockSpec, from_json, ms, raised, released

_log = logging.getLogger("asynclock")

BLOCK = 1024
"""Number of fences reserved at once; fences then run ahead of the clock by that many µs at most."""
SPARE_FENCES = BLOCK // 4
"""Number of remaining fences below which the next block is reserved."""
UNRELEASED = "a node refuses releases, so locks last for their whole ttl: %s"
UNWOKEN = "a node can't wake who waits for a lock that was released: %s"
WAKE_NOBODY = (1,)
WRONGTYPE = "WRONGTYPE"
"""Code of a failure at a key that another program has written: by then the lock is deleted."""
NOT_DETACHED: Final = "the lease on {!r} can't be detached: only those of lock and fair_lock can"
VERSION: Final = 1
LONGEST: Final = 8192
"""Maximum number of bytes of a detached ticket."""


class Release:
    """One release; it is done once a quorum agrees or every node has answered."""

    __slots__ = (
        "_answered",
        "_context",
        "_deleted",
        "_foreign",
        "_future",
        "_grant",
        "_on_loss",
        "_rest",
        "kept",
        "on_certain",
        "owner",
        "spec",
    )

    def __init__(
        self,
        context: Context,
        grant: Grant,
        on_loss: Callable[[str], None] | None,
        kept: bool,
        rest: float,
    ) -> None:
        self.spec: LockSpec = grant.spec
        self.owner: str = grant.owner
        self.kept: bool = kept
        """Whether the nodes wake nobody, because this process may ask again within its turn."""
        self.on_certain: Callable[[], None] | None = None
        """Called once when the release is done."""
        self._context = context
        self._grant = grant
        self._on_loss = on_loss
        """Called with the reason if the replies show that the lease was lost before."""
        self._rest = rest
        self._answered = self._deleted = self._foreign = 0
        self._future: asyncio.Future[None] | None = None

    def command(self) -> Command:
        """Build the command for this name alone."""
        grant, now = self._grant, _clock.now()
        more: tuple[Word, ...] = WAKE_NOBODY if self.kept else ()
        op = RELEASE
        if self._rest:
            nodes = self._context.multiplexer
            nodes.read_clocks(now)  # the acquire may be long ago
            # The latest end by the nodes' clocks: a late release makes the rest hardly longer.
            op, more = REST, (ms(self._rest), nodes.not_after(now + self._rest))
        command = self.spec.release(self.owner, grant.asked_since, now + grant.ttl, more, op)
        command.wakes = self.spec.watched
        return command

    def agreed(self, nodes: int) -> None:
        """Count a quorum of nodes that have released the name and on which nobody waits."""
        self._deleted += nodes
        self._answered += nodes
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of one node."""
        parsed = released(reply)
        if type(parsed) is Failure:
            if parsed.permanent:
                self._complain(parsed)
        else:
            if parsed.done:
                self._deleted += 1
            else:
                self._foreign += 1
            # A waiter may be ours: servers send no push for changes by our own connection.
            for ticket in self.spec.woken(parsed):
                self._context.multiplexer.wakeups.wake(ticket, index)
        self._answered += 1
        self._settle()

    def _settle(self) -> None:
        if not self._certain():
            return
        if self._on_loss is not None and self._refuted():
            tell_loss, self._on_loss = self._on_loss, None
            tell_loss(GONE)
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)
        if self.on_certain is not None:
            tell, self.on_certain = self.on_certain, None
            tell()

    def _complain(self, failure: Failure) -> None:
        # Not an error, because the lease was ours until now.
        complaints = self._context.complaints
        if failure.cause not in complaints:
            complaints.add(failure.cause)
            _log.warning(UNWOKEN if failure.code == WRONGTYPE else UNRELEASED, failure.cause)

    def _certain(self) -> bool:
        nodes = self._context.multiplexer
        enough = self._deleted >= nodes.quorum or self._answered >= len(nodes.nodes)
        return enough or self._refuted()

    def _refuted(self) -> bool:
        # Whether too many nodes for a quorum had lost the lease before the release.
        nodes = self._context.multiplexer
        return self._foreign > len(nodes.nodes) - nodes.quorum

    def done(self) -> asyncio.Future[None]:
        """Return a future that is done once the outcome is certain, within one node timeout."""
        self._future = asyncio.Future()
        if self._answered and self._certain():
            self._future.set_result(None)
        return self._future


class Reservation:
    """Reserves fences: raises the counter at a quorum and claims all above its previous values."""

    def __init__(self, context: Context, grant: Grant, count: int) -> None:
        self._nodes = nodes = context.multiplexer
        self._sent = _clock.now()
        self._grant = grant
        self._alone = count == 1
        self._previous: list[int] = []
        self._quorum = nodes.quorum
        self._left = len(nodes.nodes)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._m = grant.reserve(count, self._done)
        command = grant.spec.write_back(grant.owner, self._m, context.retention)
        nodes.broadcast(command, self)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        counts = self._nodes.counts(index, self._sent, self._grant.voters)
        parsed = raised(reply)
        if counts and type(parsed) is not Failure and parsed.done:
            self._previous.append(parsed.counter)
            if len(self._previous) == self._quorum:
                self._claim(max(self._previous))
        self._left -= 1
        if not self._left:
            self._finish()

    def _claim(self, highest: int) -> None:
        # Don't start at "our fence + 1": a raise that reached other nodes may have given that fence
        # to another owner (tests/model catches the variant that starts there). In strict mode claim
        # only the last number: lower ones may be older than this hand-over.
        first = self._m if self._alone else highest + 1
        grant = self._grant
        if grant.reserving is self._done and first > max(highest, grant.fence):
            grant.reserved(range(first, self._m + 1))
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
        self._grant.reservation_ended(self._done)


def reserve_ahead(context: Context, grant: Grant) -> None:
    """Reserve a block of fences, as few are left, before a hand-over needs them."""
    if grant.options.handoff is True and grant.reserving is None:
        Reservation(context, grant, BLOCK)


def reserve_now(
    context: Context, grant: Grant, options: LeaseOptions
) -> asyncio.Future[None] | None:
    """Reserve a fence for the next lease on `grant`, if needed; return the future to await."""
    if options.handoff == "strict":
        # Fences that are left or being reserved were requested before this hand-over: too old.
        grant.reserved(range(0))
        Reservation(context, grant, 1)
    elif not grant.fences and grant.reserving is None:
        Reservation(context, grant, BLOCK)
    return None if grant.fences else grant.reserving


class Detached(NamedTuple):
    """What a detached ticket says: VERSION and these fields, as a list in JSON."""

    name: str
    key: str
    """The lock's own key, which tells a fair lock, and the manager's prefix."""
    owner: str
    fence: int
    ttl: float
    at_least: float

    @classmethod
    def ticket_of(cls, grant: Grant) -> bytes:
        """Return the ticket of a lease. Raises ConfigurationError if it can't have one."""
        spec, left = grant.spec, grant.held_since + grant.options.at_least - _clock.now()
        if spec.part or not spec.queue:  # it isn't a whole name, or is several
            raise ConfigurationError(NOT_DETACHED.format(spec.name), name=spec.name)
        lease = grant.owner, grant.fence, grant.ttl, max(0.0, left)
        text = json.dumps([VERSION, *cls(spec.name, spec.keys[0], *lease)])
        if len(text) > LONGEST:
            long = f"the name is too long for a ticket of {LONGEST} bytes: lock its hash"
            raise ConfigurationError(long, name=spec.name)
        return text.encode()

    @classmethod
    def read(cls, ticket: object) -> Self:
        """Return what `ticket` says. Raises ConfigurationError, which doesn't show the ticket."""
        if not isinstance(ticket, bytes):
            raise ConfigurationError("a ticket must be bytes (of a text, pass ticket.encode())")
        match from_json(ticket) if len(ticket) <= LONGEST else None:
            case [form, str(), str(), str(), int(), float(), float()] as found if form == VERSION:
                return cls(*found[1:])
        raise ConfigurationError("this is no ticket that Lease.detach of this version returned")
