"""One Redis server as the engine sees it: each request gets a reply or a Failure.

A node reconnects by itself: one task keeps a link open, with random pauses between attempts. While
a node is known to be down, or its link is stalled, requests fail at once, so that the node never
costs an acquire a full timeout. Releases are different: a release that may have been lost with a
connection is kept, and sent again as soon as the node is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from .. import _clock, _forks
from .._rules.trust import Facts, Trust
from ..events import NodeDown, NodeQuarantined, NodeUp, Observers
from .backlog import ConnectBacklog
from .handshake import why_unready
from .heartbeat import Reading, leave_replica, watch
from .link import Link
from .node import NOT_AFTER_GRACE, Node, NodeLink, NodeSettings
from .node_log import NodeLog
from .pending_releases import PendingReleases
from .replies import NOBODY, NOT_REDIS, READONLY, Failure, Sink
from .script import Command

_log = logging.getLogger("asynclock.nodes")

LEFT: Final = "the manager no longer uses it"
FORGOT: Final = Failure("it has forgotten its keys since this change began")
LONGEST_DIAL = 2.0
"""Maximum seconds for a connection attempt. A frozen server answers a pending attempt as soon as it
resumes, so waiting is better than a new attempt."""
WITHOUT = {
    "CLIENT": "waiters ask again at intervals instead of being woken",
    "CONFIG": "it is assumed to forget everything when it restarts",
    "INFO": "each new connection is guarded as if it had restarted; its settings are not checked",
    "SCRIPT": "scripts are sent in full when they are first needed",
    "TIME": "its clock is first read from the answer to a script",
}
"""What follows if a server refuses a command (docs/access.md)."""
INHERITED = Failure("its connection belongs to the process that forked this one")
CACHING = Command.plain("CLIENT", "CACHING", "YES")
"""Requests a push for the keys that the next command on the connection reads."""
TIME = Command.plain("TIME")

Dial = Callable[["ServerNode", float], Awaitable[tuple[NodeLink, Facts]]]
"""Takes the node and a limit in seconds; returns an open link and the server's facts."""


