"""One Redis server as the engine sees it: asked, it always answers, with a reply or a Failure.

A node heals by itself: one task keeps a link open, with jittered pauses between attempts. While a
node is known to be down, or its link is stalled, asking it fails at once, so that it never costs
an acquire a full timeout. Releases are different: those that a broken connection may have
swallowed are owed, and sent again as soon as the node is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .. import _clock
from .._rules.trust import Facts, Trust
from ..events import NodeDown, NodeQuarantined, NodeUp, Observers
from .debts import Debts
from .early import Early
from .handshake import HandshakeError
from .heartbeat import Reading, watch
from .link import NOBODY, Failure, Link, Sink
from .script import Command

_log = logging.getLogger("asynclock.nodes")

LONGEST_DIAL = 2.0
"""A frozen server answers the pending connection the moment it thaws: waiting beats redialling."""

WITHOUT = {
    "CLIENT": "waiters ask again at intervals instead of being woken",
    "CONFIG": "it is taken to forget everything when it restarts",
    "INFO": "each new connection is guarded as if it had restarted; its settings are not checked",
    "SCRIPT": "scripts are sent in full when they are first needed",
    "TIME": "its clock is first read from the answer to a script",
}
"""What we assume of a server that refuses a command (docs/access.md)."""
CACHING = Command.plain("CLIENT", "CACHING", "YES")
TIME = Command.plain("TIME")

Dial = Callable[["Node", float], Awaitable[tuple[Link, Facts]]]
"""(node, limit in seconds) → an open link and what the server told."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What all nodes of a manager have in common; times in seconds."""

    node_timeout: float
    max_ttl: float
    restart_guard: bool
    guard_first: bool
    """Whether the restart guard counts on first contact too (not on a single node)."""
    clock_guard: bool


