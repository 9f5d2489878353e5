"""A node as the engine sees it: one voter, whatever servers it consists of.

Each request gets a reply or a Failure. A node connects and reconnects by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from .._rules.trust import Trust
from .link import Link
from .replies import Failure, Sink
from .script import Command

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


class Node(Protocol):
    """One voter: a server, the present primary of a group, or a Cluster."""

    watched_keys: Collection[str]
    """The keys that tasks of this process watch."""
    on_wake: Callable[[str | None], None]
    """Called with a key that changed, or None if all keys may have changed."""
    on_connect: Callable[[Node], None]
    """Called when a connection is ready, before anything is sent on it, and whenever the record of
    the fleet's set of nodes was read again."""
    on_jump: Callable[[Node, float], None]
    """Called with the seconds by which the node's clock jumped."""
    on_state: Callable[[], None]
    """Called when `state` may have changed."""
    random: Callable[[], float]
    rejected: Failure | None
    """Why the node must not be used at all: the wrong role, or the same server twice."""

    @property
    def lack(self) -> Failure | None:
        """The error that the node gave as its last answer, such as OOM; None if it voted."""

    @property
    def address(self) -> str:
        """The address for messages; distinct among the nodes of a manager."""

    @property
    def settings(self) -> NodeSettings:
        """The settings that all nodes share."""

    @property
    def trust(self) -> Trust:
        """What is known of the node over all its connections."""

    @property
    def votes_from(self) -> float:
        """The moment from which the guards let the node vote on every name."""

    @property
    def round_trip(self) -> float | None:
        """Smoothed seconds from a request to its reply; None before the first one."""

    @property
    def tracking(self) -> bool:
        """Whether the open link supports pushes for changed keys."""

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


class NodeLink(Protocol):
    """What a node needs of an open link; see `Link`."""

    takes_batches: bool
    """Whether the link takes several releases and acquires as one command."""

    @property
    def connection(self) -> Link:
        """The link itself, which reports the events of the connection."""

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when the connection has ended."""

    @property
    def stalled_since(self) -> float:
        """When the oldest overdue reply became overdue; 0 while the node answers in time."""

    @property
    def releasing(self) -> bool:
        """Whether a release has no reply yet."""

    def send(self, command: Command, sink: Sink, index: int, *, now: bool = False) -> None:
        """Queue `command`; `sink` gets exactly one answer, within the timeout.

        With `now`, write it and all queued commands.
        """

    def ask(self, command: Command) -> asyncio.Future[Any]:
        """Send `command` and return its reply or Failure."""

    def close(self, cause: str) -> None:
        """End the connection now; commands without a reply fail with `cause`."""

    async def finish(self) -> None:
        """End the connection once all queued bytes went to the system, or after one timeout."""