class ServerNode:
    """One endpoint and its connections, of which at most one is open."""

    def __init__(
        self, address: str, dial: Dial, settings: NodeSettings, observers: Observers
    ) -> None:
        self.address = address
        self.settings = settings
        self.trust = Trust(settings.max_ttl)
        self._log = NodeLog(address, self.trust)
        self.round_trip: float | None = None
        """Smoothed seconds from a request to its reply; None before the first one."""
        self.tracking = False
        """Whether the open link supports pushes for changed keys."""
        self.on_wake: Callable[[str | None], None] = lambda _key: None
        self.on_connect: Callable[[Node], None] = lambda _node: None
        self.on_jump: Callable[[Node, float], None] = lambda _node, _by: None
        self.random: Callable[[], float] = random.random
        self._dial = dial
        self._observers = observers
        self._link: NodeLink | None = None
        self._down: Failure | None = None
        self._backlog = ConnectBacklog(settings.node_timeout, self._give_up_connecting)
        self.pending = PendingReleases(settings.node_timeout, self._send_again)
        """Releases that the node may not have executed."""
        self._asked_until = _clock.now()
        """When the last connection that took requests ended; leases requested later aren't here."""
        self._finished = False
        self._reading: tuple[float, float, float] | None = None
        """The clock reading of the handshake, kept until the node's process is known."""
        self.rejected: Failure | None = None
        """Why the node must not be used at all: the wrong role, or the same server twice."""

    # requests

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        """Send `command`; `sink` gets the answer; see `Node.ask`."""
        if arm and self.tracking:
            self.ask(CACHING, NOBODY, index)
        link = self._link
        if link is None:
            if self._down is not None:
                sink.on_reply(index, self._down)
            else:
                self._backlog.add(command, sink, index)
        elif link.stalled_since:
            seconds = _clock.now() - link.stalled_since
            sink.on_reply(index, Failure(f"no answer for {seconds:.1f} s"))
        elif self._forgot_since(command):
            sink.on_reply(index, FORGOT)
        else:
            link.send(self._bounded(command) if command.give_up_at else command, sink, index)

    def _forgot_since(self, command: Command) -> bool:
        # Before it forgot, the node may have promised a higher number or accepted a newer value,
        # which this command would replace.
        return 0.0 < command.numbered_at < self.trust.remembers_from

    def _bounded(self, command: Command) -> Command:
        # A manager's first acquires are made before it knows the nodes' clocks. Unbounded, one
        # that its connection outlives would lock a name long after its release was executed.
        offset = self.trust.offset
        if not command.give_up_at or offset is None:
            return command
        moment = command.give_up_at + NOT_AFTER_GRACE + offset
        return command.not_after(int(moment * 1_000_000))

    def obstacle(self, now: float) -> Failure | None:
        """Return why the node has no vote at the moment, or None if it has one."""
        if self.rejected is not None:
            return self.rejected
        if now < self.trust.votes_from:
            left = self.trust.votes_from - now
            return Failure(f"{self.trust.cause}: it votes again in {left:.1f} s")
        return None

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release, even to a node that does not answer; keep it if there is no link."""
        if self._link is not None:
            if self.pending.late_acquires:
                self.pending.sent(command)
            self._link.send(command, sink, index)
        elif self._down is None:
            self._backlog.add(command, sink, index)
        else:
            self._keep(command)
            sink.on_reply(index, self._down)

    def _keep(self, command: Command) -> None:
        if self._may_hold(command):
            self.pending.keep(command)

    def _may_hold(self, command: Command) -> bool:
        # Whether this releases a lease that may have been requested on an earlier connection.
        return bool(command.retry_until) and command.asked_since <= self._asked_until

    def _send_again(self, command: Command, sink: Sink) -> None:
        if self._link is not None:
            self._link.send(command, sink, 0)

    def _give_up_connecting(self) -> None:
        cause = f"no connection within {self.settings.node_timeout:g} s"
        self._fail(Failure(cause))

    def _fail(self, failure: Failure) -> None:
        self._note_down(failure)
        waiting = self._backlog.take()
        for command, sink, index in waiting:
            self._keep(command)
            sink.on_reply(index, failure)

    def _note_down(self, failure: Failure) -> None:
        if not self._finished and (self._down is None or self._down.cause != failure.cause):
            self._log.down(failure.cause)
            if self._observers:
                self._observers(NodeDown(self.address, failure.cause))
        self._down = failure

    # the connection

    async def keep(self) -> None:
        """Keep a link open until cancelled; run this in one task."""
        failures = rejections = 0
        _forks.tell_child(self)
        try:
            while not self._finished:
                limit = min(LONGEST_DIAL, self.settings.node_timeout * 2**failures)
                self._reading = None
                try:
                    link, facts = await self._dial(self, limit)
                except Exception as error:  # keep trying, whatever a server replies
                    failures = min(failures + 1, 8)
                    self._fail(self._hopeful(why_unready(error)))
                    await asyncio.sleep(self._pause(failures))
                    continue
                failures = 0
                self._opened(link, facts)
                rejections = rejections + 1 if facts.replica else 0
                await (leave_replica(self, link, rejections) if rejections else watch(self, link))
        finally:
            if self._link is not None:
                self._link.close(LEFT)
            self._finished = True  # don't report from here on that the node is down
            self._log.close()
            self._fail(Failure(LEFT))

    def _hopeful(self, failure: Failure) -> Failure:
        # A server (or the proxy in front of it) that has spoken Redis before will do so again.
        passing = failure.code == NOT_REDIS and self.trust.facts is not None
        return replace(failure, permanent=False) if passing else failure

    def _pause(self, failures: int) -> float:
        # At most a node timeout, because a key may outlive the node's return by this pause.
        longest = min(0.01 * float(2**failures), self.settings.node_timeout)
        return longest * (1 + self.random()) / 2

    def _opened(self, link: NodeLink, facts: Facts) -> None:
        now = _clock.now()
        settings = self.settings
        known = self.trust.facts
        self._tell_refused(known, facts)
        waits = self.trust.met(
            facts, now, guard=settings.restart_guard, guard_first=settings.guard_first
        )
        self.rejected = None
        if facts.replica:
            role = "replica" if facts.role == "slave" else facts.role
            self.rejected = Failure(f"it is a {role}, not a primary", permanent=True)
        self.tracking = facts.tracking
        self.on_connect(self)
        accepted = self.rejected is None
        if waits and accepted:
            self._tell_quarantine(waits)
        self._link, self._down = link, None
        if self._reading is not None:
            self.on_clock(*self._reading)
        if accepted:
            self._log.up()
            if self._observers:
                self._observers(NodeUp(self.address))
        self.pending.resend()
        for command, sink, index in self._backlog.take():
            if self.rejected is not None:
                sink.on_reply(index, self.rejected)
            elif self._forgot_since(command):
                sink.on_reply(index, FORGOT)
            else:
                self.pending.sent(command)
                link.send(self._bounded(command), sink, index)
        if known is not None and accepted:
            self.on_wake(None)  # the pushes that were requested on the last connection are lost

    def check_clock(self) -> None:
        """Ask for the node's clock now, unless the link is down or stalled."""
        if self._link is not None and not self._link.stalled_since:
            self._link.send(TIME, Reading(self.on_clock, _clock.now()), 0)

    @property
    def link(self) -> NodeLink | None:
        """The open link, or None."""
        return self._link

    def forked(self) -> None:
        """In a forked child: never dial again."""
        self._finished = True
        self._link = None
        self._down = INHERITED

    @property
    def settled(self) -> bool:
        """Whether the node has answered every release that it must get."""
        if len(self.pending) or any(map(self._may_hold, self._backlog)):
            return False
        return self._link is None or not self._link.releasing

    async def settle(self) -> None:
        """Wait until the node has executed all releases; the caller must limit the time."""
        while not self.settled:
            await self._backlog.wait_taken()
            await self.pending.wait_sent()
            if self._link is not None:
                await self._link.ask(TIME)  # answered after everything before it
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Close the link for good once all queued commands have been written."""
        self._finished = True
        if self._link is not None:
            await self._link.finish()

    # called by its link

    def on_clock(self, clock: float, sent: float, received: float) -> None:
        """Take a reading of the node's clock, in seconds since 1970."""
        if self._link is None:
            # During the handshake the restart guard still needs the previous process's last reply.
            self._reading = clock, sent, received
            return
        trip = received - sent
        self.round_trip = trip if self.round_trip is None else 0.9 * self.round_trip + 0.1 * trip
        by = self.trust.sample(clock, sent, received)
        if by < 0:
            self.pending.set_back -= by
        if by and self.settings.clock_guard:
            self._tell_quarantine(self.trust.jumped(received, by))
            self.on_jump(self, by)

    def on_push(self, push: list[Any]) -> None:
        """Take an invalidation: the keys that changed, or None if all keys were flushed."""
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

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        """Note that the connection ended, and keep the releases that may be lost with it."""
        if self._link is not None and link is self._link.connection:
            self._link = None
            self._asked_until = link.stalled_since or _clock.now()
            self.pending.connection_broke(unanswered, self._asked_until)
            if end.code == READONLY:
                self.trust.demoted()
            if end.permanent or link.stalled_since:
                self._note_down(end)

    def _tell_refused(self, known: Facts | None, facts: Facts) -> None:
        if known is None or known.refused != facts.refused:
            for command in facts.refused:
                meaning = WITHOUT.get(command, "")
                _log.warning("%s refuses %s: %s", self.address, command, meaning)

    def _tell_quarantine(self, seconds: float) -> None:
        cause = self.trust.cause
        self._log.quarantined(cause, seconds)
        if self._observers:
            self._observers(NodeQuarantined(self.address, cause, seconds))

    # state

    def state(self, now: float) -> str:
        """Return "up", "stalled", "down", "connecting", "quarantined" or "rejected"."""
        if self.rejected is not None:
            return "rejected"
        if self._link is None:
            return "connecting" if self._down is None else "down"
        if self._link.stalled_since:
            return "stalled"
        return "quarantined" if now < self.trust.votes_from else "up"

    def cause(self, now: float) -> str:
        """Return why the state is not "up"; "" if it is."""
        obstacle = self.obstacle(now)
        if obstacle is not None:
            return obstacle.cause
        if self._link is None:
            return self._down.cause if self._down is not None else ""
        return "it does not answer in time" if self._link.stalled_since else ""
