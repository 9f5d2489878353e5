"""One Redis server as a node: its connections, what they report, and its guards.

A node reconnects by itself: one task keeps a link open, with random pauses between attempts.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Final

from .. import _clock, _forks
from .._rules.nodeset import Kept
from .._rules.trust import FLUSHED, REPLACED, UNSEEN, Facts
from ..events import Observers
from . import record, witness
from .handshake import why_unready
from .heartbeat import Reading, leave_replica, watch
from .link import Link
from .node import Node, NodeLink, NodeSettings
from .replies import NO_TRUST, NOBODY, NOT_REDIS, READONLY, Failure
from .requests import TIME, ServerRequests
from .script import Command

LEFT: Final = "the manager no longer uses it"
LONGEST_DIAL = 2.0
"""Maximum seconds for a connection attempt. A frozen server answers a pending attempt as soon as it
resumes, so waiting is better than a new attempt."""
PASSING: Final = (NOT_REDIS, NO_TRUST, READONLY)
"""Codes of failed handshakes that rule a server out only if none has succeeded before."""
CONNECTION_INHERITED = Failure("its connection belongs to the process that forked this one")
"""Why a forked child can't use its parent's nodes."""

IN_TURNS = Failure(
    "two primaries answer there in turns, and neither knows the other's locks: name the servers "
    "themselves instead of the proxy before them",
    permanent=True,
)
"""Why an address is of no use that leads to several primaries."""

Dial = Callable[["ServerNode", float], Awaitable[tuple[NodeLink, Facts]]]
"""Takes the node and a limit in seconds; returns an open link and the server's facts."""


