"""Keeps leases alive: one timer for all leases of a manager, one request per node.

There is no task and no timer per lease, but a heap of the moments at which grants must be checked.
A renewal that does not reach a quorum is repeated until the lease's deadline. The deadline is in
the heap as well, so an unresponsive network can't delay the report of a loss.

A key that a node lacks because it forgot it, or had no vote, is put back once
(docs/decisions/0022); one that was deleted by hand stays deleted. Each renewal also asks for a push
when its keys change. A push proves no loss, but makes the next renewal come at once (0038).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from .. import _clock
from .._nodes.link import LATE_TIMER_FACTOR
from .._nodes.multiplexer import Multiplexer
from .._nodes.wire import NOBODY, Command, Failure, Take
from .._rules import validity
from ..events import DROPPED, HELD_TOO_LONG, NO_LONGER, NOT_RENEWED, RAN_OUT, UNNOTICED
from .grant import FOREVER, Grant
from .spec import Granted, LockSpec, acquired, extended

QUARANTINED = Failure("it is quarantined, and this lease was won without it")
LEASE_INHERITED = "it belongs to the process that forked this one"
"""The reason of a loss in a forked child: its parent has the lease."""
LATE = 0.25
"""Seconds of delay of a timer above which the event loop was busy."""
RENEWAL_WINDOW = 0.01
"""Seconds within which due renewals are sent together."""
PAUSE = 0.1
"""Minimum seconds between two renewals of a lease that pushes cause; doubled after each one, until
an ordinary renewal finds no change: a full `tracking-table-max-keys` pushes for nothing."""
CROWDED = 64
"""Number of entries above which those that no longer count may be removed."""
Extended = asyncio.Future[dict[int, Failure] | None]
"""Its result is None once a quorum has extended all leases, otherwise the failures by node."""


class Renewals:
    """All live grants of a manager."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        retention: int,
        lose: Callable[[Grant, str], None],
        renewed: Callable[[Grant], None],
    ) -> None:
        self.multiplexer: Multiplexer = multiplexer
        self._retention = retention
        self._lose = lose
        self._renewed = renewed
        self._heap: list[tuple[float, int, Grant]] = []
        """When to check each grant, what settles the order of equal moments, and the grant. Where
        its `alarm` is another moment by now, or 0, the entry counts no more."""
        self.numbers: count[int] = count(1)
        """Numbers entries of the heap, and messages: a later one has a higher number."""
        self._alive: dict[str, Grant] = {}
        self._tracked: dict[str, Grant] = {}
        """The keys of which the nodes will report a change, and the grant that has each."""
        self._early_at = 0.0
        """When the last of the renewals that pushes cause is due."""
        self._pauses: dict[str, tuple[float, float]] = {}
        """For each owner whose renewal came early: when the next one may, and the pause after."""
        self._putting_back: set[tuple[str, int]] = set()
        """The owner and the node of each request to put a key back that has no reply so far."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._context = Context()
        """An empty context for the timer, instead of that of the task that happens to set it."""

    def add(self, grant: Grant, sent: float) -> None:
        """Keep `grant` alive; its validity counts from `sent`."""
        self._alive[grant.owner] = grant
        self._set(grant, self._next_check(grant, sent))

    def remove(self, grant: Grant) -> None:
        """Forget `grant`, which is over."""
        self._alive.pop(grant.owner, None)
        if self._tracked or self._pauses:
            self._pauses.pop(grant.owner, None)
            for key in grant.spec.own_keys:
                self._tracked.pop(key, None)

    def grants(self) -> list[Grant]:
        """Return the live grants, oldest first."""
        return list(self._alive.values())

    def shares(self, spec: LockSpec, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` shares (as a reader) the name that `spec` wants to have alone."""
        return any(
            grant.spec.keys[0] == spec.shared and grant.inside(task)
            for grant in self.grants()
            if grant.owner not in spec.exempt
        )

    def find(self, owner: str) -> Grant | None:
        """Return the live grant of `owner`, or None if the owner isn't one of ours."""
        return self._alive.get(owner)

    def close(self) -> None:
        """End the timer, and drop all renewals that are due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def forked(self) -> None:
        """In a forked child: drop all grants, which stay with the parent."""
        for grant in self._alive.values():
            grant.inherited(LEASE_INHERITED)
        self._alive.clear()
        self.close()

    def shorten(self, by: float) -> None:
        """End all leases `by` seconds sooner, because our clock stood still for that long."""
        for grant in self.grants():
            grant.end_sooner(by)
            self._set(grant, max(_clock.now(), grant.alarm - by))

    def extend(self, grants: Sequence[Grant], ttl: float, done: Extended | None = None) -> None:
        """Ask all nodes to extend these grants of one script to `ttl`; `done` tells the result."""
        sent = _clock.now()
        until = validity.valid_until(sent, ttl)
        for grant in grants:
            grant.asked(until)
        held = ((grant.spec, grant.owner) for grant in grants)
        command = grants[0].spec.extend(held, ttl, self._retention)
        self.multiplexer.broadcast(command, Extension(self, grants, until, sent, done))
        self._track(grants)

    def _track(self, grants: Sequence[Grant]) -> None:
        """Ask for a push when a key of these grants changes; a renewal uses such a request up."""
        if not any(node.tracking for node in self.multiplexer.nodes):
            return  # no server can push
        keys: list[str] = []
        for grant in grants:
            own = grant.spec.own_keys if grant.alarm and grant.renew_until else ()
            if own and own[0] in self._tracked:  # nothing has changed since the last renewal
                self._pauses.pop(grant.owner, None)
            self._tracked.update(dict.fromkeys(own, grant))
            keys += own
        if keys:
            look = Command.plain("MGET", *keys, keys=keys)
            self.multiplexer.broadcast(look, NOBODY, arm=True)

    def changed(self, key: str | None) -> None:
        """Renew at once the lease that has `key`, which changed on a node; all leases if ""."""
        if key == "":
            for grant in self.grants():
                self._renew_early(grant)
            self._tracked.clear()
        elif key is not None and key in self._tracked:
            self._renew_early(self._tracked.pop(key))

    def _renew_early(self, grant: Grant) -> None:
        # One group at a time: thousands of leases at once would block the loop.
        gap = RENEWAL_WINDOW / self.multiplexer.most_leases
        self._early_at = max(_clock.now(), self._early_at + gap)
        allowed, pause = self._pauses.get(grant.owner, (0.0, PAUSE))
        at = max(self._early_at, allowed)
        if grant.alarm and at < grant.sooner_at:
            self._pauses[grant.owner] = at + pause, 2 * pause
            self._renew_at(grant, at)

    # called by an extension

    def granted(self, grant: Grant, until: float, sent: float) -> None:
        """Count an extension to `until` by a quorum, which was requested at `sent`."""
        if grant.alarm:
            grant.extended(until)
            self._set(grant, self._next_check(grant, sent))
            self._renewed(grant)

    def gone(self, grant: Grant) -> None:
        """End `grant` as lost: too few nodes still keep it for a quorum."""
        if grant.alarm:
            self._lose(grant, NO_LONGER)

    def undecided(self, grant: Grant) -> None:
        """Schedule a repetition soon, or the deadline if that is sooner: too few nodes answered."""
        if grant.alarm:
            again = validity.retry_at(_clock.now(), grant.ttl)
            self._set(grant, min(again, grant.valid_until))

    # keys that a node lacks

    def lacking(self, grant: Grant, index: int) -> None:
        """Put the key of `grant` back on node `index`, which replied that it lacks the key.

        This does nothing unless the node forgot the key, or had no vote when the others were asked.
        """
        node, now = self.multiplexer.nodes[index], _clock.now()
        since = max(node.trust.remembers_from, node.trust.votes_from)
        if since <= max(grant.asked_since, (grant.restored or {}).get(index, 0.0)):
            return
        if not node.settings.restart_guard or (grant.owner, index) in self._putting_back:
            return
        if now < node.trust.votes_from:
            self._renew_at(grant, node.trust.votes_from)
        elif node.obstacle(now) is None:
            self._put_back(grant, index, now)

    def _put_back(self, grant: Grant, index: int, now: float) -> None:
        node, nodes = self.multiplexer.nodes[index], self.multiplexer
        until = min(grant.valid_until, now + LATE_TIMER_FACTOR * node.settings.node_timeout)
        nodes.read_clocks(now)  # the last acquire may be long ago
        not_after = nodes.not_after(until)
        if not not_after:
            return  # too few clocks are known to say from when on the request is too late
        request = grant.spec.restore(grant.owner, grant.ttl, grant.top, not_after, self._retention)
        self._putting_back.add((grant.owner, index))
        voted = index in grant.voters  # then no other request to the node is pending
        sink = Take(partial(self._answered_put_back, grant, now, voted))
        # Until the reply comes, a key on the node may come from a late execution of this request.
        grant.doubt(index)
        node.ask(request, sink, index)

    def _answered_put_back(
        self, grant: Grant, sent: float, voted: bool, index: int, reply: Any
    ) -> None:
        node = self.multiplexer.nodes[index]
        self._putting_back.discard((grant.owner, index))
        parsed = acquired(reply)
        if type(parsed) is not Granted or sent < node.trust.votes_from:
            self._renew_at(grant, validity.retry_at(_clock.now(), grant.ttl))
            return
        if parsed.fence < grant.top:  # more were reserved, or the node ignored the floor
            raised = grant.spec.write_back(grant.owner, grant.top, self._retention)
            node.ask(raised, NOBODY, index)
        grant.put_back(index, sent, parsed.fence, voted=voted)

    # the timer

    def _next_check(self, grant: Grant, sent: float) -> float:
        at, end = validity.renew_at(sent, grant.ttl), grant.valid_until
        if at <= end and at <= grant.sooner_at:  # the usual case: `min` takes longer
            return at
        return min(end, grant.sooner_at)

    def _renew_at(self, grant: Grant, at: float) -> None:
        if at < min(grant.valid_until, grant.renew_until):
            grant.renew_by(at)
            self._set(grant, min(grant.alarm, at))

    def _set(self, grant: Grant, at: float) -> None:
        grant.check_at(at)
        heap = self._heap
        heapq.heappush(heap, (at, next(self.numbers), grant))
        if len(heap) > CROWDED and len(heap) > 4 * len(self._alive):
            heap[:] = [entry for entry in heap if entry[2].alarm == entry[0]]
            heapq.heapify(heap)
        if self._timer is None or at < self._timer_at:
            self._arm(at)

    def _take(self, until: float) -> list[Grant]:
        """Remove the entries up to `until`, and later ones that don't count; return the grants."""
        heap = self._heap
        due: dict[Grant, None] = {}  # a grant may be there twice with the same moment
        while heap and (heap[0][0] <= until or heap[0][2].alarm != heap[0][0]):
            at, _, grant = heapq.heappop(heap)
            if grant.alarm == at:
                due[grant] = None
        return list(due)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, at - _clock.now())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer = None
        now = _clock.now()
        late = now - self._timer_at > LATE
        self._renew(self._take(now + RENEWAL_WINDOW), now, late=late)
        if self._heap:
            self._arm(self._heap[0][0])

    def _renew(self, due: list[Grant], now: float, *, late: bool) -> None:
        groups: dict[tuple[Any, int, float], list[Grant]] = {}
        for grant in due:
            if now >= grant.valid_until:
                self._lose(grant, _why_late(grant, late=late))
            elif grant.valid_until < grant.renew_until and not _ends_next(grant, now):
                grant.renewal_sent()
                # Until the extension has its replies, the next check is at the deadline.
                self._set(grant, grant.valid_until)
                ttl = within(grant, grant.renew_until)
                key = (grant.spec.script, len(grant.spec.keys), ttl)
                groups.setdefault(key, []).append(grant)
            else:
                self._set(grant, grant.valid_until)
        size = self.multiplexer.most_leases
        for (_, _, ttl), group in groups.items():
            for start in range(0, len(group), size):
                self.extend(group[start : start + size], ttl)


