"""Decides how long a lease is valid, and which nodes may vote: guards against restarts and jumps.

Rules of this file: callers pass `now` in, and every moment is in seconds on our boot-time clock. A
node that may have forgotten a grant does not vote until every lease that it may have granted has
expired. docs/fencing.md has the figures; tests/model/ proves that one tick less is too short.

The margin of a lease is Redlock's: 1 % of the ttl for clocks that run at different rates, and 2 ms
because Redis expires keys with a precision of 1 ms (https://redis.io/docs/latest/develop/clients/
patterns/distributed-locks/). Validity counts from before the first byte was sent, never from a
reply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from .. import _settings
from ..errors import ConfigurationError
from .nodeset import NOTHING, Copy

DRIFT = 0.01
GRAIN = 0.002
OUTAGE = 3.0


def valid_until(sent: float, ttl: float) -> float:
    """Return the moment at which a lease that was requested at `sent` counts as lost."""
    return sent + ttl - ttl * DRIFT - GRAIN


def ttl_until(sent: float, moment: float) -> float:
    """Return the shortest ttl with which a lease that is requested at `sent` lasts to `moment`."""
    return (moment - sent + 2 * GRAIN) / (1 - DRIFT)


def renew_at(sent: float, ttl: float) -> float:
    """Return when to renew: after a third of the ttl, so that two rounds may fail before a loss."""
    return sent + ttl / 3


def retry_at(now: float, ttl: float) -> float:
    """Return when to repeat a renewal that did not reach a quorum."""
    return now + max(0.02, ttl / 20)


def quarantine(max_ttl: float) -> float:
    """Return the seconds after which every grant that a node may have forgotten has expired."""
    return max_ttl * (1 + DRIFT) + GRAIN


def longest_outage(max_ttl: float) -> float:
    """Return the seconds for which a call without a timeout tolerates that too few nodes vote."""
    return quarantine(max_ttl) + OUTAGE


# ---- Computes for how long nodes keep the fence counter of a name that nobody uses ---------------
# A counter may expire once the node's clock shows its value plus the retention. From then on the
# node claims at least its clock minus FLOOR_BEHIND for the next lease. That is above the expired
# counter, unless the clock was set back by the rest of the retention: so an expired counter is as
# good as a kept one (tests/model: C1 to C3; N1 to N3 show what is not enough).


FLOOR_BEHIND = 60.0
"""Seconds that a floor may be behind a node's clock; as in clock.lua."""
LARGEST_STEP = 1000.0
"""Maximum seconds that clocks are set back; a daemon of NTP makes no larger step by itself
(PANICT in RFC 5905)."""


def least_retention(max_ttl: float) -> float:
    """Return the shortest retention: clocks are never set back, and hand-overs need the counter."""
    return FLOOR_BEHIND + quarantine(max_ttl)


def fence_retention(max_ttl: float) -> float:
    """Return the default retention: clocks are set back by at most LARGEST_STEP."""
    return least_retention(max_ttl) + LARGEST_STEP


def checked_retention(value: object, max_ttl: float) -> float:
    """Return the setting in seconds; None stands for the default. Raises ConfigurationError."""
    if value is None:
        return fence_retention(max_ttl)
    given, least = _settings.seconds(value, "fence_retention"), least_retention(max_ttl)
    if given < least:
        raise ConfigurationError(
            f"fence_retention={given:g} must be at least {least:g} with max_ttl={max_ttl:g}: "
            "a counter must outlive its lease, and the error of the clock that replaces it"
        )
    return given


# ---- What one client knows of a node, and whether the node may vote ------------------------------


ROUNDING = 2.0
"""Seconds taken off the uptime in INFO, which is in whole seconds and updated lazily."""
JUMP = 0.002
"""Seconds of disagreement above which two clock readings are a jump; slewing stays below."""
SOON = 3600.0
"""Seconds within which a process that was replaced and comes back unrelated is no failover. A
server without replicas gives up the ids of its history after that time (repl-backlog-ttl)."""
TURNS = 2
"""Number of such returns that prove that an address leads to two primaries. One may be an operator
who moves the address to a new server, and back."""
RATE = 0.001
"""Maximum drift of two healthy clocks, in seconds per second: twice NTP's slew limit (500 ppm)."""


