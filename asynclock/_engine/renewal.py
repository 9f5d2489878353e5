"""Keeps leases alive: one timer for all leases of a manager, one batch per node.

There is no task and no timer per lease, but a heap of the moments at which grants must be checked.
All grants of one batch share a moment. A renewal that does not reach a quorum is repeated until the
lease's deadline. The deadline is in the heap as well, so an unresponsive network can't delay the
report of a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import count
from typing import Any

from .. import _clock
from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._nodes.script import Command, Word
from .._rules import validity
from ..events import DROPPED, HELD_TOO_LONG, NO_LONGER, NOT_RENEWED, RAN_OUT, UNNOTICED
from .grant import FOREVER, Grant
from .moments import Moments
from .restoring import Restores
from .round import Done, Round
from .spec import LockSpec, ms

LEASE_INHERITED = "it belongs to the process that forked this one"
"""The reason of a loss in a forked child: its parent has the lease."""
LATE = 0.25
"""Seconds by which a timer is later than its moment only if the event loop was busy."""
RENEWAL_WINDOW = 0.01
"""Seconds within which due renewals are sent as one batch."""


class Renewals:
    """All live grants of a manager."""

    def __init__(
        self,
        multiplexer: Multiplexer,
        retention: int,
        lose: Callable[[Grant, str], None],
        renewed: Callable[[Grant], None],
    ) -> None:
        self._multiplexer = multiplexer
        self._retention = retention
        self.restores: Restores = Restores(multiplexer, retention, self._renew_at)
        self._lose = lose
        self._renewed = renewed
        self._moments = Moments()
        self._number = count()
        self._errors: dict[int, Failure] = {}
        """The error with which each node answered its last renewal, if it did."""
        self._alive: dict[str, Grant] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._context = Context()
        """An empty context for the timer, instead of that of the task that happens to set it."""

    def add(self, grant: Grant, sent: float) -> None:
        """Keep `grant` alive; its validity counts from `sent`."""
        self._alive[grant.owner] = grant
        self._set(grant, self._next_look(grant, sent))

    def remove(self, grant: Grant) -> None:
        """Forget `grant`, which is over."""
        self._alive.pop(grant.owner, None)

    def grants(self) -> list[Grant]:
        """Return the live grants, oldest first."""
        return list(self._alive.values())

    def shares(self, spec: LockSpec, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` shares (as a reader) the name that `spec` wants to have alone."""
        return any(
            grant.spec.keys[0] == spec.shared and lease._inside(task)
            for grant in self.grants()
            if grant.owner not in spec.exempt and (lease := grant.lease) is not None
        )

    def find(self, owner: str) -> Grant | None:
        """Return the live grant of `owner`, or None if the owner isn't one of ours."""
        return self._alive.get(owner)

    def close(self) -> None:
        """End the timer, and drop all renewals that are due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._moments.clear()

    def forked(self) -> None:
        """In a forked child: drop all grants, which stay with the parent."""
        for grant in self._alive.values():
            if (lease := grant.lease) is not None:
                lease._forked(LEASE_INHERITED)
            grant.over()
        self._alive.clear()
        self.close()

    def shorten(self, by: float) -> None:
        """End all leases `by` seconds sooner, because our clock stood still for that long."""
        for grant in self.grants():
            grant.end_sooner(by)
            self._set(grant, max(_clock.now(), grant.alarm - by))

    def extend(
        self,
        grants: Sequence[Grant],
        ttl: float,
        done: Done | None = None,
    ) -> None:
        """Ask all nodes to extend these grants of one script to `ttl`, then call `done`."""
        sent, number = _clock.now(), next(self._number)
        until = validity.valid_until(sent, ttl)
        shortened = [one for one in grants if _shortens(one, ttl, until)]
        for grant in grants:
            grant.asked(until)
        for grant in shortened:
            self._shorten(grant, until, number, ttl)
        keys: list[str] = [key for grant in grants for key in grant.spec.keys]
        owners = [grant.owner for grant in grants]
        args: tuple[Word, ...] = ("extend", ms(ttl), self._retention, *owners)
        command = Command(grants[0].spec.script, keys, args)
        size = len(self._multiplexer.nodes)
        round_ = Round(self, grants, ttl, size, sent, number, shortened, done)
        self._multiplexer.broadcast(command, round_)

    def extend_one(self, grant: Grant, ttl: float | None, done: Done) -> None:
        """Extend one grant for an `extend` call, at most to its `hold_until`.

        If `ttl` is None, use the grant's ttl, or that of an `extend` call without a reply so far.
        """
        ttl = grant.wanted_ttl if ttl is None else ttl
        asking = grant.wants(next(self._number), ttl)

        def finished(failures: dict[int, Failure] | None) -> None:
            grant.answered(asking)
            done(failures)

        self.extend((grant,), _within(grant, ttl, grant.hold_until), finished)

    def _shorten(self, grant: Grant, until: float, number: int, ttl: float) -> None:
        grant.shortened(until, number, ttl)
        if grant.alarm:
            self._set(grant, min(grant.alarm, grant.valid_until))

    # called by a round

    def granted(
        self, grant: Grant, sent: float, number: int, ttl: float, stood_still: float
    ) -> None:
        """Count an extension by a quorum: request `number`, sent when `stood_still` was that."""
        if grant.alarm:
            # If our clock stood still since then, the lease ends that much sooner.
            missed = self.stood_still - stood_still
            grant.extended(validity.valid_until(sent, ttl) - missed, number, ttl)
            self._set(grant, self._next_look(grant, sent))
            self._renewed(grant)

    def answered(self, index: int, error: Failure | None) -> None:
        """Note for the health of node `index` that it answered with an error, such as NOREPLICAS.

        A success ends only an error of a renewal: a server that is out of memory still renews.
        """
        node = self._multiplexer.nodes[index]
        if error is None:
            past = self._errors.pop(index, None)
            if past is not None and node.lack is past:
                node.note(None)
        elif error.code:
            self._errors[index] = error
            node.note(error)

    def gone(self, grant: Grant) -> None:
        """Mark `grant` as lost: too few nodes still keep it for a quorum."""
        if grant.alarm:
            self._lose(grant, NO_LONGER)

    def missing(self, grant: Grant, index: int) -> None:
        """Put the key back on node `index`, which replied that it lacks the key, if it forgot."""
        self.restores.missing(grant, index)

    def undecided(self, grant: Grant) -> None:
        """Schedule a repetition soon, or the deadline if that is sooner: too few nodes answered."""
        if grant.alarm:
            again = validity.retry_at(_clock.now(), grant.ttl)
            self._set(grant, min(again, grant.valid_until))

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Return whether node `index`, asked at `sent`, may count for a lease won with `voters`."""
        return self._multiplexer.counts(index, sent, voters)

    @property
    def stood_still(self) -> float:
        """Seconds that our clock has stood still so far."""
        return self._multiplexer.stood_still

    @property
    def quorum(self) -> int:
        """Number of nodes that must extend."""
        return self._multiplexer.quorum

    # the timer

    def _next_look(self, grant: Grant, sent: float) -> float:
        at, end = validity.renew_at(sent, grant.ttl), grant.valid_until
        if at >= grant.renew_until or end >= grant.renew_until:
            return end
        return min(at, end, grant.restore_at)

    def _renew_at(self, grant: Grant, at: float) -> None:
        if at < min(grant.valid_until, grant.renew_until):
            grant.restore_by(at)
            self._set(grant, min(grant.alarm, at))

    def _set(self, grant: Grant, at: float) -> None:
        grant.check_at(at)
        if self._moments.add(grant, at):
            self._moments.tidy(len(self._alive))
            if self._timer is None or at < self._timer_at:
                self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, at - _clock.now())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, self._look, context=self._context)

    def _look(self) -> None:
        self._timer = None
        now = _clock.now()
        late = now - self._timer_at > LATE
        self._renew(self._moments.take(now + RENEWAL_WINDOW), now, late=late)
        first = self._moments.first
        if first is not None and (self._timer is None or first < self._timer_at):
            self._arm(first)

    def _renew(self, due: list[Grant], now: float, *, late: bool) -> None:
        batches: dict[tuple[Any, int, float], list[Grant]] = {}
        for grant in due:
            if now >= grant.valid_until:
                self._lose(grant, self._why_late(grant, late=late))
            elif grant.valid_until < grant.renew_until and not self._ends_next(grant, now):
                grant.restore_asked()
                # Until the round has its replies, the next check is at the deadline.
                self._set(grant, grant.valid_until)
                ttl = _within(grant, grant.wanted_ttl, grant.renew_until)
                key = (grant.spec.script, len(grant.spec.keys), ttl)
                batches.setdefault(key, []).append(grant)
            else:
                self._set(grant, grant.valid_until)
        size = self._multiplexer.batch
        for (_, _, ttl), batch in batches.items():
            for start in range(0, len(batch), size):
                self.extend(batch[start : start + size], ttl)

    @staticmethod
    def _ends_next(grant: Grant, now: float) -> bool:
        # A renewal this close to the deadline comes too late: only wait for the deadline.
        return grant.valid_until - now <= RENEWAL_WINDOW

    @staticmethod
    def _why_late(grant: Grant, *, late: bool) -> str:
        lease = grant.lease
        abandoned = lease is not None and lease._options.renew and not grant.renew_until
        if grant.dropped or abandoned:
            return DROPPED
        if not grant.renew_until:
            return RAN_OUT
        if grant.valid_until >= grant.renew_until:
            return HELD_TOO_LONG
        if late:
            return UNNOTICED
        return NOT_RENEWED


def _shortens(grant: Grant, ttl: float, until: float) -> bool:
    """Return whether the request may make the keys end sooner, even if it arrives late."""
    asked_until = max(grant.valid_until, grant.asked_until)
    return until < asked_until or (ttl < grant.ttl and until < grant.hold_until)


def _within(grant: Grant, ttl: float, end: float) -> float:
    """Return `ttl`, or a shorter one that ends at `end` or at the present end, if that is later."""
    if end == FOREVER:
        return ttl
    return min(ttl, validity.ttl_until(_clock.now(), max(end, grant.valid_until)))
