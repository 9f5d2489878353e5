"""The same request to all nodes at once, in the same loop tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from .. import _clock
from .._background import Background
from .._rules import trust
from .._rules.quorum import majority
from ..errors import ConfigurationError
from .link import NOBODY, Failure, Sink
from .node import CACHING, Node
from .script import Command
from .wakeup import Wakeups

_log = logging.getLogger("asynclock.nodes")

NOT_AFTER_GRACE = 0.05
"""A request may reach a node's script so long after we gave up on it, and no longer."""
READING = 0.1
"""Seconds for which what we know of the nodes' clocks is good enough for floors."""
AGREE = 0.05
"""Clocks that jumped together by amounts this close: it was ours that stood still."""
TOGETHER = 1.0
"""Jumps noticed within so many seconds happened at the same time: after one all nodes are asked."""


class Multiplexer:
    """All nodes of a manager; each is one voter."""

    def __init__(
        self, nodes: Sequence[Node], background: Background, *, strict: bool, batch: int
    ) -> None:
        self.nodes = tuple(nodes)
        self.everyone = range(len(self.nodes))
        """The numbers of all nodes."""
        self.quorum = majority(len(self.nodes))
        self.batch = batch
        """How many leases one renewal command may carry (1 where keys live apart)."""
        self.wakeups = Wakeups(len(self.nodes), self.quorum)
        self.on_stood_still: Callable[[float], None] = lambda _seconds: None
        """Called with the seconds by which our own clock stood still."""
        self._background = background
        self._strict = strict
        self._untracked: set[Node] = set()
        self._jumps: dict[Node, tuple[float, float]] = {}
        self._flaws: dict[Node, ConfigurationError] = {}
        self._warned: set[str] = set()
        self._read_again = self._ahead = 0.0
        self._offset: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        for index, node in enumerate(self.nodes):
            node.on_wake = partial(self.wakeups.wake, node=index)
            node.on_met = self._check
            node.on_jump = self._jumped

    def ready(self) -> None:
        """Begin to connect, unless that was done. Called before anything is asked.

        Raises ConfigurationError if this set of nodes can't work, or not in this event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._start(loop)
        if self._flaws:
            raise next(iter(self._flaws.values()))

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise ConfigurationError(
                "this manager was first used in another event loop; make one manager per loop"
            )
        self._loop = loop
        for node in self.nodes:
            self._background.spawn(node.keep(), f"asynclock: keep {node.address}")

    def broadcast(self, command: Command, sink: Sink) -> None:
        """Ask every node; `sink` gets each one's answer under its number."""
        for index, node in enumerate(self.nodes):
            node.ask(command, sink, index)

    def deliver(self, command: Command, sink: Sink, indices: Sequence[int]) -> None:
        """Send a release to these nodes, now or when they are back."""
        for index in indices:
            self.nodes[index].deliver(command, sink, index)

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Whether a node's yes, asked for at `sent`, counts for what `voters` have granted.

        Of a node in quarantine only where its own grant had counted: the key that it still has
        is that grant's, so nobody else was granted it since. What came there later may stand in
        the place of another's key that the node forgot (tests/model: V1 to V5, W1).
        """
        return sent >= self.nodes[index].trust.votes_from or index in voters

    def arm(self, indices: Sequence[int]) -> None:
        """Order a wake-up for the keys that the next command reads, where the node can do it."""
        for index in indices:
            node = self.nodes[index]
            if node.tracking:
                node.ask(CACHING, NOBODY, index)

    def tracks(self) -> bool:
        """Whether enough nodes can wake us that a release can't go unnoticed."""
        silent = sum(not node.tracking for node in self.nodes)
        return silent < self.quorum

    # clocks

    def floor(self, now: float) -> int:
        """The fence floor for an attempt that starts now, in µs.

        -1 while fewer than a quorum of clocks are known: then each node takes its own, which may
        cost a second round trip. Our wall clock would save that, but a wrong one pushes counters
        ahead of what floors can restore after a node forgot them.
        """
        self._read_clocks(now)
        return -1 if self._offset is None else int((now + self._offset) * 1_000_000)

    def not_after(self, until: float) -> int:
        """The node time in µs after which a request given up at `until` must not be executed.

        By the clock that is most ahead, so that no node takes it for late too early; 0 (no bound)
        while fewer than a quorum of clocks are known.
        """
        return int((until + NOT_AFTER_GRACE + self._ahead) * 1_000_000) if self._ahead else 0

    def _read_clocks(self, now: float) -> None:
        if now < self._read_again:
            return
        offsets = [o for node in self.nodes if (o := node.trust.offset) is not None]
        self._read_again = now + READING if len(offsets) >= self.quorum else 0.0
        # A node that nobody has met yet should not keep the others' requests without a bound; if
        # its clock is far ahead, it takes the first request for late and the next one in time.
        self._ahead = max(offsets) if len(offsets) >= self.quorum else 0.0
        known = len(offsets) >= self.quorum
        self._offset = trust.low_median(offsets) if known else None

    def _jumped(self, node: Node, by: float) -> None:
        now = _clock.now()
        self._read_again = 0.0
        self._jumps[node] = (now, by)
        alike = [
            other
            for other, (at, jump) in self._jumps.items()
            if now - at < TOGETHER and abs(jump - by) < AGREE
        ]
        if by > 0 and len(alike) == self.quorum:
            # Theirs or ours: either way, leases end that much sooner on a quorum.
            _log.warning("the clocks of a quorum jumped by %+.3f s, or ours stood still", by)
            self.on_stood_still(by)
        elif len(alike) < self.quorum:
            for other in self.nodes:
                if other not in alike:
                    other.check_clock()

    # who the nodes are

    def _check(self, met: Node) -> None:
        facts = met.trust.facts
        self._read_again = 0.0
        if facts is None:
            return
        self._flaws.pop(met, None)
        for node in self.nodes:
            other = node.trust.facts
            if node is not met and other and facts.run_id and other.run_id == facts.run_id:
                self._reject(met, f"{met.address} and {node.address} are the same server")
        if not facts.tracking and met not in self._untracked:
            self._untracked.add(met)
            _log.info("%s can't wake waiters by a push: they ask at intervals", met.address)
        if facts.evicts:
            text = (
                f"{met.address} may evict locks: its maxmemory-policy is "
                f"{facts.maxmemory_policy}; use noeviction"
            )
            if self._strict:
                self._reject(met, text)
            elif text not in self._warned:
                self._warned.add(text)
                _log.warning(text)

    def _reject(self, node: Node, text: str) -> None:
        node.rejected = Failure(text, permanent=True)
        self._flaws[node] = ConfigurationError(text)