FLUSHED = "its keys were flushed {ago}"
REPLACED = "its keys were flushed, or replaced by others, since the last connection"
UNSEEN = "a database of its server was flushed, perhaps the one with its keys"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node reports about itself when a connection opens; None where it does not."""

    run_id: str | None = None
    uptime: float | None = None
    lineage: frozenset[str] = frozenset()
    """The ids of the history of its data, one of which a promoted replica shares with the primary
    before it; empty if unknown."""
    version: str | None = None
    role: str | None = None
    maxmemory_policy: str | None = None
    durable: bool = False
    """Grants survive a crash: append-only file, fsync always (or the user says so)."""
    tracking: bool = False
    """The connection gets a push when a watched key changes."""
    replicas: int | None = None
    marked: float | None = None
    """Seconds since clients first marked this process as the primary; None without a mark."""
    promoted: bool = False
    """The node was not the primary when clients last marked one: it may lack others' grants."""
    complete: bool = False
    """This client knows that the promoted node has every grant of the primary before it."""
    lag: float = 0.0
    """Maximum number of seconds for which other clients may go on using a replaced primary."""
    after: str | None = None
    """The run_id of the process whose data this process started with, according to the mark."""
    refused: tuple[str, ...] = ()
    """The commands of our handshake that the node refused to run."""
    copy: Copy = NOTHING
    """The node's copy of the record of the fleet's set of nodes."""

    @property
    def replica(self) -> bool:
        """Whether the node reported that it is not a primary."""
        return self.role not in (None, "master")

    @property
    def evicts(self) -> bool:
        """Whether the server may throw away lock keys when memory is short."""
        # Lock keys have a ttl, so the volatile-* policies take them too.
        return self.maxmemory_policy not in (None, "", "noeviction")