class Node:
    """One endpoint over all its connections."""

    def __init__(
        self, address: str, dial: Dial, settings: NodeSettings, observers: Observers
    ) -> None:
        self.address = address
        self.settings = settings
        self.trust = Trust(settings.max_ttl)
        self.round_trip: float | None = None
        """Smoothed seconds from sending to the reply; None before the first one."""
        self.tracking = False
        """Whether a wake-up can be ordered on the open link."""
        self.on_wake: Callable[[str | None], None] = lambda _key: None
        """Called with a key that changed, or None when all did."""
        self.on_met: Callable[[Node], None] = lambda _node: None
        """Called when a connection is ready, before anything is sent on it."""
        self.on_jump: Callable[[Node, float], None] = lambda _node, _by: None
        """Called with the seconds by which the node's clock jumped."""
        self.random: Callable[[], float] = random.random
        self._dial = dial
        self._observers = observers
        self._link: Link | None = None
        self._down: Failure | None = None
        self._early = Early(settings.node_timeout, self._give_up_early)
        self.debts = Debts(settings.node_timeout, self._send_again)
        """Releases that it may not have got."""
        self._finished = False
        self._reading: tuple[float, float, float] | None = None
        """What the handshake read on the node's clock, until we know which process that is."""
        self.rejected: Failure | None = None
        """Why the node must not be asked at all: the wrong role, or the same server twice."""

    # asked

    def ask(self, command: Command, sink: Sink, index: int) -> None:
        """Send `command`; `sink` gets the answer, perhaps before this returns."""
        link = self._link
        if link is None:
            if self._down is not None:
                sink.cast(index, self._down)
            else:
                self._early.add(command, sink, index)
        elif link.stalled_since:
            sink.cast(index, Failure(f"no answer for {_clock.now() - link.stalled_since:.1f} s"))
        else:
            link.send(command, sink, index)

    def obstacle(self, now: float) -> Failure | None:
        """Why the node has no vote at the moment, or None."""
        if self.rejected is not None:
            return self.rejected
        if now < self.trust.votes_from:
            left = self.trust.votes_from - now
            return Failure(f"{self.trust.cause}: it votes again in {left:.1f} s")
        return None

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release: also to a node that does not answer, and later if it can't be now."""
        if self.debts.zombies:
            self.debts.passing(command)
        if self._link is not None:
            self._link.send(command, sink, index)
        elif self._down is None:
            self._early.add(command, sink, index)
        else:
            self.debts.add((command,))
            sink.cast(index, self._down)

    def _send_again(self, command: Command) -> None:
        self.deliver(command, NOBODY, 0)

    def _give_up_early(self) -> None:
        cause = f"no connection within {self.settings.node_timeout:g} s"
        self._fail(Failure(cause))

    def _fail(self, failure: Failure) -> None:
        self._note_down(failure)
        early = self._early.take()
        self.debts.add(command for command, _, _ in early)
        for _, sink, index in early:
            sink.cast(index, failure)

    def _note_down(self, failure: Failure) -> None:
        if self._down is None or self._down.cause != failure.cause:
            _log.debug("%s: %s", self.address, failure.cause)
            if self._observers:
                self._observers(NodeDown(self.address, failure.cause))
        self._down = failure

    # kept connected

    async def keep(self) -> None:
        """Keep a link open until cancelled: the work of one task."""
        failures = 0
        try:
            while not self._finished:
                limit = min(LONGEST_DIAL, self.settings.node_timeout * 2**failures)
                self._reading = None
                try:
                    link, facts = await self._dial(self, limit)
                except HandshakeError as error:
                    failures = min(failures + 1, 8)
                    self._fail(error.failure)
                    await asyncio.sleep(self._pause(failures))
                    continue
                failures = 0
                self._opened(link, facts)
                await watch(self, link)
        finally:
            if self._link is not None:
                self._link.close("the manager is closed")
            self._fail(Failure("the manager is closed"))

    def _pause(self, failures: int) -> float:
        # Never longer than a node timeout: so long may a key outlive the node's return.
        longest = min(0.01 * float(2**failures), self.settings.node_timeout)
        return longest * (1 + self.random()) / 2

    def _opened(self, link: Link, facts: Facts) -> None:
        now = _clock.now()
        settings = self.settings
        known = self.trust.facts
        self._tell_refused(known, facts)
        waits = self.trust.met(
            facts, now, guard=settings.restart_guard, guard_first=settings.guard_first
        )
        self.rejected = None
        if facts.role not in (None, "master"):
            role = "replica" if facts.role == "slave" else facts.role
            self.rejected = Failure(f"it is a {role}, not a primary", permanent=True)
        self.tracking = facts.tracking
        self.on_met(self)
        if waits:
            self._tell_quarantine(waits)
        self._link, self._down = link, None
        if self._reading is not None:
            self.told(*self._reading)
        if self._observers:
            self._observers(NodeUp(self.address))
        self.debts.pay()
        for command, sink, index in self._early.take():
            if self.rejected is not None:
                sink.cast(index, self.rejected)
            else:
                link.send(command, sink, index)
        if known is not None:
            self.on_wake(None)  # the wake-ups that were ordered died with the last connection

    def check_clock(self) -> None:
        """Ask for the node's clock now, if it answers at all."""
        if self._link is not None and not self._link.stalled_since:
            self._link.send(TIME, Reading(self, _clock.now()), 0)

    @property
    def link(self) -> Link | None:
        """The open link, if there is one."""
        return self._link

    async def finish(self) -> None:
        """Close the link once what is queued has been written; it is not opened again."""
        self._finished = True
        if self._link is not None:
            await self._link.finish()

    # told by its link

    def told(self, clock: float, sent: float, received: float) -> None:
        """A reading of the node's clock, seconds since 1970."""
        if self._link is None:
            # Still in the handshake: the restart guard needs the last reply of the process before.
            self._reading = clock, sent, received
            return
        trip = received - sent
        self.round_trip = trip if self.round_trip is None else 0.9 * self.round_trip + 0.1 * trip
        by = self.trust.sample(clock, sent, received)
        if by < 0:
            self.debts.set_back -= by
        if by and self.settings.clock_guard:
            self._tell_quarantine(self.trust.jumped(received, by))
            self.on_jump(self, by)

    def pushed(self, push: list[Any]) -> None:
        """An invalidation: keys that changed, or None when all did."""
        if not push or push[0] != b"invalidate":
            return
        if push[1] is None:
            if self.settings.restart_guard:
                cause = "its keys were flushed"
                self._tell_quarantine(self.trust.forgot(_clock.now(), cause))
            self.on_wake(None)
            return
        for key in push[1]:
            self.on_wake(key.decode("utf-8", "surrogateescape"))

    def lost(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        """The connection ended: owe the releases it may have swallowed, and dial again."""
        if link is self._link:
            self._link = None
            self.debts.swallowed(unanswered)
            if end.permanent or link.stalled_since:
                self._note_down(end)

    def _tell_refused(self, known: Facts | None, facts: Facts) -> None:
        if known is None or known.refused != facts.refused:
            for command in facts.refused:
                meaning = WITHOUT.get(command, "")
                _log.warning("%s refuses %s: %s", self.address, command, meaning)

    def _tell_quarantine(self, seconds: float) -> None:
        cause = self.trust.cause
        _log.warning("%s %s: it does not vote for %.1f s", self.address, cause, seconds)
        if self._observers:
            self._observers(NodeQuarantined(self.address, cause, seconds))

    # seen

    def state(self, now: float) -> str:
        """ "up", "stalled", "down", "connecting", "quarantined" or "rejected"."""
        if self.rejected is not None:
            return "rejected"
        if self._link is None:
            return "connecting" if self._down is None else "down"
        if self._link.stalled_since:
            return "stalled"
        return "quarantined" if now < self.trust.votes_from else "up"

    def cause(self, now: float) -> str:
        """Why the state is not "up"; "" when it is."""
        obstacle = self.obstacle(now)
        if obstacle is not None:
            return obstacle.cause
        if self._link is None:
            return self._down.cause if self._down is not None else ""
        return "it does not answer in time" if self._link.stalled_since else ""
