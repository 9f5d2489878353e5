"""What all locks of one manager share, and the few things that are done to a lease.

One engine for all primitives and deployments: it knows recipes and nodes, never a kind of lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _clock
from .._background import Background
from .._nodes.link import Failure
from .._nodes.multiplexer import Multiplexer
from .._rules.pacing import Spread
from ..errors import ConfigurationError, QuorumUnavailableError
from ..events import Lost, Observers, Released, Renewed
from .lease import Holding, Lease, Terms
from .release import Release
from .renewal import Renewals
from .waiting import SPARE, Ask, Line, reserve_ahead

if TYPE_CHECKING:
    from .attempt import Attempt
    from .search import Search

_log = logging.getLogger("asynclock")

RETENTION = 24 * 3600.0
"""Seconds a fence counter outlives its last use: long enough for any late write, no longer."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine needs to know; seconds."""

    node_timeout: float
    max_ttl: float
    label: str


@dataclass(slots=True)
class Counts:
    """What has happened since the manager was made."""

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
    """The nodes, the renewals, the lines and the counts of one manager."""

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
        self.counts = Counts()
        self.lines: dict[str, Line] = {}
        self.spread = Spread()
        self.random: Callable[[], float] = random.Random().random
        self.entropy: Callable[[int], bytes] = os.urandom
        self.retention = int(max(RETENTION, 10 * settings.max_ttl) * 1000)
        self.renewals = Renewals(multiplexer, self.retention, self.lose, self._renewed)
        self.closed = False
        self.ready = multiplexer.ready
        """Called before anything is asked. Raises ConfigurationError if it can't work, and once
        we are closed. The nodes' own method, because each acquire calls it."""
        self.searching = 0
        """Tasks that ask the nodes for a lock now."""
        self.refused: set[Search] = set()
        """Those of them who were told that others have it."""
        self.deciding: dict[Attempt, None] = {}
        """Votes that are under way; in order, for the sake of simulations."""
        self.complaints: set[str] = set()
        """Why nodes have refused releases; each is told once."""
        self._suffix = f":{settings.label}"
        multiplexer.on_stood_still = self.renewals.shorten

    def new_owner(self) -> str:
        """128 random bits, made before the first byte is sent, and our label for people."""
        return self.entropy(16).hex() + self._suffix

    # a lease begins

    def grant(
        self,
        holding: Holding,
        fence: int,
        terms: Terms,
        task: asyncio.Task[Any] | None,
        now: float,
    ) -> Lease:
        """Make the lease of whoever holds `holding` from `now` on."""
        holding.fence = fence
        self.counts.acquired += 1
        few = holding.last_fence - fence < SPARE
        if few and holding.line is not None and len(holding.line):
            reserve_ahead(self, holding, terms)
        return Lease(self, holding, fence, terms, task, now)

    # a lease goes on

    async def extend(self, lease: Lease, holding: Holding, ttl: float | None) -> None:
        """Renew now. Raises LeaseLostError or QuorumUnavailableError."""
        before = holding.valid_until
        failures = await self.stretch(holding, holding.ttl if ttl is None else ttl)
        if not lease.held:
            raise lease.loss_error()
        if holding.valid_until == before:
            nodes = self.multiplexer.nodes
            raise QuorumUnavailableError(
                f"too few nodes answered to extend {lease.name!r}",
                name=lease.name,
                nodes={nodes[i].address: failure.cause for i, failure in failures.items()},
            )

    def stretch(self, holding: Holding, ttl: float) -> asyncio.Future[dict[int, Failure]]:
        """Extend at once. → what failed, once a quorum has answered."""
        done: asyncio.Future[dict[int, Failure]] = asyncio.get_running_loop().create_future()

        def finish(failures: dict[int, Failure]) -> None:
            if not done.done():
                done.set_result(failures)

        self.renewals.extend((holding,), ttl, finish)
        return done

    def _renewed(self, holding: Holding) -> None:
        self.counts.renewed += 1
        if self.observers and holding.lease is not None:
            left = holding.valid_until - _clock.now()
            self.observers(Renewed(holding.recipe.name, holding.owner, holding.fence, left))

    # a lease ends

    def let_go(self, lease: Lease, holding: Holding, now: float) -> Release | None:
        """End `lease`. → the release that is on its way, or None: the next in line has it."""
        if self.observers:
            left = max(0.0, holding.valid_until - now)
            self.observers(
                Released(lease.name, lease.owner, lease.fence, now - lease.acquired_at, left)
            )
        lease.ended(None)
        holding.lease = None
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
        """The nodes say at the release that it was no longer ours."""
        lease.lost_reason = "the nodes no longer held it for us when it was released"
        self._report_loss(holding, lease, lease.lost_reason)

    def give_back(self, holding: Holding) -> Release:
        """Tell all nodes to release; on its way when this returns."""
        self.renewals.remove(holding)
        holding.valid_until = 0.0
        if holding.line is not None:
            holding.line.drop(holding)
        nodes = self.multiplexer
        recipe = holding.recipe
        release = Release(len(nodes.nodes), nodes.quorum, self.complaints)
        command = recipe.release(holding.owner, _clock.now() + holding.ttl)
        nodes.deliver(command, release, nodes.everyone)
        for key in recipe.watched if recipe.wakes is None else recipe.wakes:
            nodes.wakeups.wake(key)  # servers don't tell us what our own connection changed
        return release

    def next_in_line(self, line: Line, *, yielding: bool = False) -> None:
        """Let the next one ask if nobody does and there is room; forget a line nobody needs."""
        if yielding:
            line.since, line.handed, line.yielded = 0.0, 0, _clock.now()
        if line.asking or line.full:
            return
        if line.let_ask(Ask.YIELDING if yielding else Ask.NOW):
            line.asking += 1
        elif not line.holdings and self.lines.get(line.key) is line:
            del self.lines[line.key]

    def lose(self, holding: Holding, reason: str) -> None:
        """It is no longer ours: end the body, tell once, let the next in line ask."""
        if holding.lost_reason is not None:
            return
        holding.lost_reason = reason
        lease, holding.lease = holding.lease, None
        line = holding.line
        self.give_back(holding)  # nodes that still keep it for us should not
        if lease is not None:
            lease.ended(reason)
            self._report_loss(holding, lease, reason)
        if line is not None and lease is not None:
            self.next_in_line(line)

    def _report_loss(self, holding: Holding, lease: Lease, reason: str) -> None:
        self.counts.lost += 1
        now = _clock.now()
        held = now - lease.acquired_at
        causes = ((node.address, node.cause(now)) for node in self.multiplexer.nodes)
        _log.error(
            "lost the lease on %r (fence %d) after %.3f s: %s%s",
            holding.recipe.name,
            lease.fence,
            held,
            reason,
            "".join(f"; {address}: {cause}" for address, cause in causes if cause),
        )
        if self.observers:
            self.observers(Lost(lease.name, lease.owner, lease.fence, reason, held))

    def close(self) -> None:
        """Give back what is held; after that nothing more is done."""
        if self.closed:
            return
        self.closed, self.ready = True, _refuse
        for holding in self.renewals.holdings():
            if holding.lease is not None:
                self.lose(holding, "the manager was closed")
            else:
                self.give_back(holding)
        for attempt in self.deciding:
            attempt.abandon()  # later, no connection would be left to send the release
        self.deciding.clear()
        self.renewals.close()
        self.multiplexer.wakeups.wake(None)


def _refuse() -> None:
    raise ConfigurationError("this manager is closed")
