"""The state that all locks of one manager share, and the operations on a lease.

There is one engine for all primitives and deployments. It knows recipes and nodes, but no kind of
lock in particular.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _clock, _forks
from .._background import Background, wait_out
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._rules.pacing import Spread
from ..errors import ConfigurationError, QuorumUnavailableError
from ..events import Lost, Observers, Released, Renewed
from .lease import Holding, Lease, LeaseReference, Terms
from .recipe import QueueKey, Recipe
from .release import Release
from .renewal import Renewals
from .waiting import SPARE, Ask, Line, reserve_ahead

if TYPE_CHECKING:
    from .attempt import Attempt
    from .search import Search

_log = logging.getLogger("asynclock")

NAMES_LOGGED = 10
"""Maximum number of names in one log record."""
RETENTION = 24 * 3600.0
"""Seconds a fence counter outlives its last use: long enough for any late write, no longer."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one manager; times in seconds."""

    node_timeout: float
    max_ttl: float
    label: str | None
    """The readable part of owner ids; None stands for the host name and the process id."""


@dataclass(slots=True)
class Counts:
    """Numbers of what has happened since the manager was made."""

    acquired: int = 0
    released: int = 0
    lost: int = 0
    renewed: int = 0
    attempts: int = 0
    refused: int = 0
    split_votes: int = 0
    write_backs: int = 0
    handovers: int = 0
    wakeups: dict[str, int] = field(
        default_factory=lambda: {"push": 0, "expiry": 0, "pacing": 0, "turn": 0}
    )


