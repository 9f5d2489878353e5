"""One Redis server as a node: its connections, what they report, and its guards.

A node reconnects by itself: one task keeps a link open, with random pauses between attempts.

Each request gets a reply or a Failure. While the server is known to be down, or its link is
stalled, requests fail at once, so that it never costs an acquire a full timeout.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from .. import _clock, _process
from .._rules.nodeset import Copy
from .._rules.validity import FLUSHED, REPLACED, UNSEEN, Facts, Trust
from ..events import Observers
from .handshake import (
    asking_witness,
    reading_record,
    record_in,
    telling_record,
    why_unready,
)
from .link import Link, Patience
from .node import (
    NOT_AFTER_GRACE,
    Node,
    NodeLog,
    NodeSettings,
    PendingReleases,
    leave_replica,
    watch,
)
from .wire import (
    BATCH,
    CACHING,
    EXTEND,
    GRANTED_DIGIT,
    NO_RIGHT,
    NO_TRUST,
    NOBODY,
    NOT_REDIS,
    READONLY,
    SENT_AGAIN,
    VOTES,
    Command,
    Failure,
    Sink,
    Take,
    no_connection,
    read_time,
    too_far,
)

LEFT: Final = "the manager no longer uses it"
LONGEST_DIAL = 2.0
"""Maximum seconds for a connection attempt, or `node_timeout` if that is longer. A frozen server
answers a pending attempt as soon as it resumes, so waiting is better than a new attempt."""
FIRST_PAUSE = 0.01
"""Minimum seconds before the second attempt to connect. Each later pause is twice as long as the
one before, up to `node_timeout` or LONGEST_DIAL."""
SETTLE_PAUSE = 0.002
"""Seconds after which the end of a manager looks again whether a release was answered."""
PASSING: Final = (NOT_REDIS, NO_TRUST, READONLY)
"""Codes of failed handshakes that rule a server out only if none has succeeded before."""
CONNECTION_INHERITED = Failure("its connection belongs to the process that forked this one")

IN_TURNS = Failure(
    "two primaries answer there in turns, and neither knows the other's locks: name the servers "
    "themselves instead of the proxy before them",
    permanent=True,
)

FORGOT: Final = Failure("it has forgotten its keys since this change began")
TIME = Command.plain("TIME")

Dial = Callable[["ServerNode", float], Awaitable[tuple[Link, Facts]]]
"""Takes the node and a limit in seconds; returns an open link and the server's facts."""


