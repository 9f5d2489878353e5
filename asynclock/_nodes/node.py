"""A node as the engine sees it: one voter, whatever servers it consists of; its log and its watch.

Each request gets a reply or a Failure. A node connects and reconnects by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from .. import _clock
from .._rules.trust import Trust
from ..events import NodeDown, NodeQuarantined, NodeUp, Observers
from .link import Link
from .replies import Failure, Sink
from .script import Command

FLUSH = ""
"""Stands for all keys of a node, in place of one, once a flush is pushed. No key is empty."""
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
    disks_kept: bool = False
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
    """The settings that all nodes share."""
    trust: Trust
    """What is known of the node over all its connections."""
    watched_keys: Collection[str] = ()
    """The keys that tasks of this process watch."""
    on_wake: Callable[[str | None], None] = staticmethod(_ignore)
    """Called with a key that changed; with FLUSH if a database was flushed; or with None if the
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
    lack: Failure | None = None
    """The error that the node gave as its last answer, such as OOM; None if it voted."""
    round_trip: float | None = None
    """Smoothed seconds from a request to its reply; None before the first one."""
    tracking: bool = False
    """Whether the open link supports pushes for changed keys."""

    @property
    def votes_from(self) -> float:
        """The moment from which the guards let the node vote on every name."""

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        """Send `command`; `sink` gets the answer, possibly before this returns.

        With `arm`, the node also sends a push when a key changes that the command reads, if the
        node supports that.
        """

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release, even to a node that does not answer; keep it if there is no link."""

    @property
    def silence(self) -> Failure | None:
        """Why a request would fail at once, or None if it would be sent or wait for a link."""

    @property
    def takes_batches(self) -> bool:
        """Whether the node can take a command for several names now."""

    def send_batch(self, command: Command, sink: Sink, index: int, *, now: bool) -> None:
        """Send the releases and acquires of a tick; call this only if `takes_batches` is true.

        With `now`, write them and everything before them; otherwise this tick does so later.
        """

    def write(self) -> None:
        """Write all queued commands now instead of at the end of the tick."""

    def obstacle(self, now: float, /) -> Failure | None:
        """Return why the node has no vote at the moment, or None if it has one."""

    def note(self, answer: Failure | None) -> None:
        """Take in the node's last answer to a request for a vote: an error, or None for a vote."""

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
        """Log an error that the node gives instead of votes, and its end, at most every QUIET s.

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
            _log.warning("%s refuses %s: %s", self._address, command, WITHOUT.get(command, ""))

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
