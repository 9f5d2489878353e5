"""A node as the engine sees it: one voter, whatever servers it consists of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from .. import _clock
from .._rules.validity import Trust
from ..events import NodeDown, NodeQuarantined, NodeUp, Observers
from .link import LATE_TIMER_FACTOR, Link
from .wire import REDIRECTS, Command, Failure, Sink, Word

NOT_AFTER_GRACE = 0.05
"""Maximum seconds after a request's timeout in which a node may still execute it."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings that all nodes of a manager share; times in seconds."""

    node_timeout: float
    max_ttl: float
    restart_guard: bool
    guard_first: bool
    """Whether the restart guard also applies on first contact (not on a single node)."""
    clock_guard: bool
    disks_kept: bool
    """Whether the operator promises that no node loses its disk, or runs without it."""
    record_key: str = ""
    """The key of the record of the fleet's set of nodes; "" if nodes are not compared with it."""
    witness_key: str = ""
    """The key of the witness; "" on a Cluster, which has no other database to flush."""


def _ignore(*_: object) -> None:
    """Take an event of a node that belongs to no manager yet."""


class Node(Protocol):
    """One voter: a server, the present primary of a group, or a Cluster."""

    address: str
    """The address for messages; distinct among the nodes of a manager."""
    settings: NodeSettings
    trust: Trust
    """What is known of the node over all its connections."""
    watched_keys: Collection[str] = ()
    """The keys that tasks of this process watch."""
    on_wake: Callable[[str | None], None] = staticmethod(_ignore)
    """Called with a key that changed; with "" if a database was flushed; or with None if the
    connection broke, so that all keys may have changed."""
    on_connect: Callable[[Node], None] = staticmethod(_ignore)
    """Called when a connection is ready, before anything is sent on it, and whenever the record of
    the fleet's set of nodes was read again."""
    on_jump: Callable[[Node, float], None] = staticmethod(_ignore)
    """Called with the seconds by which the node's clock jumped."""
    on_state: Callable[[], None] = staticmethod(_ignore)
    """Called when `state` may have changed."""
    random: Callable[[], float]
    rejected: Failure | None = None
    """Why the node must not be used at all: the wrong role, or the same server twice."""
    round_trip: float | None = None
    """Smoothed seconds from a request to its reply; None before the first one."""
    tracking: bool = False
    """Whether the open link supports pushes for changed keys."""

    @property
    def votes_from(self) -> float:
        """The moment from which the guards let the node vote on every name."""

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        """Send `command`; `sink` gets the answer, possibly before this returns.

        With `arm`, the node also pushes later changes of the keys that the command reads, if it
        can.
        """

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release, even to a node that does not answer; keep it if there is no link."""

    @property
    def silence(self) -> Failure | None:
        """Why a request would fail at once, or None if it would be sent or wait for a link."""

    @property
    def takes_batches(self) -> bool:
        """Whether the node can take a command for several names now."""

    def send_batch(self, command: Command, sink: Sink, index: int, *, write: bool) -> None:
        """Send acquires or releases, if `takes_batches`; with `write`, write all that waits."""

    def write(self) -> None:
        """Write all queued commands now instead of at the end of the tick."""

    def obstacle(self, now: float, /) -> Failure | None:
        """Return why the node has no vote at the moment, or None if it has one."""

    def last_error(self, keys: Sequence[str], /) -> Failure | None:
        """Return the last error of the server that has these keys; None if it has voted since."""

    def check_clock(self) -> None:
        """Ask for the node's clock now, unless the link is down or stalled."""

    async def keep(self) -> None:
        """Keep the node connected until cancelled; run this in one task."""

    async def settle(self) -> None:
        """Wait until the node has executed all releases; the caller must limit the time."""

    async def finish(self) -> None:
        """Close all links for good once all queued commands have been written."""

    def state(self, now: float) -> str:
        """Return "up", "stalled", "down", "connecting", "quarantined" or "rejected"."""

    def cause(self, now: float) -> str:
        """Return why the state is not "up", or the error that the node last answered; else ""."""


_log = logging.getLogger("asynclock.nodes")

QUIET = 10.0
"""Minimum seconds between two records of errors that a node gives instead of votes."""
WITHOUT = {
    "CLIENT": "waiters ask again at intervals instead of being woken",
    "CONFIG": "it is assumed to forget everything when it restarts",
    "HELLO": "the connection speaks RESP2; waiters ask again at intervals instead of being woken",
    "HMGET": "nothing notices if other clients use other nodes",
    "INFO": "each new connection is guarded as if it had restarted; its settings are not checked",
    "SCRIPT": "scripts are sent in full when they are first needed",
    "TIME": "its clock is first read from the answer to a script",
}
"""What follows if a server refuses a command (docs/access.md)."""