class ServerNode(ServerRequests):
    """One endpoint and its connections, of which at most one is open."""

    def __init__(
        self, address: str, dial: Dial, settings: NodeSettings, observers: Observers
    ) -> None:
        super().__init__(address, settings, observers)
        self.watched_keys: Collection[str] = ()
        self.on_wake: Callable[[str | None], None] = lambda _key: None
        self.on_connect: Callable[[Node], None] = lambda _node: None
        self.on_jump: Callable[[Node, float], None] = lambda _node, _by: None
        self.random: Callable[[], float] = random.random
        self.entropy: Callable[[int], bytes] = os.urandom
        self._dial = dial
        self._record_key = settings.record_key.encode()
        self._reading: tuple[float, float, float] | None = None
        """The clock reading of the handshake, kept until the node's process is known."""

    # the connection

    async def keep(self) -> None:
        """Keep a link open until cancelled; run this in one task.

        Only after `finish` does the end of this task end the link. The end of an event loop cancels
        all tasks together, and what the other ones release then still goes out on the link.
        """
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
                if rejections:
                    await leave_replica(self, link, rejections)
                else:
                    await watch(self, link, self.poll)
        finally:
            if self._finished and self._link is not None:
                self._link.close(LEFT)
            self._finished = True  # the end of this node is no fault to report
            self._log.close()
            self._fail(Failure(LEFT))

    def _hopeful(self, failure: Failure) -> Failure:
        # A fault that a server shows after a success may pass: a proxy gets a new certificate, or
        # the address moves to the next primary.
        passing = failure.code in PASSING and self.trust.facts is not None
        return replace(failure, permanent=False) if passing else failure

    def _pause(self, failures: int) -> float:
        # At most a node timeout, because a key may outlive the node's return by this pause.
        longest = min(0.01 * float(2**failures), self.settings.node_timeout)
        return longest * (1 + self.random()) / 2

    def _opened(self, link: NodeLink, facts: Facts) -> None:
        now = _clock.now()
        settings = self.settings
        known = self.trust.facts
        if known is None or known.refused != facts.refused:
            self._log.refused(facts.refused)
        waits = self.trust.met(
            facts,
            now,
            guard=settings.restart_guard,
            guard_first=settings.guard_first,
            disks_kept=settings.disks_kept,
        )
        self.rejected = None
        if facts.replica:
            role = "replica" if facts.role == "slave" else facts.role
            self.rejected = Failure(f"it is a {role}, not a primary", permanent=True)
        elif self.trust.in_turns:
            self.rejected = IN_TURNS
        self.tracking = facts.tracking
        self.on_connect(self)
        accepted = self.rejected is None
        if waits and accepted:
            self._log.quarantined(waits)
        self._link, self._down, self.lack = link, None, None
        if self._reading is not None:
            self.on_clock(*self._reading)
        if accepted:
            self._log.connected()
        self.on_state()
        if accepted:
            self._look(REPLACED)
        self._send_waiting(link)
        if known is not None and accepted:
            self.on_wake(None)  # the last connection's push requests are lost

    def check_clock(self) -> None:
        """Ask for the node's clock now, unless the link is down or stalled."""
        if self._link is not None and not self._link.stalled_since:
            self._link.send(TIME, Reading(self.on_clock, _clock.now()), 0)

    def read_record(self) -> None:
        """Read what the node keeps of the fleet's record; older replies of the node don't count.

        Replies come in order, so the record is known before any reply to a later request.
        """
        if self._link is not None and self.settings.record_key:
            self.trust.doubt(_clock.now())
            self._read_record(self._link)

    def poll(self) -> None:
        """Read the fleet's record and the witness, in case no push tells of a change or a flush."""
        if self._link is not None and self.settings.record_key:
            self._read_record(self._link)
        self._look(FLUSHED)

    def tell_record(self, newest: Kept, name: str) -> None:
        """Tell the node the newest record and its name, and read again what the node keeps.

        Our own change causes no push to us, and ends the request for the next push.
        """
        if self._link is not None:
            self._link.send(record.telling(self.settings.record_key, newest, name), NOBODY, 0)
            self._read_record(self._link)

    def _read_record(self, link: NodeLink) -> None:
        caching, reading = record.reading(self.settings.record_key)
        link.send(caching, NOBODY, 0)
        link.send(reading, _Reply(link, self._keeps, self.read_record), 0)

    def _keeps(self, reply: Any) -> None:
        if self.trust.facts is not None and not isinstance(reply, Failure):
            self.trust.facts = replace(self.trust.facts, kept=record.kept(reply))
            self.on_connect(self)

    # the witness

    def _flushed(self) -> None:
        """Note that a database was flushed: find out whether it was ours."""
        if not self.settings.witness_key:
            self._forgot(self.trust.forgot(_clock.now(), FLUSHED))
        elif self.trust.witness == b"":
            self._forgot(self.trust.forgot(_clock.now(), UNSEEN))
        else:
            self._look_again(FLUSHED)

    def _look_again(self, cause: str) -> None:
        self.trust.doubt(_clock.now())
        self._look(cause)

    def _look(self, cause: str) -> None:
        """Ask whether the node has kept its keys; this is known before any later reply counts."""
        key = self.settings.witness_key
        if self._link is not None and key and self.settings.restart_guard:
            saw, again = partial(self._saw, cause), partial(self._look_again, cause)
            question = witness.question(key, self.entropy(10).hex())
            self._link.send(question, _Reply(self._link, saw, again), 0)

    def _saw(self, cause: str, reply: Any) -> None:
        self._forgot(self.trust.saw(witness.read(reply), _clock.now(), cause))

    def _forgot(self, seconds: float) -> None:
        if seconds:
            self._log.quarantined(seconds)

    def forked(self) -> None:
        """In a forked child: never dial again."""
        self._finished = True
        self._link = None
        self._down = CONNECTION_INHERITED

    async def finish(self) -> None:
        """Close the link for good once all queued commands have been written."""
        self._finished = True
        if self._link is not None:
            await self._link.finish()

    # called by its link

    @property
    def in_cluster(self) -> bool:
        """Whether the server is one of a Cluster, whose redirects are followed."""
        return self.pending.on_redirect is not None

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
            self._log.quarantined(self.trust.jumped(received, by))
            self.on_jump(self, by)

    def on_push(self, push: list[Any]) -> None:
        """Take an invalidation: the keys that changed, or None if all keys were flushed."""
        if not push or push[0] != b"invalidate":
            return
        if push[1] is None:
            if self.settings.restart_guard:
                self._flushed()
            self.read_record()
            self.on_wake(None)
            return
        for key in push[1]:
            if key == self._record_key:
                self.read_record()
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
        """Return why the state is not "up", or the error that the node last answered; else ""."""
        obstacle = self.obstacle(now)
        if obstacle is not None:
            return obstacle.cause
        if self._link is None:
            return self._down.cause if self._down is not None else ""
        if self._link.stalled_since:
            return "it does not answer in time"
        return "" if self.lack is None else self.lack.cause


class _Reply:
    """Takes a reply that must be known before later replies count."""

    __slots__ = ("_again", "_link", "_take")

    def __init__(
        self, link: NodeLink, take: Callable[[Any], None], again: Callable[[], None]
    ) -> None:
        self._link = link
        self._take = take
        self._again = again

    def on_reply(self, _index: int, reply: Any) -> None:
        """Pass a reply or the server's error on. If the node is slow, ask `again`.

        Only the answers to requests behind that one count then.
        """
        if not isinstance(reply, Failure) or reply.code:
            self._take(reply)
        elif self._link.stalled_since:
            self._again()
        else:
            self._link.close("it doesn't answer whether it has kept its keys")
