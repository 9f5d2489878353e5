"""What happens to the leases of one manager: they begin, pass on, go on, and end.

There is one engine for all primitives and deployments. It knows no kind of lock in particular.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ReferenceType

from .. import _clock, _process
from .._nodes.multiplexer import Multiplexer
from .._nodes.wire import NOBODY, Sink
from .._process import Background, of_one_process, wait_out
from ..events import CLOSED, UNNOTICED, Lost, Observers, Released, Renewed
from .attempt import WakesNext
from .context import Context, EngineSettings
from .grant import FOREVER, Grant, LocalQueue
from .outbox import Release, batch_release
from .renewal import Extended, Renewals, within
from .spec import LockSpec, QueueKey

_log = logging.getLogger("asynclock")

NAMES_LOGGED = 10
MOST_QUEUES = 1024
"""Number of local queues up to which those that nobody uses stay, or twice as many as are used."""


@of_one_process
class Engine(Context):
    """The leases of one manager, and its context: their renewals, local queues and ends."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        background: Background,
        settings: EngineSettings,
        observers: Observers,
    ) -> None:
        super().__init__(multiplexer, background, settings, observers)
        self.queues: dict[QueueKey, LocalQueue] = {}
        self._most_queues = MOST_QUEUES
        self.renewals: Renewals = Renewals(multiplexer, self.retention, self.lose, self._renewed)
        self._closing: asyncio.Task[None] | None = None
        _process.tell_child(self)
        self.on_drop: Callable[[ReferenceType[Any]], None] = self._dropped
        """Called with the reference to a lease that was garbage-collected without a release."""
        multiplexer.on_stood_still = self.renewals.shorten
        multiplexer.wakeups.on_change = self.renewals.changed

    # a lease goes on

    def extend_now(self, grant: Grant) -> Extended:
        """Ask all nodes to extend `grant` now to its ttl, but at most to its `hold_until`."""
        done: Extended = asyncio.get_running_loop().create_future()
        self.renewals.extend((grant,), within(grant, grant.hold_until), done)
        return done

    def publish(self, grant: Grant, told: Sink = NOBODY) -> None:
        """Store the message of the lease that has `grant`, or delete it if there is none now."""
        text = self.messages.get(grant, b"")
        self.multiplexer.broadcast(grant.spec.publish(grant.owner, text, grant.ttl), told)

    def _renewed(self, grant: Grant) -> None:
        self.totals.renewed += 1
        if grant in self.messages:
            self.publish(grant)
        if self.observers and grant.leases:
            left = grant.valid_until - _clock.now()
            self.observers(Renewed(grant.spec.name, grant.owner, grant.fence, left))

    # a lease ends

    def end_lease(
        self, grant: Grant, now: float, on_loss: Callable[[Grant, str], None]
    ) -> Release | None:
        """End the lease that has `grant`; return the release that was sent.

        Its replies may still show a loss, which is then told to `on_loss`. Returns None if the next
        waiter took the grant over, or if the lease had run out: then it was lost.
        """
        if now >= grant.valid_until:
            self.lose(grant, UNNOTICED)
            return None
        if self.observers:
            grant.vacated()  # first: an observer may release a part of this lease, or all of it
            held, left = now - grant.held_since, grant.valid_until - now
            self.observers(Released(grant.spec.name, grant.owner, grant.fence, held, left))
        self.totals.released += 1
        queue, at_least = grant.queue, grant.options.at_least
        rest = max(0.0, grant.held_since + at_least - now) if at_least else 0.0
        if queue is None:
            return self.release(grant, on_loss, rest=rest)
        if queue.waiters and not rest:
            if self.messages and self.messages.pop(grant, b""):
                self.publish(grant)
            grant.vacated()
            if queue.hand_on(grant, grant.options, now):
                return None
        kept = not rest and queue.keep(grant, now)
        if rest or len(self.multiplexer.nodes) == 1:
            # A single node executes this while the next task prepares its acquire. Rests go alone.
            release = self.release(grant, on_loss, kept=kept, rest=rest)
            self.next_in_line(queue)
            return release
        # Let the next task ask first: then its acquire goes into the same command as the release.
        # A second command for each of several nodes would cost more than an earlier start gains.
        queue.free(grant)
        self.next_in_line(queue)
        return self.release(grant, on_loss, kept=kept)

    def release(
        self,
        grant: Grant,
        on_loss: Callable[[Grant, str], None] | None = None,
        *,
        kept: bool = False,
        rest: float = 0.0,
    ) -> Release:
        """Send a release to all nodes, at the latest when this tick of the loop ends.

        on_loss: called with grant and reason if the replies show that the lease was lost before.
        kept: the nodes don't wake the next waiter yet, because this process may ask again.
        rest: seconds for which nobody gets the name. FOREVER: it was detached, so nothing is sent.
        """
        if self.messages and self.messages.pop(grant, b""):
            self.publish(grant)
        grant.over()
        self.renewals.remove(grant)
        queue, nodes = grant.queue, self.multiplexer
        if queue is not None:
            queue.free(grant)
        release = Release(self, grant, on_loss, kept, rest)
        if kept and queue is not None:
            release.on_certain = partial(self._pass_on_soon, queue, grant)
        if not kept and not rest:
            batch_release(release, wait=queue is not None and queue.asking > 0)
        elif rest < FOREVER:  # else it was detached
            nodes.deliver(release.command(), release, nodes.everyone)
        if kept:  # write it now: the caller's task doesn't wait, and may block the loop
            nodes.write()
        return release

    def _pass_on_soon(self, queue: LocalQueue, grant: Grant) -> None:
        # The nodes have answered a release that woke nobody. A task that must first be woken by
        # another asks within two rounds of the loop; after that the next process gets the name.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._pass_on_unless_taken, queue, grant)

    def _pass_on_unless_taken(self, queue: LocalQueue, grant: Grant) -> None:
        if queue.kept is grant:
            queue.kept = None
            self.pass_on(grant.spec)
            self.next_in_line(queue)

    def pass_on(self, spec: LockSpec) -> None:
        """Wake the waiter that a release did not wake because this process might ask again."""
        nodes = self.multiplexer
        nodes.broadcast(spec.pass_on(), WakesNext(nodes.wakeups, spec))

    def new_queue(self, spec: LockSpec, key: QueueKey) -> LocalQueue:
        """Make the local queue of a name; drop those that nobody uses if there are too many.

        Until then they stay for the next call: to make one for each acquire takes 3 % of its time.
        """
        if len(self.queues) >= self._most_queues:
            self.queues = {each: one for each, one in self.queues.items() if one.used}
            self._most_queues = max(MOST_QUEUES, 2 * len(self.queues))
        queue = self.queues[key] = LocalQueue(spec.name, key, spec.permits, self.settings.turn)
        return queue

    def next_in_line(self, queue: LocalQueue) -> None:
        """Let the next waiter ask, unless a task asks or all is held."""
        if queue.asking or len(queue.grants) >= queue.permits:
            return
        if queue.waiters and queue.let_ask():
            queue.asking += 1
        elif queue.unanswered or queue.holder or queue.message_replies:
            # The next call must not know what this one met, but a wait that ends just now must.
            self._drop(queue)

    def _drop(self, queue: LocalQueue) -> None:
        if not queue.used and self.queues.get(queue.key) is queue:
            del self.queues[queue.key]

    def lose(self, grant: Grant, reason: str) -> None:
        """End `grant` as lost: interrupt the body, report it once, let the next waiter ask."""
        if not grant.alarm:  # it has ended already
            return
        was_held, queue = bool(grant.leases), grant.queue
        # Don't interrupt the task that is closing the manager.
        grant.lost(reason, asyncio.current_task() if self.closed else None)
        self.release(grant)  # for the nodes that still keep it for us
        if was_held:
            held = _clock.now() - grant.held_since
            loss = Lost(grant.spec.name, grant.owner, grant.fence, reason, held)
            self.report_loss(loss, log=not self.closed)  # `close` logs one line for all
            if queue is not None:
                self.next_in_line(queue)

    def _dropped(self, reference: ReferenceType[Any]) -> None:
        for grant in self.renewals.grants():
            if reference in grant.leases and not self.closed:
                what, then = "a hold", "when the other holds have ended, the lease"
                if grant.lease is None:
                    # No release: the code that dropped it may still use what the lock protects.
                    self.soon(grant.stop_renewing)
                    what, then = "the lease", "it"
                warnings.warn(
                    f"{what} on {grant.spec.name!r} (fence {grant.fence}) was dropped "
                    f"without being released: {then} is no longer renewed and ends with its ttl",
                    ResourceWarning,
                    stacklevel=2,
                )

    def report_loss(self, loss: Lost, *, log: bool = True) -> None:
        """Count a loss, log it and tell the observers."""
        self.totals.lost += 1
        if log:
            now = _clock.now()
            causes = ((node.address, node.cause(now)) for node in self.multiplexer.nodes)
            _log.error(
                "lost the lease on %r (fence %d) after %.3f s: %s%s",
                loss.name,
                loss.fence,
                loss.held,
                loss.reason,
                "".join(f"; {address}: {cause}" for address, cause in causes if cause),
                extra={
                    "asynclock_name": loss.name,
                    "asynclock_fence": loss.fence,
                    "asynclock_reason": loss.reason,
                    "asynclock_held": loss.held,
                },
            )
        if self.observers:
            self.observers(loss)

    def close(self) -> None:
        """Release all leases and refuse every later call; sends, but waits for no reply."""
        if self.closed:
            return
        self.multiplexer.wakeups.wake(None)  # first, because `Seek.leave` closes its watch
        super().close()
        cut_off: list[str] = []
        for grant in self.renewals.grants():
            if grant.leases:
                cut_off.append(grant.spec.name)
                self.lose(grant, CLOSED)
            else:
                self.release(grant)
        self.multiplexer.flush()
        if cut_off:
            _log.warning(
                "the manager was closed, which ends %d held lease%s: %s",
                len(cut_off),
                "s" if len(cut_off) > 1 else "",
                ", ".join(map(repr, cut_off[:NAMES_LOGGED]))
                + ", …" * (len(cut_off) > NAMES_LOGGED),
                extra={"asynclock_names": tuple(cut_off)},
            )
        self.renewals.close()

    def forked(self) -> None:
        """In a forked child: hold and send nothing."""
        super().forked()
        if self.inherited:
            self.queues.clear()
            self.renewals.forked()

    async def aclose(self) -> None:
        """Close, and wait until all work has ended; a cancellation takes effect after that."""
        if self.inherited:
            return
        self.multiplexer.check_loop()
        self.close()
        if self._closing is None:
            self._closing = self.background.spawn(self._finish(), "asynclock: close")
        await wait_out(self._closing)

    async def _finish(self) -> None:
        try:
            await self.multiplexer.finish(self.undoing)
        finally:
            await self.background.aclose()
            # Connections that were still being opened have been aborted. Their sockets close in the
            # next rounds of the loop, so give it some: the program may stop the loop after this.
            for _ in range(3):
                await asyncio.sleep(0)