class Trust:
    """What one client knows of one node over all its connections."""

    def __init__(self, max_ttl: float) -> None:
        self.max_ttl = max_ttl
        self.facts: Facts | None = None
        self.votes_from = 0.0
        """Replies to requests that were sent before this moment do not count."""
        self._cause = ""
        """Why there is no vote; "{ago}" stands for the time since `_since`."""
        self._since = 0.0
        self.renews_from = 0.0
        """Renewals that were sent before this moment do not count, even if the node had granted."""
        self.remembers_from = -inf
        """The moment since which the node has kept all its keys."""
        self.last_reply = -inf
        self.witness: bytes | None = None
        """The text of the witness when it was last read; None before, b"" if it can't be read."""
        self._low = self._high = self._as_of = self._sent = 0.0
        self._met: dict[str | None, float] = {}
        """The moment at which each process was last seen here, by its run_id."""
        self._returns = 0

    # restarts

    @property
    def in_turns(self) -> bool:
        """Whether several primaries that know nothing of each other answer here, in turns."""
        return self._returns >= TURNS

    def _count_return(self, known: Facts | None, facts: Facts, now: float) -> None:
        if known is None:
            return
        self._met[known.run_id] = self.last_reply
        if facts.run_id in (None, known.run_id):
            return
        strangers = known.lineage and facts.lineage and not known.lineage & facts.lineage
        if strangers and now - self._met.get(facts.run_id, -inf) < SOON:
            self._returns += 1

    def met(
        self, facts: Facts, now: float, *, guard: bool, guard_first: bool, disks_kept: bool = False
    ) -> float:
        """Take in the facts of a new connection; return the seconds for which there is no vote.

        `disks_kept` is the operator's promise that every process at this address has had the same
        disk: then a durable process has kept everything, also one that was never met before.
        """
        known, self.facts = self.facts, facts
        self._count_return(known, facts, now)
        silent, self.last_reply = now - self.last_reply, now
        if known is not None and facts.marked is not None and facts.run_id != known.run_id:
            self._as_of = 0.0  # another machine's clock: nothing jumped
        intact = known is not None and self._intact(known, facts, silent)
        trusted = known is None or (known.durable and not known.replica)
        intact = intact or (disks_kept and facts.durable and trusted)
        age = self._age(facts, silent)
        if not intact:
            self.remembers_from = now - age + facts.lag
            self.witness = None  # the guards below judge what this process may lack
        free = known is None and not guard_first
        # A replica has no vote: what it may have forgotten is judged once it is a primary.
        if intact or free or facts.replica or not guard:
            return max(0.0, self.votes_from - now)
        if facts.lag:
            # Until then the previous primary may grant what this node extends (tests/model: G5).
            self.renews_from = max(self.renews_from, now + quarantine(facts.lag) - age)
        longest = 0.0 if facts.complete else self.max_ttl
        return self.quarantine(
            now,
            quarantine(longest + facts.lag) - age,
            _why_forgotten(known, facts),
            since=now - _told_age(facts, silent),
        )

    def counts(self, sent: float) -> bool:
        """Return whether the reply to a request that was sent at this moment is a vote."""
        return sent >= self.votes_from

    def remembers(self, since: float) -> bool:
        """Return whether the node has kept all that it was told since this moment."""
        return self.remembers_from <= since

    def _intact(self, known: Facts, facts: Facts, silent: float) -> bool:
        """Return whether the node still has every key that it had when its facts were `known`.

        A durable process has the grants of the one before it only if that was durable as well, and
        was silent for less than a quarantine: then no third process can have voted in between.
        """
        if facts.run_id is None or facts.promoted or known.replica:
            return False
        if facts.run_id == known.run_id:
            return True
        durable = known.durable and facts.durable and facts.after == known.run_id
        return durable and silent < quarantine(self.max_ttl)

    def demoted(self) -> None:
        """Note that the node is a replica now: its data comes from another server."""
        if self.facts is not None:
            self.facts = replace(self.facts, role="slave")

    @staticmethod
    def _age(facts: Facts, silent: float) -> float:
        # The seconds for which this process has certainly run, and as the primary if it is one.
        uptime = 0.0 if facts.uptime is None else max(0.0, facts.uptime - ROUNDING)
        # a clock jump falsifies the uptime, but not the silence of the previous process
        return min(uptime, silent, inf if facts.marked is None else facts.marked)

    def quarantine(
        self, now: float, seconds: float, cause: str, *, since: float | None = None
    ) -> float:
        """Take the node's vote for `seconds`; return the seconds for which it has none."""
        if seconds > 0 and now + seconds > self.votes_from:
            self.votes_from = now + seconds
            self._cause, self._since = cause, now if since is None else since
        return max(0.0, self.votes_from - now)

    def why(self, now: float) -> str:
        """Return why the node has no vote; it reads after the node's address."""
        return self._cause.replace("{ago}", _ago(now - self._since))

    def forgot(self, now: float, cause: str) -> float:
        """Note that the node has lost keys (FLUSHALL); return the seconds without a vote."""
        self.remembers_from = now
        return self.quarantine(now, quarantine(self.max_ttl), cause)

    def saw(self, witness: bytes, now: float, cause: str) -> float:
        """Take in the witness, b"" if unreadable; return the seconds without a vote."""
        known, self.witness = self.witness, witness
        if not known or witness == known:
            return 0.0
        return self.forgot(now, cause if witness else UNSEEN)

    def doubt(self, now: float) -> None:
        """Discard replies to requests that were sent before `now`."""
        self.votes_from = max(self.votes_from, now)
        self.renews_from = max(self.renews_from, now)

    # clocks

    def sample(self, node_time: float, sent: float, received: float) -> float:
        """Take in a reading of the node's clock; return the seconds by which it jumped, or 0.

        The result is the jump, or up to two round trips more.

        The node read `node_time` between `sent` and `received`, so the difference (its clock - our
        clock) lies in an interval. The intervals of a steady clock overlap.
        """
        low, high = node_time - received, node_time - sent
        self.last_reply = received
        if sent < self._sent <= received:
            return 0.0  # out of order: a reading that was requested later is known already
        self._sent = sent
        if self._as_of:
            slack = RATE * (received - self._as_of)
            known_low, known_high = self._low - slack, self._high + slack
            if low > known_high + JUMP or high < known_low - JUMP:
                self._low, self._high, self._as_of = low, high, received
                # The largest jump that both readings allow: what leases lose by it is never less
                # than what our clock missed, however long the reply took.
                return high - known_low if low > known_high else low - known_high
            low = known_low if low < known_low else low  # noqa: FURB136 - max takes far longer
            high = known_high if high > known_high else high  # noqa: FURB136
            if low > high:  # the two are within JUMP of each other: start again from this sample
                low, high = node_time - received, node_time - sent
        self._low, self._high, self._as_of = low, high, received
        return 0.0

    def jumped(self, now: float, by: float) -> float:
        """Take the node's vote because its clock jumped; return the seconds without a vote."""
        cause = f"its clock jumped by {by:+.3f} s"
        return self.quarantine(now, quarantine(self.max_ttl), cause)

    @property
    def offset(self) -> float | None:
        """Our best guess of (the node's clock - ours) in seconds; None before the first reply."""
        return (self._low + self._high) / 2 if self._as_of else None