class ServerNode(Node):
    """One endpoint and its connections, of which at most one is open."""

    in_cluster = False
    lack: Failure | None = None
    """The error that the node gave as its last answer, such as OOM; None if it voted. The node is
    asked all the same, and its state stays "up"."""
    lack_of_renewal = False
    """Whether it gave that error to a renewal."""

    def __init__(
        self, address: str, dial: Dial, settings: NodeSettings, observers: Observers
    ) -> None:
        self.address = address
        self.settings = settings
        self.trust = Trust(settings.max_ttl)
        self.pending = PendingReleases(settings.node_timeout, self._send_again)
        """Releases that the node may not have executed."""
        self.late: Callable[[float], Failure] = no_connection
        """Returns why there is no connection yet, after that many seconds."""
        self._log = NodeLog(address, self.trust, observers)
        self.link: Link | None = None
        """The open link; None while there is none."""
        self._down: Failure | None = None
        self._waiting: list[tuple[Command, Sink, int]] = []
        """What to send when there is a link: commands, with the sinks of their replies."""
        self._patience: Patience | None = None
        """Ends the wait a node timeout after the first of them."""
        self._asked_until = _clock.now()
        """When the last connection that took requests ended; leases requested later aren't here."""
        self._finished = False
        self.random: Callable[[], float] = random.random
        self.entropy: Callable[[int], bytes] = os.urandom
        self._dial = dial
        self._record_key = settings.record_key.encode()
        self._reading: tuple[float, float, float] | None = None
        """The clock reading of the handshake, kept until the node's process is known."""

    # requests

    @property
    def votes_from(self) -> float:
        return self.trust.votes_from

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        if arm:
            command = command.behind(CACHING)
        link = self.link
        if link is None:
            if self._down is not None:
                sink.on_reply(index, self._down)
            else:
                self._wait(command, sink, index)
        elif (silence := self.silence) is not None:
            sink.on_reply(index, silence)
        else:
            self._send(link, command, sink, index)

    @property
    def silence(self) -> Failure | None:
        link = self.link
        if link is None:
            return self._down
        if link.stalled_since:
            limit = self.settings.node_timeout
            hint = too_far(self.round_trip or 0.0, limit)
            return Failure(f"no answer within node_timeout={limit:g} s{hint}")
        return None

    @property
    def takes_batches(self) -> bool:
        link = self.link
        if link is None or link.stalled_since:
            return False
        return not self.pending.late_acquires

    def send_batch(self, command: Command, sink: Sink, index: int, *, write: bool) -> None:
        if self.link is not None:
            bounded = self._bounded(command) if command.give_up_at else command
            self.link.send(bounded, sink, index, write=write)

    def write(self) -> None:
        if self.link is not None:
            self.link.flush()

    def _send(self, link: Link, command: Command, sink: Sink, index: int) -> None:
        if command.numbered_at and not self.trust.remembers(command.numbered_at):
            # Before it forgot, the node may have promised a higher number or accepted a newer
            # value, which this command would replace.
            sink.on_reply(index, FORGOT)
        else:
            link.send(self._bounded(command) if command.give_up_at else command, sink, index)

    def _bounded(self, command: Command) -> Command:
        # A manager's first acquires are made before it knows the nodes' clocks. Without a limit,
        # an acquire could lock a name long after its release was executed.
        offset = self.trust.offset
        if not command.give_up_at or offset is None:
            return command
        moment = command.give_up_at + NOT_AFTER_GRACE + offset
        return command.not_after(int(moment * 1_000_000))

    def obstacle(self, now: float) -> Failure | None:
        if self.rejected is not None:
            return self.rejected
        down = self.link is None and self._down is not None
        if now < self.trust.votes_from and not down:  # a request fails with the reason for that
            votes_from = self.trust.votes_from
            cause = f"{self.trust.why(now)}; votes in {votes_from - now:.1f} s"
            return Failure(cause, votes_from=votes_from)
        return None

    def last_error(self, _keys: Sequence[str], /) -> Failure | None:
        return self.lack

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        link = self.link
        if link is not None:
            if (silence := self.silence) is not None and command.asked_since > link.stalled_since:
                sink.on_reply(index, silence)  # the node was not asked for this lease
                return
            if self.pending.late_acquires:
                self.pending.sent(command)
            link.send(command, sink, index)
        elif self._down is None:
            self._wait(command, sink, index)
        else:
            self._keep(command)
            sink.on_reply(index, self._down)

    def _keep(self, command: Command) -> None:
        if self._may_hold(command):
            self.pending.keep(command)

    def _may_hold(self, command: Command) -> bool:
        # Whether this releases a lease that may have been requested on an earlier connection.
        return bool(command.retry_until) and command.asked_since <= self._asked_until

    def _send_again(self, command: Command, sink: Sink) -> bool:
        if self.link is not None:
            self.link.send(command, sink, 0)
        return self.link is not None

    def _wait(self, command: Command, sink: Sink, index: int) -> None:
        self._waiting.append((command, sink, index))
        if self._patience is None:
            seconds = self.settings.node_timeout
            self._patience = Patience(seconds, lambda: self._fail(self.late(seconds)))

    def _take_waiting(self) -> list[tuple[Command, Sink, int]]:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        waiting, self._waiting = self._waiting, []
        return waiting

    def _send_waiting(self, link: Link) -> None:
        self.pending.resend()
        for command, sink, index in self._take_waiting():
            if self.rejected is not None:
                self._keep(command)
                sink.on_reply(index, self.rejected)
            else:
                self.pending.sent(command)
                self._send(link, command, sink, index)

    def _fail(self, failure: Failure) -> None:
        self._note_down(failure)
        for command, sink, index in self._take_waiting():
            self._keep(command)
            sink.on_reply(index, failure)

    def _note_down(self, failure: Failure) -> None:
        if not self._finished and (self._down is None or self._down.cause != failure.cause):
            self._log.down(failure.cause)
        self._down = failure
        self.on_state()

    @property
    def settled(self) -> bool:
        """Whether the node has answered every release that it must get."""
        if len(self.pending) or any(self._may_hold(command) for command, _, _ in self._waiting):
            return False
        return self.link is None or not self.link.releasing

    async def settle(self) -> None:
        self.pending.drop_expired()
        while not self.settled:
            await asyncio.sleep(SETTLE_PAUSE)

    # the connection

    async def keep(self) -> None:
        """Keep a link open until cancelled; run this in one task.

        Only after `finish` does the end of this task end the link: the end of an event loop cancels
        all tasks together, and what the other ones release then still goes out on the link.
        """
        rejections, shortest = 0, self.settings.node_timeout
        longest, limit, pause = max(LONGEST_DIAL, shortest), shortest, FIRST_PAUSE
        _process.tell_child(self)
        try:
            while not self._finished:
                self._reading = None
                try:
                    link, facts = await self._dial(self, limit)
                except Exception as error:  # keep trying, whatever a server replies
                    # A key may outlive the node's return by this pause.
                    limit, pause = min(2 * limit, longest), min(2 * pause, shortest, LONGEST_DIAL)
                    self._fail(self._hopeful(why_unready(error)))
                    await asyncio.sleep(pause * (1 + self.random()) / 2)
                    continue
                limit, pause = shortest, FIRST_PAUSE
                self._opened(link, facts)
                rejections = rejections + 1 if facts.replica else 0
                if rejections:
                    await leave_replica(self, link, rejections)
                else:
                    await watch(self, link, self.poll)
        finally:
            if self._finished and self.link is not None:
                self.link.close(LEFT)
            self._finished = True  # the end of this node is no fault to report
            self._log.close()
            self._fail(Failure(LEFT))

    def _hopeful(self, failure: Failure) -> Failure:
        # A fault that a server shows after a success may pass: a proxy gets a new certificate, or
        # the address moves to the next primary.
        passing = failure.code in PASSING and self.trust.facts is not None
        return replace(failure, permanent=False) if passing else failure

    def _opened(self, link: Link, facts: Facts) -> None:
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
        self.link, self._down, self.lack = link, None, None
        if self._reading is not None:
            self.on_clock(*self._reading)
        if accepted:
            self._log.connected()
        self.on_state()
        if accepted:
            self._ask_witness(REPLACED)
        self._send_waiting(link)
        if known is not None and accepted:
            self.on_wake(None)  # the last connection's push requests are lost

    def check_clock(self) -> None:
        if self.link is not None and not self.link.stalled_since:
            self.link.send(TIME, Take(partial(self._told_clock, _clock.now())), 0)

    def _told_clock(self, sent: float, _index: int, reply: Any) -> None:
        clock = read_time(reply)
        if not isinstance(clock, Failure):  # the link itself reports one
            self.on_clock(clock, sent, _clock.now())

    def read_record(self) -> None:
        """Read what the node keeps of the fleet's record; older replies of the node don't count.

        Replies come in order, so the record is known before any reply to a later request.
        """
        if self.link is not None and self.settings.record_key:
            self.trust.doubt(_clock.now())
            self._read_record(self.link)

    def poll(self) -> None:
        """Read the fleet's record and the witness, in case no push tells of a change or a flush."""
        if self.link is not None and self.settings.record_key:
            self._read_record(self.link)
        self._ask_witness(FLUSHED)

    def tell_record(self, newest: Copy, name: str) -> None:
        """Tell the node the newest record and its name, and read again what the node keeps.

        Our own change causes no push to us, and ends the request for the next push.
        """
        if self.link is not None:
            self.link.send(telling_record(self.settings.record_key, newest, name), NOBODY, 0)
            self._read_record(self.link)

    def _read_record(self, link: Link) -> None:
        caching, question = reading_record(self.settings.record_key)
        link.send(caching, NOBODY, 0)
        link.send(question, _at_once(link, self._keeps, self.read_record), 0)

    def _keeps(self, reply: Any) -> None:
        if self.trust.facts is not None and not isinstance(reply, Failure):
            self.trust.facts = replace(self.trust.facts, copy=record_in(reply))
            self.on_connect(self)

    # the witness

    def _flushed(self) -> None:
        """Note that a database was flushed: find out whether it was ours."""
        if self.settings.witness_key and self.trust.witness != b"":
            self._doubt(FLUSHED)
        else:
            cause = UNSEEN if self.settings.witness_key else FLUSHED
            self._forgot(self.trust.forgot(_clock.now(), cause))

    def _doubt(self, cause: str) -> None:
        self.trust.doubt(_clock.now())
        self._ask_witness(cause)

    def _ask_witness(self, cause: str) -> None:
        """Ask whether the node has kept its keys; this is known before any later reply counts."""
        key = self.settings.witness_key
        if self.link is not None and key and self.settings.restart_guard:
            saw, again = partial(self._saw, cause), partial(self._doubt, cause)
            question = asking_witness(key, self.entropy(10).hex())
            self.link.send(question, _at_once(self.link, saw, again), 0)

    def _saw(self, cause: str, reply: Any) -> None:
        # A node that can't keep a witness replies something else.
        witness = reply if type(reply) is bytes else b""
        self._forgot(self.trust.saw(witness, _clock.now(), cause))

    def _forgot(self, seconds: float) -> None:
        if seconds:
            self._log.quarantined(seconds)

    def forked(self) -> None:
        """In a forked child: never dial again."""
        self._finished = True
        self.link = None
        self._down = CONNECTION_INHERITED

    async def finish(self) -> None:
        self._finished = True
        if self.link is not None:
            await self.link.finish()

    # called by its link

    def on_answer(self, command: Command, answer: Any) -> None:
        """Note the error that the node gave instead of a vote or a renewal, or that it is over.

        A Failure without a code is no answer; any reply but an error is a vote. A renewal that
        succeeds clears only errors of renewals: a server without memory renews, but grants nothing.
        """
        batch, renewal = command.op == BATCH, command.op == EXTEND
        match answer:
            case [_, list(replies), _] if batch:
                answers = replies[len(replies) - len(command.claims) :]
            case [bytes(digits), _] if renewal:  # a node that extends nothing writes nothing
                answers = [digit for digit in digits if digit == GRANTED_DIGIT]
            case _:
                counts = command.claims or renewal or command.op in VOTES
                answers = [answer] if counts else []
        # A batch is denied as a whole, even if the user has no right to one name only.
        again = SENT_AGAIN if self.in_cluster else (NO_RIGHT,) if batch else ()
        failures = [one for one in answers if type(one) is Failure]
        votes = len(failures) < len(answers) and (self.lack_of_renewal or not renewal)
        errors = [one for one in failures if one.code and one.code not in again]
        if errors or votes:
            self.lack, self.lack_of_renewal = (errors[0] if errors else None), renewal
            self._log.answered(self.lack)

    def keep_release(self, release: Command) -> Sink:
        return self.pending.keep(release)

    def on_clock(self, clock: float, sent: float, received: float) -> None:
        if self.link is None:
            # During the handshake the restart guard still needs the previous process's last reply.
            self._reading = clock, sent, received
            return
        trip = received - sent
        self.round_trip = trip if self.round_trip is None else 0.9 * self.round_trip + 0.1 * trip
        by = self.trust.sample(clock, sent, received)
        if by:
            self.pending.set_back -= min(by, 0.0)
            if self.settings.clock_guard:
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
            self.on_wake("")
            return
        for key in push[1]:
            if key == self._record_key:
                self.read_record()
            self.on_wake(key.decode("utf-8", "surrogateescape"))

    def on_disconnect(self, link: Link, end: Failure, unanswered: list[Command]) -> None:
        if link is self.link:
            self.link = None
            self._asked_until = link.stalled_since or _clock.now()
            self.pending.connection_broke(unanswered, self._asked_until)
            if end.code == READONLY:
                self.trust.demoted()
            if end.permanent or link.stalled_since:
                self._note_down(end)

    # state

    def state(self, now: float) -> str:
        if self.rejected is not None:
            return "rejected"
        if self.link is None:
            return "connecting" if self._down is None else "down"
        if self.link.stalled_since:
            return "stalled"
        return "quarantined" if now < self.trust.votes_from else "up"

    def cause(self, now: float) -> str:
        obstacle = self.obstacle(now)
        if obstacle is not None:
            return obstacle.cause
        if self.link is None:
            return self._down.cause if self._down is not None else ""
        if self.link.stalled_since:
            return "it does not answer in time"
        return "" if self.lack is None else self.lack.cause


def _at_once(link: Link, take: Callable[[Any], None], again: Callable[[], None]) -> Sink:
    """Return what takes a reply that must be known before later replies count.

    It passes a reply or the server's error on to `take`. If the node is slow, it asks `again`: only
    the answers to requests behind that one count then.
    """

    def on_reply(_index: int, reply: Any) -> None:
        if not isinstance(reply, Failure) or reply.code:
            take(reply)
        elif link.stalled_since:
            again()
        else:
            link.close("it doesn't answer whether it has kept its keys")

    return Take(on_reply)
