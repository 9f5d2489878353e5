"""All nodes of a manager: sends one request to all of them in a tick, and waits for their votes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, cast

from .. import _clock
from .._process import Background
from .._rules import validity
from .._rules.quorum import majority
from .._rules.validity import Facts, StandStill
from ..errors import ConfigurationError
from .fleet import SetGuard
from .node import NOT_AFTER_GRACE, Node
from .server import ServerNode
from .wakeup import Wakeups
from .wire import Command, Failure, Sink

_log = logging.getLogger("asynclock.nodes")

CLOCK_READING_AGE = 0.1
"""Seconds for which a reading of the nodes' clocks is accurate enough for floors."""


class Multiplexer:
    """All nodes of a manager; each is one voter."""

    def __init__(
        self,
        nodes: Sequence[Node],
        background: Background,
        *,
        strict: bool,
        most_leases: int,
        label: str | None,
    ) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.everyone: range = range(len(self.nodes))
        self.quorum: int = majority(len(self.nodes))
        self.most_leases = most_leases
        """Maximum number of leases in one renewal command. 1 on a Cluster: there all commands have
        one name."""
        self.home: Callable[[Sequence[str]], ServerNode | None] | None
        self.home = getattr(nodes[0], "home", None) if len(nodes) == 1 else None
        """Returns the server of these keys; None unless a Cluster is the only node."""
        self.look_again: Callable[[], None] = getattr(nodes[0], "look_again", lambda: None)
        """Lets a Cluster, the first node, read its view again."""
        self.wakeups: Wakeups = Wakeups(len(self.nodes), self.quorum)
        self.on_stood_still: Callable[[float], None] = lambda _seconds: None
        """Called with the seconds for which our own clock stood still."""
        self.stood_still: float = 0.0
        """The sum of these seconds."""
        self.unsent: list[Any] = []
        """The batches of this tick that have not been sent, in order; outbox.py makes them."""
        self.undecided: int = 0
        """Number of batches that were sent and have no verdict yet."""
        self.singles: int = 0
        """Number of batches with one name that were sent in a row."""
        self.flush_due: bool = False
        self._background = background
        self._strict = strict
        self._untracked: set[Node] = set()
        self._standstill = StandStill(len(self.nodes), self.quorum)
        self._set_guard = SetGuard(self.nodes, self.quorum, label)
        self._flaws: dict[Node | SetGuard, Failure] = {}
        """Why this set of nodes can't work."""
        self._warned: set[str] = set()
        self._read_again = self._ahead = 0.0
        self._offset: float | None = None
        self._changed = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first use; no other loop may use this."""
        for index, node in enumerate(self.nodes):
            node.watched_keys = self.wakeups.watched
            node.on_wake = partial(self.wakeups.wake, node=index)
            node.on_connect = self._check
            node.on_jump = self._jumped
            node.on_state = self._note_change

    def ready(self) -> None:
        """Begin to connect on the first call. Called before each request.

        Raises ConfigurationError if this set of nodes can't work, or belongs to another event loop.
        """
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self._start(loop)
        if self._flaws:
            # A new error each time: one that is raised again and again keeps every caller's frames.
            raise ConfigurationError(next(iter(self._flaws.values())).cause)

    def check_loop(self) -> None:
        """Raise ConfigurationError if this was first used in another event loop."""
        if self.loop is not None and self.loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "this manager was first used in another event loop; make one manager per loop"
            )

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.check_loop()
        self.loop = loop
        for node in self.nodes:
            self._background.spawn(node.keep(), f"asynclock: keep {node.address}")

    async def finish(self, undoing: Collection[asyncio.Task[Any]] = ()) -> None:
        """Wait until the nodes have executed all releases, then end all connections.

        Waits at most two node timeouts for the replies, and one more for a blocked connection.
        """
        patience = 2 * max(node.settings.node_timeout for node in self.nodes)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    if undoing:
                        await asyncio.wait(undoing)
                    await asyncio.gather(*(node.settle() for node in self.nodes))
        finally:  # also if all tasks are cancelled meanwhile
            self._set_guard.close()
            await asyncio.gather(*(node.finish() for node in self.nodes))

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def flush_soon(self) -> None:
        """Send the releases and acquires of this tick when it ends; call this once per tick."""
        if self.loop is not None:
            self.flush_due = True
            self.loop.call_soon(self._end_tick)

    def _end_tick(self) -> None:
        self.flush_due = False
        self.flush(write=True)

    def flush(self, *, write: bool = False) -> None:
        """Send the releases and acquires of this tick now; `write`: write all that waits, too."""
        if self.unsent:
            unsent, self.unsent = self.unsent, []
            for one in unsent:
                one.send(write=write and (self.home is not None or one is unsent[-1]))

    def write(self) -> None:
        for node in self.nodes:
            node.write()

    def broadcast(self, command: Command, sink: Sink, *, arm: bool = False) -> None:
        """Send `command` to every node; `sink` gets each answer with the node's number."""
        self.flush()
        for index, node in enumerate(self.nodes):
            node.ask(command, sink, index, arm=arm)

    def deliver(self, command: Command, sink: Sink, indices: Sequence[int]) -> None:
        """Send a release to these nodes, now or once they are reachable again."""
        self.flush()
        for index in indices:
            self.nodes[index].deliver(command, sink, index)

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Return whether a positive reply of node `index` counts for a lease won with `voters`.

        While the node is in quarantine its reply counts only if its own grant counted: then the key
        is from that grant, and no other owner was granted the name since (tests/model: V1 to V5,
        W1). That of a new primary counts only once the previous one no longer grants anything (F1
        to F3, G5).
        """
        trust = self.nodes[index].trust
        if self._set_guard.failure is not None:
            return False
        return sent >= trust.votes_from or (index in voters and sent >= trust.renews_from)

    def tracks(self) -> bool:
        """Return whether enough nodes send pushes that every release is noticed."""
        silent = sum(not node.tracking for node in self.nodes)
        return silent < self.quorum

    # clocks

    def fence_floor(self, now: float) -> int:
        """Return the fence floor for an attempt that starts now, in µs; -1 if too few are known.

        Then each node uses its own clock, which may cost a second round trip. Our wall clock must
        not take its place: a wrong one would push counters so far ahead that no floor restores a
        lost counter.
        """
        if now >= self._read_again:
            self.read_clocks(now)
        return -1 if self._offset is None else int((now + self._offset) * 1_000_000)

    def not_after(self, until: float) -> int:
        """Return the node time in µs after which a node must not execute a request.

        `until` is when we stop waiting for the reply. The clock that is most ahead counts, so that
        no node rejects the request too early. The result is 0 while fewer than a quorum of clocks
        are known: then each node limits the request by its own clock (`give_up_at`).
        """
        return int((until + NOT_AFTER_GRACE + self._ahead) * 1_000_000) if self._ahead else 0

    def read_clocks(self, now: float) -> None:
        """Note by how much the clocks of the nodes, as far as these are known, differ from ours."""
        offsets = [o for node in self.nodes if (o := node.trust.offset) is not None]
        known = len(offsets) >= self.quorum
        self._read_again = now + CLOCK_READING_AGE if known else 0.0
        # Do not wait until every clock is known, because requests have no limit until then. A node
        # that is far ahead rejects the first request as late and accepts the next one.
        self._ahead = max(offsets) if known else 0.0
        self._offset = validity.low_median(offsets) if known else None

    def _jumped(self, node: Node, by: float) -> None:
        now = _clock.now()
        self._read_again = 0.0
        standstill, index = self._standstill, self.nodes.index(node)
        sooner = standstill.jumped(index, by, now)
        if sooner:
            # Whether their clocks or ours: leases end that much sooner on a quorum.
            _log.warning("the clocks of a quorum jumped by %+.3f s, or ours stood still", sooner)
            self.stood_still += sooner
            self.on_stood_still(sooner)
        for other in standstill.silent(index):
            self.nodes[other].check_clock()

    # readiness

    async def connected(self, until: float) -> None:
        """Wait until no node is connecting for the first time, but not beyond `until`."""
        while "connecting" in self._states() and _clock.now() < until:
            await self._change(until)

    async def voting(self, until: float) -> bool:
        """Wait until a quorum votes; return False at `until`, or once that is known to be later."""
        while self._states().count("up") < self.quorum:
            now = _clock.now()
            if now + self.barred >= until:
                return False
            # A stalled link, or one that is not confirmed, reports no change when it works again.
            limits = [until, now + self.nodes[0].settings.node_timeout]
            limits += [node.votes_from for node in self.nodes if node.votes_from > now]
            await self._change(min(limits))
        return True

    @property
    def barred(self) -> float:
        """Seconds until the guards let a quorum vote; 0 if they do now."""
        now = _clock.now()
        # A node that is down is not kept away by its guard.
        up = [node.votes_from for node in self.nodes if node.state(now) != "down"]
        return barred(len(self.nodes), self.quorum, up, now)

    def causes(self) -> dict[str, str]:
        """Return why each node that is not up has no vote."""
        now = _clock.now()
        pairs = ((node.address, node.cause(now) or node.state(now)) for node in self.nodes)
        return {address: cause for address, cause in pairs if cause != "up"}

    def _states(self) -> list[str]:
        now = _clock.now()
        return [node.state(now) for node in self.nodes]

    async def _change(self, until: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - _clock.now()):
                await self._changed.wait()

    # checks of the nodes' facts

    def _check(self, met: Node) -> None:
        facts = cast(Facts, met.trust.facts)
        self._read_again = 0.0
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
        self._compare_sets(met)

    def _compare_sets(self, met: Node) -> None:
        guard = self._set_guard
        guard.compare(met)
        before = self._flaws.pop(guard, None)
        if guard.failure is not None:
            self._flaws[guard] = guard.failure
            if before is None:
                self.wakeups.wake(None)  # waiting calls learn it now

    def _reject(self, node: Node, text: str) -> None:
        node.rejected = self._flaws[node] = Failure(text, permanent=True)


def barred(size: int, quorum: int, votes_from: Iterable[float], now: float) -> float:
    """Return the seconds until the guards let `quorum` of `size` nodes vote; 0 if they do now.

    `votes_from` has the moments of the nodes that a guard keeps from voting, 0 for any others.
    """
    left = sorted((max(0.0, moment - now) for moment in votes_from), reverse=True)
    spare = size - quorum
    return left[spare] if len(left) > spare else 0.0


def quarantined(node: Node) -> Failure:
    """Return the failure of a request that the node got before a guard took its vote.

    The reply to this very request may be the reason, because it had the node's clock.
    """
    ended = Failure("a guard took its vote for a moment", votes_from=node.trust.votes_from)
    return node.obstacle(_clock.now()) or ended