def _why_forgotten(known: Facts | None, facts: Facts) -> str:
    if facts.run_id is None or facts.uptime is None:
        return "does not say when it started and may have forgotten locks"
    if facts.promoted:
        return "became the primary, or lost its keys, since clients last met it; it may lack locks"
    if known is not None and known.replica:
        return "was a replica at the last connection and may lack locks"
    if facts.marked is not None and facts.marked < facts.uptime:
        return "became the primary {ago} and may lack locks"
    return "started {ago} and may have forgotten locks"


def _told_age(facts: Facts, silent: float) -> float:
    # For people: without the margins that the guard itself needs.
    known = (facts.uptime, facts.marked, silent)
    return min(age for age in known if age is not None)


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds >= 1 else "less than a second ago"


def low_median(offsets: list[float]) -> float:
    """Return the clock offset that fences start from: half of the known nodes have it or more.

    A floor above every counter lets all nodes give out the same fence at once, even after a node
    has lost its counter. A wrong floor costs a round trip; fences rise in any case.
    """
    return sorted(offsets)[(len(offsets) - 1) // 2]


# ---- Decides from jumps of the nodes' clocks by how much sooner leases end -----------------------
# When all nodes seem to jump, our own clock stood still. When only some nodes jump, their own
# clocks moved, and their keys end sooner. In both cases a lease ends when too few nodes keep it for
# a quorum. Each jump counts once, in whatever order the nodes report jumps.


SAME_MOMENT = 1.0
"""Seconds within which reported jumps may have happened at the same time."""


class StandStill:
    """Keeps by how much each node's clock has jumped ahead without shortening the leases yet."""

    __slots__ = ("_ahead", "_spare", "_told")

    def __init__(self, size: int, quorum: int) -> None:
        self._spare = size - quorum
        self._ahead = [0.0] * size
        """Seconds per node; negative if leases were shortened before this node reported a jump."""
        self._told = [0.0] * size

    def jumped(self, node: int, by: float, now: float) -> float:
        """Count a jump of `node` by `by` seconds; return by how many seconds leases end sooner."""
        ahead, told = self._ahead, self._told
        for other, at in enumerate(told):
            if now - at >= SAME_MOMENT:
                ahead[other] = 0.0
        if by > 0:  # a clock that was set back keeps keys for longer
            ahead[node] += by
            told[node] = now
        sooner = sorted(ahead, reverse=True)[self._spare]
        if sooner <= JUMP:
            return 0.0
        self._ahead = [one - sooner for one in ahead]
        self._told = [now] * len(told)
        return sooner

    def silent(self, node: int) -> list[int]:
        """Return the nodes that reported less than `node`, and should be asked for their time."""
        most = self._ahead[node]
        return [other for other, ahead in enumerate(self._ahead) if ahead < most]
