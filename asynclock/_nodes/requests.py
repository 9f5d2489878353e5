"""The requests to one server: each gets a reply or a Failure.

While the server is known to be down, or its link is stalled, requests fail at once, so that it
never costs an acquire a full timeout. Releases and leaves are different: one that may have been
lost with a connection is kept, and sent again as soon as the server is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from .. import _clock
from .._rules.trust import Trust
from ..events import Observers
from .backlog import ConnectBacklog
from .node import NOT_AFTER_GRACE, NodeLink, NodeSettings
from .node_log import NodeLog
from .pending_releases import PendingReleases
from .replies import Failure, Sink, no_connection
from .script import CACHING, Command

FORGOT: Final = Failure("it has forgotten its keys since this change began")
TIME = Command.plain("TIME")


class ServerRequests:
    """One server as others ask it; `ServerNode` keeps it connected."""

    def __init__(self, address: str, settings: NodeSettings, observers: Observers) -> None:
        self.address = address
        self.settings = settings
        self.trust = Trust(settings.max_ttl)
        self.round_trip: float | None = None
        self.tracking = False
        """Whether the open link supports pushes for changed keys."""
        self.rejected: Failure | None = None
        """Why the node must not be used at all: the wrong role, or the same server twice."""
        self.lack: Failure | None = None
        """The error that the node gave as its last answer, such as OOM; None if it voted."""
        self.pending = PendingReleases(settings.node_timeout, self._send_again)
        """Releases that the node may not have executed."""
        self.on_state: Callable[[], None] = lambda: None
        self.late: Callable[[float], Failure] = no_connection
        """Returns why there is no connection yet, after that many seconds."""
        self._log = NodeLog(address, self.trust, observers)
        self._link: NodeLink | None = None
        self._down: Failure | None = None
        self._backlog = ConnectBacklog(settings.node_timeout, self._give_up_connecting)
        self._asked_until = _clock.now()
        """When the last connection that took requests ended; leases requested later aren't here."""
        self._finished = False

    @property
    def link(self) -> NodeLink | None:
        """The open link, or None."""
        return self._link

    @property
    def votes_from(self) -> float:
        """The moment from which the guards let the node vote."""
        return self.trust.votes_from

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        """Send `command`; `sink` gets the answer; see `Node.ask`."""
        if arm:
            command = command.behind(CACHING)
        link = self._link
        if link is None:
            if self._down is not None:
                sink.on_reply(index, self._down)
            else:
                self._backlog.add(command, sink, index)
        elif (silence := self.silence) is not None:
            sink.on_reply(index, silence)
        elif self._forgot_since(command):
            sink.on_reply(index, FORGOT)
        else:
            link.send(self._bounded(command) if command.give_up_at else command, sink, index)

    @property
    def silence(self) -> Failure | None:
        """Why a request would fail at once, or None if it would be sent or wait for a link."""
        link = self._link
        if link is None:
            return self._down
        if link.stalled_since:
            limit, trip = self.settings.node_timeout, self.round_trip or 0.0
            hint = f"; a round trip took {trip:.2g} s: raise node_timeout" if trip > limit else ""
            return Failure(f"no answer within node_timeout={limit:g} s{hint}")
        return None

    @property
    def takes_batches(self) -> bool:
        """Whether the node can take a command for several names now."""
        link = self._link
        if link is None or link.stalled_since:
            return False
        return link.takes_batches and not self.pending.late_acquires

    def send_batch(self, command: Command, sink: Sink, index: int, *, now: bool) -> None:
        """Send the releases and acquires of a tick; call this only if `takes_batches` is true.

        With `now`, write them and everything before them; otherwise this tick does so later.
        """
        if self._link is not None:
            bounded = self._bounded(command) if command.give_up_at else command
            self._link.send(bounded, sink, index, now=now)

    def write(self) -> None:
        """Write all queued commands now instead of at the end of the tick."""
        if self._link is not None:
            self._link.connection.flush()

    def _forgot_since(self, command: Command) -> bool:
        # Before it forgot, the node may have promised a higher number or accepted a newer value,
        # which this command would replace.
        return 0.0 < command.numbered_at < self.trust.remembers_from

    def _bounded(self, command: Command) -> Command:
        # A manager's first acquires are made before it knows the nodes' clocks. Without a limit,
        # an acquire could lock a name long after its release was executed.
        offset = self.trust.offset
        if not command.give_up_at or offset is None:
            return command
        moment = command.give_up_at + NOT_AFTER_GRACE + offset
        return command.not_after(int(moment * 1_000_000))

    def obstacle(self, now: float) -> Failure | None:
        """Return why the node has no vote at the moment, or None if it has one."""
        if self.rejected is not None:
            return self.rejected
        down = self._link is None and self._down is not None
        if now < self.trust.votes_from and not down:  # a request fails with the reason for that
            votes_from = self.trust.votes_from
            cause = f"{self.trust.why(now)}; votes in {votes_from - now:.1f} s"
            return Failure(cause, votes_from=votes_from)
        return None

    def note(self, answer: Failure | None) -> None:
        """Take in the node's last answer to a request for a vote: an error, or None for a vote."""
        if answer is None or self._link is not None:  # otherwise `_down` already has the cause
            self.lack = answer
            self._log.answered(answer)

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release, even to a node that does not answer; keep it if there is no link."""
        link = self._link
        if link is not None:
            if (silence := self.silence) is not None and command.asked_since > link.stalled_since:
                sink.on_reply(index, silence)  # the node was not asked for this lease
                return
            if self.pending.late_acquires:
                self.pending.sent(command)
            link.send(command, sink, index)
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

    def _send_waiting(self, link: NodeLink) -> None:
        self.pending.resend()
        for command, sink, index in self._backlog.take():
            if self.rejected is not None:
                sink.on_reply(index, self.rejected)
            elif self._forgot_since(command):
                sink.on_reply(index, FORGOT)
            else:
                self.pending.sent(command)
                link.send(self._bounded(command), sink, index)

    def _give_up_connecting(self) -> None:
        self._fail(self.late(self.settings.node_timeout))

    def _fail(self, failure: Failure) -> None:
        self._note_down(failure)
        waiting = self._backlog.take()
        for command, sink, index in waiting:
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
        if len(self.pending) or any(map(self._may_hold, self._backlog)):
            return False
        return self._link is None or not self._link.releasing

    async def settle(self) -> None:
        """Wait until the node has executed all releases; the caller must limit the time."""
        self.pending.drop_expired()
        while not self.settled:
            await self._backlog.wait_taken()
            await self.pending.wait_sent()
            if self._link is not None:
                await self._link.ask(TIME)  # answered after everything before it
            await asyncio.sleep(0)