@dataclass(eq=False, repr=False)
class Extension:
    """One request to all nodes to extend a group of grants, decided grant by grant."""

    _renewals: Renewals
    _grants: Sequence[Grant]
    _until: float
    _sent: float
    _done: Extended | None

    def __post_init__(self) -> None:
        self._nodes = self._renewals.multiplexer
        self._missing = len(self._nodes.nodes)
        self._stood_still = self._nodes.stood_still
        self._votes = [[0, 0] for _ in self._grants]
        self._failures: dict[int, Failure] = {}

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` for the whole group."""
        parsed = extended(reply, len(self._grants))
        if isinstance(parsed, Failure):
            self._failures[index] = parsed
        else:
            self._count(index, parsed)
        self._missing -= 1
        if not self._missing:
            for grant, votes in zip(self._grants, self._votes, strict=True):
                if self._open(votes):
                    self._renewals.undecided(grant)
            self._tell()

    def _open(self, votes: list[int]) -> bool:
        quorum = self._nodes.quorum
        return votes[0] < quorum and votes[1] <= len(self._nodes.nodes) - quorum

    def _count(self, index: int, answers: list[bool]) -> None:
        renewals, quorum = self._renewals, self._nodes.quorum
        settled = 0
        for grant, votes, prolonged in zip(self._grants, self._votes, answers, strict=True):
            if prolonged and not self._nodes.counts(index, self._sent, grant.voters):
                self._failures[index] = QUARANTINED
            elif prolonged:
                votes[0] += 1
                if votes[0] == quorum:
                    # If our clock stood still meanwhile, the lease ends that much sooner.
                    missed = self._nodes.stood_still - self._stood_still
                    renewals.granted(grant, self._until - missed, self._sent)
            else:
                votes[1] += 1
                if votes[1] == len(self._nodes.nodes) - quorum + 1:
                    renewals.gone(grant)
                elif grant.alarm:
                    renewals.lacking(grant, index)
            settled += not self._open(votes)
        if settled == len(self._grants):
            self._tell()

    def _tell(self) -> None:
        if self._done is not None and not self._done.done():
            granted = all(votes[0] >= self._nodes.quorum for votes in self._votes)
            self._done.set_result(None if granted else self._failures)


def _ends_next(grant: Grant, now: float) -> bool:
    # A renewal this close to the deadline comes too late: only wait for the deadline.
    return grant.valid_until - now <= RENEWAL_WINDOW


def _why_late(grant: Grant, *, late: bool) -> str:
    dropped = grant.lease is None or (grant.options.renew and not grant.renew_until)
    if grant.leases and dropped:
        return DROPPED
    if not grant.renew_until:
        return RAN_OUT
    if grant.valid_until >= grant.renew_until:
        return HELD_TOO_LONG
    if late:
        return UNNOTICED
    return NOT_RENEWED


def within(grant: Grant, end: float) -> float:
    """Return the grant's ttl, or less if that would end after `end` and after the present end."""
    if end == FOREVER:
        return grant.ttl
    return min(grant.ttl, validity.ttl_until(_clock.now(), max(end, grant.valid_until)))