# what a manager reports without asking the nodes


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node, as this manager sees it; `LockManager.nodes` returns them."""

    node: str
    """The node's address, without credentials."""
    state: str
    """"up", "connecting", "stalled", "down", "quarantined" (a guard) or "rejected"."""
    cause: str
    """Why the node is not up, or the error that it gave instead of its last vote; otherwise ""."""
    votes_in: float
    """Seconds until the node may vote again; 0 if it may vote now."""
    round_trip: float | None
    """Smoothed seconds from a request to its reply; None before the first reply."""
    version: str | None
    """What INFO says about the server: its kind and version; None before that is known."""
    role: str | None
    """"master" or "slave", as INFO says; None before that is known."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Present numbers of a manager, and its counts since it was made."""

    held: int
    """Number of leases held now. A hold on several permits, or on several names of a Cluster,
    counts once for each; so it does in `acquired`, `released` and `lost`."""
    waiting: int
    """Number of tasks that ask the nodes now or wait in a local queue."""
    acquired: int
    """Number of leases granted, including hand-overs."""
    released: int
    """Number of leases that their holders released, including those that had been lost unseen."""
    lost: int
    """Number of leases that were lost, including those whose loss only their release showed."""
    renewed: int
    """Number of renewals that reached a quorum."""
    attempts: int
    """Number of votes; an acquire needs several if others have the lock."""
    refused: int
    """Number of attempts that failed because others had the lock."""
    split_votes: int
    """Number of attempts that no one won because rivals asked at the same time."""
    write_backs: int
    """Number of acquires with a second round trip because the nodes' counters disagreed."""
    handovers: int
    """Number of leases handed over between tasks of this process."""
    wakeups: dict[str, int]
    """Number of waits that ended before the call's timeout, by cause: "push" (from a server),
    "expiry" (the holder's ttl was over), "pacing" (time to ask again), "turn" (in the local
    queue)."""


def health(engine: Engine) -> tuple[NodeHealth, ...]:
    """Return the health of each node."""
    now = _clock.now()
    found = []
    for node in engine.multiplexer.nodes:
        facts = node.trust.facts
        found.append(
            NodeHealth(
                node=node.address,
                state=node.state(now),
                cause=node.cause(now),
                votes_in=max(0.0, node.votes_from - now),
                round_trip=node.round_trip,
                version=facts.version if facts else None,
                role=facts.role if facts else None,
            )
        )
    return tuple(found)