class NodeLog:
    """Logs a WARNING when a node goes down or is quarantined, and an INFO when it votes again.

    Further causes and attempts of a node that is down already are logged as DEBUG.
    """

    __slots__ = ("_address", "_away", "_lack", "_lack_told", "_observers", "_timer", "_trust")

    def __init__(self, address: str, trust: Trust, observers: Observers) -> None:
        self._address = address
        self._trust = trust
        self._observers = observers
        self._away = False
        self._timer: asyncio.TimerHandle | None = None
        self._lack = ""
        """The code of the error that was logged and has not passed yet."""
        self._lack_told = -inf

    def answered(self, error: Failure | None) -> None:
        """Log an error in place of a vote, and its end, at most every QUIET seconds.

        A server at its limit of memory may refuse every other request.
        """
        now = _clock.now()
        if error is None:
            if self._lack:
                self._lack = ""
                self._tell(logging.INFO, "%s votes again", self._address)
        elif error.code != self._lack and now >= self._lack_told + QUIET:
            self._lack, self._lack_told = error.code, now
            self._tell(logging.WARNING, "%s does not vote: %s", self._address, error.cause)

    def down(self, cause: str) -> None:
        self.close()
        level = logging.DEBUG if self._away else logging.WARNING
        self._away = True
        self._tell(level, "%s is down: %s", self._address, cause)
        if self._observers:
            self._observers(NodeDown(self._address, cause))

    def connected(self) -> None:
        self.up()
        if self._observers:
            self._observers(NodeUp(self._address))

    def refused(self, commands: Iterable[str]) -> None:
        """Log which commands of our handshake the node refused, and what follows."""
        for command in commands:
            _log.warning("%s refuses %s: %s", self._address, command, WITHOUT[command])

    def quarantined(self, seconds: float) -> None:
        """Report that a guard keeps the node from voting for `seconds`."""
        cause = self._trust.why(_clock.now())
        text = "%s %s: it does not vote for %.1f s"
        self._tell(logging.WARNING, text, self._address, cause, seconds)
        self._away = True
        self.up()
        if self._observers:
            self._observers(NodeQuarantined(self._address, cause, seconds))

    def up(self) -> None:
        """Log that the node is back, now or when its quarantine has ended."""
        if not self._away:
            return
        self.close()
        left = self._trust.votes_from - _clock.now()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left + 0.001, self.up)
        else:
            self._away = False
            self._tell(logging.INFO, "%s is back and votes", self._address)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, level: int, text: str, *args: object) -> None:
        _log.log(level, text, *args, extra={"asynclock_node": self._address})


HALF_OPEN = 4
"""Node timeouts (at least a second) after which a link with an overdue reply is closed."""

TICK = 0.001
"""Minimum seconds between two checks of an open link."""

FIRST_REPLICA_RECHECK, LONGEST_REPLICA_RECHECK = 0.1, 2.0
"""First and maximum seconds until a replica is asked for its role again; doubled each time."""


async def watch(node: Node, link: Link, poll: Callable[[], None]) -> None:
    """Watch the link until it is closed: read an idle node's clock, close a stalled link.

    If the node sends no pushes, `poll` is called every third of `max_ttl`.
    """
    patience = max(1.0, HALF_OPEN * node.settings.node_timeout)
    idle = node.settings.max_ttl / 3
    asked, polled = 0.0, _clock.now()
    while not link.closed.done():
        left = max(node.trust.last_reply, asked) + idle - _clock.now()
        pause = patience / 4 if link.stalled_since else min(max(left, TICK), patience)
        await asyncio.wait([link.closed], timeout=pause)
        now = _clock.now()
        if link.stalled_since and now - link.stalled_since >= patience:
            link.close(f"no answer for {now - link.stalled_since:.1f} s")
        elif not link.stalled_since and now - max(node.trust.last_reply, asked) >= idle:
            asked = now
            node.check_clock()
        if now - polled >= idle:
            polled = now
            if not node.tracking:
                poll()


async def leave_replica(node: Node, link: Link, times: int) -> None:
    """Close the link to a replica after a pause; the next handshake asks for its role again.

    `times` is the number of connections in a row on which the server was a replica.
    """
    longest = min(FIRST_REPLICA_RECHECK * 2.0 ** (min(times, 16) - 1), LONGEST_REPLICA_RECHECK)
    await asyncio.sleep(longest * (1 + node.random()) / 2)
    link.close("it was a replica")
    await link.closed


# ---- What one server must still get: commands for its first connection, and lost releases --------
# A release or a leave may be lost with a connection. Also, the server may execute an acquire from
# the old connection after a release from the new one. Both are idempotent, so a doubtful one is
# kept and resent when the node is back, until the node has answered and no late acquire can follow.
# An owner (or ticket) has one entry, and none if its requests never went to the node.