class Engine:
    """The nodes, the renewals, the local queues and the counts of one manager."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        background: Background,
        settings: EngineSettings,
        observers: Observers,
    ) -> None:
        self.multiplexer = multiplexer
        self.background = background
        self.settings = settings
        self.observers = observers
        self.counts: Counts = Counts()
        self.lines: dict[QueueKey, Line] = {}
        self.spread: Spread = Spread()
        self._generator = random.Random()
        self.random: Callable[[], float] = self._generator.random
        self.entropy: Callable[[int], bytes] = os.urandom
        self.retention: int = int(max(RETENTION, 10 * settings.max_ttl) * 1000)
        self.renewals: Renewals = Renewals(multiplexer, self.retention, self.lose, self._renewed)
        self.closed: bool = False
        self.ready: Callable[[], None] = multiplexer.ready
        """Called before each request. Raises ConfigurationError if no request can succeed, or if
        the manager is closed. This is the nodes' own method, to keep each acquire fast."""
        self.searching = 0
        """Number of tasks that are asking the nodes for a lock."""
        self.refused: set[Search] = set()
        """The searches of those tasks to which the nodes replied that others have the lock."""
        self.deciding: dict[Attempt, None] = {}
        """Votes that are under way; a dict keeps their order, so that simulations repeat."""
        self.complaints: set[str] = set()
        """Causes of refused releases that were logged; each is logged once."""
        self._suffix = _suffix(settings.label)
        self.inherited: bool = False
        """Whether the connections belong to the process that this one was forked from."""
        self._closing: asyncio.Task[None] | None = None
        _forks.tell_child(self)
        self.on_drop: Callable[[LeaseReference], None] = self._dropped
        """Called with the reference to a lease that was garbage-collected without a release."""
        multiplexer.on_stood_still = self.renewals.shorten

    def new_owner(self) -> str:
        """Return a new owner id: 128 random bits, and the manager's label for people to read."""
        return self.entropy(16).hex() + self._suffix

    # a lease begins

    def grant(
        self,
        holding: Holding,
        fence: int,
        terms: Terms,
        now: float,
    ) -> Lease:
        """Make the lease through which a task holds `holding` from `now` on."""
        holding.fence = fence
        holding.since = now
        self.counts.acquired += 1
        few = holding.last_fence - fence < SPARE
        if few and holding.line is not None and len(holding.line):
            reserve_ahead(self, holding, terms)
        return Lease(self, holding, fence, terms, now)

    # a lease goes on

    async def extend(self, lease: Lease, holding: Holding, ttl: float | None) -> None:
        """Renew the lease now. Raises LeaseLostError or QuorumUnavailableError."""
        failures = await self.stretch(holding, ttl)
        if not lease.held:
            raise lease.loss_error()
        if failures is not None:
            nodes = self.multiplexer.nodes
            raise QuorumUnavailableError(
                f"too few nodes answered to extend {lease.name!r}",
                name=lease.name,
                nodes={nodes[i].address: failure.cause for i, failure in failures.items()},
            )

    def stretch(
        self, holding: Holding, ttl: float | None = None
    ) -> asyncio.Future[dict[int, Failure] | None]:
        """Ask all nodes to extend `holding` now, to the ttl that it has or to another one.

        The future's result is None once a quorum has extended, otherwise the failures by node.
        """
        done = asyncio.get_running_loop().create_future()

        def finish(failures: dict[int, Failure] | None) -> None:
            if not done.done():
                done.set_result(failures)

        self.renewals.extend_one(holding, ttl, finish)
        return done

    def _renewed(self, holding: Holding) -> None:
        self.counts.renewed += 1
        if self.observers and holding.reference is not None:
            left = holding.valid_until - _clock.now()
            self.observers(Renewed(holding.recipe.name, holding.owner, holding.fence, left))

    # a lease ends

    def let_go(self, lease: Lease, holding: Holding, now: float) -> Release | None:
        """End `lease`. Return the release that was sent, or None if the next waiter took over."""
        if self.observers:
            left = max(0.0, holding.valid_until - now)
            self.observers(
                Released(lease.name, lease.owner, lease.fence, now - lease.acquired_at, left)
            )
        lease.ended(None)
        holding.reference = None
        self.counts.released += 1
        line = holding.line
        if line is None:
            return self.give_back(holding)
        if line.hand_on(holding, lease.terms, now):
            return None
        release = self.give_back(holding)
        self.next_in_line(line, yielding=line.used_up(now))
        return release

    def lost_before(self, lease: Lease, holding: Holding) -> None:
        """Report a loss that the nodes' replies to the release revealed."""
        lease.lost_reason = "the nodes no longer held it for us when it was released"
        self._report_loss(holding, lease.lost_reason)

    def give_back(self, holding: Holding) -> Release:
        """Send a release to all nodes; it has been sent when this returns."""
        self.renewals.remove(holding)
        holding.valid_until = 0.0
        if holding.line is not None:
            holding.line.drop(holding)
        nodes = self.multiplexer
        recipe = holding.recipe
        release = Release(len(nodes.nodes), nodes.quorum, self.complaints)
        command = recipe.release(holding.owner, holding.asked_since, _clock.now() + holding.ttl)
        nodes.deliver(command, release, nodes.everyone)
        for key in recipe.watched if recipe.wakes is None else recipe.wakes:
            nodes.wakeups.wake(key)  # servers send no push for changes by our own connection
        return release

    def next_in_line(self, line: Line, *, yielding: bool = False) -> None:
        """Let the next waiter ask, unless a task asks or all is held; drop the queue if unused."""
        if yielding:
            line.since, line.handed, line.yielded = 0.0, 0, _clock.now()
        if line.asking or line.full:
            return
        if line.let_ask(Ask.YIELDING if yielding else Ask.NOW):
            line.asking += 1
        elif not line.holdings and self.lines.get(line.key) is line:
            del self.lines[line.key]

    def lose(self, holding: Holding, reason: str) -> None:
        """Mark `holding` as lost: interrupt the body, report it once, let the next waiter ask."""
        if holding.lost_reason is not None:
            return
        holding.lost_reason = reason
        lease, was_held, line = holding.lease, holding.reference is not None, holding.line
        holding.reference = None
        self.give_back(holding)  # for the nodes that still keep it for us
        if lease is not None:
            lease.ended(reason)
        if was_held:
            self._report_loss(holding, reason)
            if line is not None:
                self.next_in_line(line)

    def _dropped(self, reference: LeaseReference) -> None:
        for holding in self.renewals.holdings():
            if holding.reference is reference and not self.closed:
                self.soon(partial(self._abandon, holding))
                warnings.warn(
                    f"the lease on {holding.recipe.name!r} (fence {holding.fence}) was dropped "
                    "without being released: it is no longer renewed and ends with its ttl",
                    ResourceWarning,
                    stacklevel=2,
                )

    @staticmethod
    def _abandon(holding: Holding) -> None:
        # No release is sent: the code that dropped the lease may still use what the lock protects.
        holding.renew_until = 0.0

    def soon(self, act: Callable[[], None]) -> None:
        """Call `act` in the manager's loop, unless that loop is closed.

        The garbage collector may call this in any thread and in the middle of any of our functions.
        """
        if self.multiplexer.loop is not None:
            with contextlib.suppress(RuntimeError):
                self.multiplexer.loop.call_soon_threadsafe(act)

    def shares(self, recipe: Recipe, task: asyncio.Task[Any] | None) -> bool:
        """Whether `task` shares (as a reader does) the name that `recipe` wants to have alone."""
        return any(
            holding.recipe.keys[0] == recipe.shared and lease.inside(task)
            for holding in self.renewals.holdings()
            if (lease := holding.lease) is not None
        )

    def _report_loss(self, holding: Holding, reason: str) -> None:
        self.counts.lost += 1
        now = _clock.now()
        held = now - holding.since
        if not self.closed:  # `close` logs one line for all of them
            causes = ((node.address, node.cause(now)) for node in self.multiplexer.nodes)
            _log.error(
                "lost the lease on %r (fence %d) after %.3f s: %s%s",
                holding.recipe.name,
                holding.fence,
                held,
                reason,
                "".join(f"; {address}: {cause}" for address, cause in causes if cause),
                extra={
                    "asynclock_name": holding.recipe.name,
                    "asynclock_fence": holding.fence,
                    "asynclock_reason": reason,
                    "asynclock_held": held,
                },
            )
        if self.observers:
            self.observers(Lost(holding.recipe.name, holding.owner, holding.fence, reason, held))

    def close(self) -> None:
        """Release all leases and refuse every later call; sends, but waits for no reply."""
        if self.closed:
            return
        self.closed, self.ready = True, _refuse
        cut_off: list[str] = []
        for holding in self.renewals.holdings():
            if holding.reference is not None:
                cut_off.append(holding.recipe.name)
                self.lose(holding, "the manager was closed")
            else:
                self.give_back(holding)
        if cut_off:
            _log.warning(
                "the manager was closed, which ends %d held lease%s: %s",
                len(cut_off),
                "s" if len(cut_off) > 1 else "",
                ", ".join(map(repr, cut_off[:NAMES_LOGGED]))
                + ", …" * (len(cut_off) > NAMES_LOGGED),
                extra={"asynclock_names": tuple(cut_off)},
            )
        for attempt in self.deciding:
            attempt.abandon()  # now, because later no connection is left to send the release
        self.deciding.clear()
        self.renewals.close()
        self.multiplexer.wakeups.wake(None)

    def forked(self) -> None:
        """In a forked child: renew the label and the random seed; hold and send nothing."""
        self._generator.seed()
        self._suffix = _suffix(self.settings.label)
        if self.multiplexer.started:
            self.inherited = self.closed = True
            self.ready = _refuse_inherited
            self.renewals.forked()
            self.deciding.clear()

    async def aclose(self) -> None:
        """Close, and wait until all work has ended; a cancellation takes effect after that."""
        if self.inherited:
            return
        self.multiplexer.check_loop()
        self.close()
        if self._closing is None:
            self._closing = self.background.spawn(self._finish(), "asynclock: close")
        await wait_out(self._closing)

    async def _finish(self) -> None:
        try:
            await self.multiplexer.finish()
        finally:
            await self.background.aclose()
            # Connections that were still being opened have been aborted. Their sockets close in the
            # next rounds of the loop, so give it some: the program may stop the loop after this.
            for _ in range(3):
                await asyncio.sleep(0)


def _suffix(label: str | None) -> str:
    return f":{socket.gethostname()}:{os.getpid()}" if label is None else f":{label}"


def _refuse_inherited() -> None:
    raise ConfigurationError(
        "this manager was used before this process was forked and belongs to the parent process: "
        "make one with connect() in each process, after the fork"
    )


def _refuse() -> None:
    raise ConfigurationError("this manager is closed")
