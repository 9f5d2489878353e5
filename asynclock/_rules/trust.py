"""Facts about a node → may it vote? The guards against restarts, clock jumps and wrong servers.

Rules of this file: `now` comes in; a moment is on our boot-time clock; whoever may have forgotten
a grant does not vote until every lease it may have granted has expired. The figures and the proof
that one tick less is too short are in docs/fencing.md and tests/model/.
"""

from __future__ import annotations

from dataclasses import dataclass

from .validity import quarantine

ROUNDING = 2.0
"""INFO gives whole seconds of uptime and updates its clock lazily: take two off."""
JUMP = 0.002
"""Clock readings that disagree by more are a jump; slewing and scheduling stay below."""
RATE = 0.001
"""How fast two healthy clocks may drift apart: twice what NTP's slew limit (500 ppm) allows."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node says of itself when a connection opens; None where it would not say."""

    run_id: str | None = None
    uptime: float | None = None
    version: str | None = None
    role: str | None = None
    maxmemory: int | None = None
    maxmemory_policy: str | None = None
    durable: bool = False
    """Grants survive a crash: append-only file, fsync always (or the user says so)."""
    tracking: bool = False
    """The connection gets a push when a watched key changes."""
    replicas: int | None = None
    """How many are connected to it."""
    marked: float | None = None
    """For so many seconds clients have known this process as the primary; None: no mark is kept."""
    promoted: bool = False
    """It was no primary when clients last left their mark: it may miss what another granted."""
    complete: bool = False
    """The mark says that all replicas had acknowledged whatever another granted."""
    refused: tuple[str, ...] = ()
    """The commands it would not run for us when we introduced ourselves."""

    @property
    def evicts(self) -> bool:
        """Whether the server may throw away lock keys when memory is short."""
        # Lock keys have a ttl, so the volatile-* policies take them too.
        return self.maxmemory_policy not in (None, "", "noeviction")


class Trust:
    """What one client knows of one node over all its connections."""

    __slots__ = ("_as_of", "_high", "_low", "cause", "facts", "last_reply", "max_ttl", "votes_from")

    def __init__(self, max_ttl: float) -> None:
        self.max_ttl = max_ttl
        self.facts: Facts | None = None
        self.votes_from = 0.0
        """Replies to what was sent earlier do not count."""
        self.cause = ""
        self.last_reply = 0.0
        self._low = self._high = self._as_of = 0.0

    # restarts

    def met(self, facts: Facts, now: float, *, guard: bool, guard_first: bool) -> float:
        """A connection opened. → seconds from `now` for which the node must not vote."""
        known, self.facts = self.facts, facts
        if known is not None and facts.marked is not None and facts.run_id != known.run_id:
            self._as_of = 0.0  # another machine's clock: nothing jumped
        same = known is not None and facts.run_id is not None and facts.run_id == known.run_id
        same = same and not facts.promoted
        if same or facts.durable or not guard or (known is None and not guard_first):
            self.last_reply = now
            return max(0.0, self.votes_from - now)
        age = 0.0 if facts.uptime is None else max(0.0, facts.uptime - ROUNDING)
        if not facts.complete:
            if known is not None:
                # uptime lies after a clock jump; this does not
                age = min(age, now - self.last_reply)
            if facts.marked is not None:
                age = min(age, max(0.0, facts.marked))
        if facts.run_id is None:
            cause = "may have restarted (it does not tell its run_id)"
        elif facts.promoted:
            cause = "became the primary, or lost its keys, since clients last met it"
        else:
            cause = "restarted" if known is not None else "may have restarted before we met"
        self.last_reply = now
        return self.quarantine(now, quarantine(self.max_ttl) - age, cause)

    def quarantine(self, now: float, seconds: float, cause: str) -> float:
        """No votes for `seconds`. → seconds from `now` for which the node must not vote."""
        if seconds > 0 and now + seconds > self.votes_from:
            self.votes_from = now + seconds
            self.cause = cause
        return max(0.0, self.votes_from - now)

    def forgot(self, now: float, cause: str) -> float:
        """The node lost keys before our eyes (FLUSHALL). → seconds without votes."""
        return self.quarantine(now, quarantine(self.max_ttl), cause)

    # clocks

    def sample(self, node_time: float, sent: float, received: float) -> float:
        """A reply told the node's clock. → seconds that it jumped since the last one, or 0.

        The node read `node_time` between `sent` and `received`, so (its clock - ours) lies in an
        interval; intervals of a steady clock overlap.
        """
        low, high = node_time - received, node_time - sent
        self.last_reply = received
        if self._as_of:
            slack = RATE * (received - self._as_of)
            known_low, known_high = self._low - slack, self._high + slack
            if low > known_high + JUMP or high < known_low - JUMP:
                self._low, self._high, self._as_of = low, high, received
                return low - known_high if low > known_high else high - known_low
            low, high = max(low, known_low), min(high, known_high)
            if low > high:  # within JUMP of each other: start anew from this sample
                low, high = node_time - received, node_time - sent
        self._low, self._high, self._as_of = low, high, received
        return 0.0

    def jumped(self, now: float, by: float) -> float:
        """The node's clock jumped. → seconds without votes."""
        return self.forgot(now, f"its clock jumped by {by:+.3f} s")

    @property
    def offset(self) -> float | None:
        """Our best guess of (its clock - ours) in seconds; None before the first reply."""
        return (self._low + self._high) / 2 if self._as_of else None


def low_median(offsets: list[float]) -> float:
    """The node clock that fences start from: half of those known are at it or ahead.

    A floor above every counter lets all nodes answer the same fence at once, also after a node
    lost its counter; a wrong one costs a round trip, never the order.
    """
    return sorted(offsets)[(len(offsets) - 1) // 2]