RETRY_MARGIN = 0.1
"""Seconds added to each retry, so that the event it waits for has certainly happened."""


class PendingReleases:
    """The releases kept for one node, or a Cluster.

    `send` sends one and returns True, or returns False if there is no connection.
    """

    def __init__(self, node_timeout: float, send: Callable[[Command, Sink], bool]) -> None:
        self.node_timeout = node_timeout
        self.send = send
        self.pending: dict[tuple[Word, Word], PendingRelease] = {}
        """By operation and owner: a release, or the leave of a ticket."""
        self.late_acquires: dict[Word, float] = {}
        """The owners and tickets that the server may still take from a broken connection, and the
        moment after which it no longer executes those commands."""
        self.set_back = 0.0
        """Seconds by which the node's clock was set back; its keys live that much longer."""

    def __len__(self) -> int:
        return len(self.pending)

    def keep(self, release: Command) -> PendingRelease:
        """Keep `release`, to send it again when the node is back."""
        # The deadline is checked on reconnect: the node's clock may have been set back by then.
        if release.undoes not in self.pending:
            self.pending[release.undoes] = PendingRelease(self, release.again())
        return self.pending[release.undoes]

    def connection_broke(self, unanswered: Iterable[Command], asked_until: float) -> None:
        """Keep what matters of the unanswered commands; `asked_until` is when requests ended."""
        now, longest = _clock.now(), LATE_TIMER_FACTOR * self.node_timeout + RETRY_MARGIN
        # A lease may be won without this node and be released here before its acquire arrives.
        late: dict[Word, float] = {}
        for command in (single for one in unanswered for single in one.singles):
            if command.retry_until and command.asked_since <= asked_until:
                self.keep(command)
            late.update(dict.fromkeys(command.puts, now + longest))
        if late:
            self.late_acquires.update(late)
            loop = asyncio.get_running_loop()
            loop.call_later(longest + RETRY_MARGIN, self._forget_late, late)

    def _forget_late(self, late: dict[Word, float]) -> None:
        for owner, until in late.items():
            if self.late_acquires.get(owner) == until:
                del self.late_acquires[owner]

    def sent(self, command: Command) -> None:
        """Note that `command` is being sent; keep a release that a late acquire may follow."""
        if command.retry_until and command.owner in self.late_acquires:
            self.keep(command).retry_later()

    def resend(self) -> None:
        """Send everything that still matters, because the node is back, or another has its keys."""
        for pending in list(self.pending.values()):
            if not pending.sent:
                pending.send()

    def clear(self) -> None:
        for pending in list(self.pending.values()):
            pending.drop()

    def drop_expired(self) -> None:
        """Drop what no longer matters; no connection follows that would check it."""
        for pending in list(self.pending.values()):
            if pending.expired:
                pending.drop()


class PendingRelease:
    """One release and its retry schedule; takes the node's answers."""

    __slots__ = ("_pause", "_releases", "_timer", "command", "sent")

    def __init__(self, releases: PendingReleases, command: Command) -> None:
        self.command = command
        self.sent = False
        """Whether it was sent again, and has no answer yet."""
        self._releases = releases
        self._pause = 1
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        """Whether its key has certainly expired, so that nothing is left to release."""
        return self.command.retry_until + self._releases.set_back <= _clock.now()

    def send(self) -> None:
        """Send it again, unless its time is over."""
        if self.expired:
            self.drop()
        else:
            self._cancel_timer()
            self.sent = True  # the answer may come before `send` returns
            if not self._releases.send(self.command, self):
                self.sent = False

    def drop(self) -> None:
        self._cancel_timer()
        del self._releases.pending[self.command.undoes]

    def on_reply(self, _index: int, reply: object) -> None:
        self.sent, releases, command = False, self._releases, self.command
        if releases.pending.get(command.undoes) is not self:
            return
        left = releases.late_acquires.get(command.owner, 0.0) - _clock.now()
        if isinstance(reply, Failure):
            if reply.permanent and reply.code not in REDIRECTS:
                self.drop()
            else:  # also after a redirect: a proxy may find the key's server later
                self.retry_later()
        elif left > 0:
            self.retry_later(left)
        else:
            self.drop()

    def retry_later(self, longest: float = inf) -> None:
        """Send it again after 1, 2, 4, then always 8 node timeouts, at most `longest` seconds."""
        if self._timer is None:
            seconds = min(self._pause * self._releases.node_timeout, longest) + RETRY_MARGIN
            self._pause = min(2 * self._pause, LATE_TIMER_FACTOR)
            self._timer = asyncio.get_running_loop().call_later(seconds, self.send)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
