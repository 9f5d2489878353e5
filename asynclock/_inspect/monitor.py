"""Leases and nodes watched over time, and what is wrong: for `asynclock top` and the dashboard."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import _clock
from .._engine.engine import NodeHealth
from .._engine.inspection import Inspection
from .._nodes.wire import Command, Failure, parse_info
from .._rules.quorum import majority
from ..manager import LockManager, engine_of
from .survey import Survey, ask, in_slices, survey
from .views import Agreement

# ---- What the health of the nodes means for locks, in one sentence -------------------------------


@dataclass(frozen=True, slots=True)
class Trouble:
    """Some nodes have no vote."""

    level: str
    """"red": nothing can be locked. "amber": locks work, with fewer nodes to lose."""
    text: str


def trouble(nodes: Sequence[NodeHealth]) -> Trouble | None:
    """Describe the effect of the nodes without a vote; None if every node votes."""
    lost = Counter(node.state for node in nodes if node.state != "up")
    if not lost:
        return None
    up, quorum = len(nodes) - lost.total(), majority(len(nodes))
    states = ", ".join(f"{count} {state}" for state, count in sorted(lost.items()))
    begin = f"{lost.total()} of {len(nodes)} nodes without a vote ({states})"
    if up < quorum:
        return Trouble("red", f"{begin}: nothing can be locked, and no lease can be renewed")
    spare = up - quorum
    rest = f"{spare} more may fail" if spare else "if one more fails, nothing can be locked"
    return Trouble("amber", f"{begin}: locks work; {rest}")


# ---- The monitor ---------------------------------------------------------------------------------


NEARLY_EXPIRED = 0.5
"""Seconds: a lease that vanished with more than this left was released."""
OVERDUE = 0.5
"""Part of its ttl: a lease with less left isn't renewed, since renewals come after thirds."""
GAP = 5.0
"""Seconds: after a longer time without a look, a lease may have been renewed and then released."""
INFO = Command.plain("INFO")
_DATABASE, _KEYS = re.compile(r"db\d+"), re.compile(r"keys=(\d+)")
MOST_ENDED = 10_000
"""Maximum number of ended leases that are kept."""


@dataclass(slots=True)
class SeenLease:
    """A lease as the last refresh found it."""

    found: Inspection
    first_seen: float
    last_seen: float
    since: float = 0.0
    """When it was acquired, in seconds since 1970, or when it was seen first."""
    exact: bool = True
    """Whether `since` is when it was acquired: readers and other libraries don't tell."""
    longest: float = 0.0
    """Seconds that were left of it at most, at any look."""
    left: float = 0.0
    """Seconds that were left of it at this look."""
    renewed: float = 0.0
    """When a look showed that its holder had renewed it, in seconds since 1970."""
    agreement: Agreement = field(init=False)
    """How far the nodes agree on it."""
    holder: str | None = field(init=False)
    """The label of the owner that most nodes name."""
    text: str = field(init=False)
    """Name, part and holder in lower case, to search in."""

    # All is made at once, between two pauses: made later, for 100,000 leases at the first search,
    # it would take a third of a second.
    def __post_init__(self) -> None:
        self.agreement = Agreement.of(self.found)
        self.holder = self.agreement.leading.holder if self.agreement.leading else None
        self.text = f"{self.found.name}\0{self.found.part}\0{self.holder or ''}".casefold()


class Ended(NamedTuple):
    """A lease that has ended, with its times in seconds since 1970 by the clocks of the nodes."""

    name: str
    kind: str
    part: str
    holder: str | None
    since: float
    until: float
    how: str
    """"released", "ran out", or "ended" if nobody knows which of both."""


@dataclass
class SeenNode:
    """A node as the last refresh found it."""

    health: NodeHealth
    cause: str
    """Why the node is not up, or did not answer INFO."""
    watched: str
    """Number of keys that clients watch, by the server's own count; each waiter watches some."""
    clients: str
    keys: int = 0
    """Number of keys in all databases of the server."""


class Monitor:
    """What the nodes hold now, and what has happened since the first refresh."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str, str], SeenLease] = {}
        """By name, part and owner."""
        self.nodes: list[SeenNode] = []
        self.totals: Counter[str] = Counter()
        """"acquired", "released", "ran out" and "ended" since the start."""
        self.ended: deque[Ended] = deque(maxlen=MOST_ENDED)
        """The leases that ended, the last one last."""
        self.trouble: Trouble | None = None
        self.survey: Survey = Survey([])
        self._refreshed = False

    @property
    def held(self) -> int:
        """Number of leases that somebody has; a name that rests is nobody's."""
        return sum(not one.found.rests for one in self.leases.values())

    async def refresh(self, locks: LockManager) -> None:
        """Ask all nodes once more."""
        engine = engine_of(locks)
        found = self.survey = await survey(engine)
        if len(found.errors) < len(locks.nodes()):
            await self._compare(found, _clock.now())
        replies = await asyncio.gather(*(ask(node, INFO) for node in engine.multiplexer.nodes))
        self.nodes = list(map(_seen_node, locks.nodes(), replies))
        self.trouble = trouble(locks.nodes())
        self._refreshed = True

    async def _compare(self, found: Survey, now: float) -> None:
        before, leases, wall = {**self.leases}, {}, _clock.wall()
        async for one in in_slices(found.held):
            seen = SeenLease(one, now, now)
            view = seen.agreement.leading
            key = (one.name, one.part, (view.owner if view else None) or "")
            known = before.pop(key, None)
            leases[key] = seen
            seen.left = seen.longest = (view and view.remaining) or 0.0
            if known is not None:
                seen.first_seen, seen.since, seen.exact = known.first_seen, known.since, known.exact
                seen.longest = max(seen.longest, known.longest)
                later = seen.left > known.left - (now - known.last_seen) + NEARLY_EXPIRED
                seen.renewed = wall if later else known.renewed
                continue
            since = (view.since if view else None) or one.since
            seen.since, seen.exact = wall if since is None else since, since is not None
            if self._refreshed and not one.rests:
                self.totals["acquired"] += 1
        self.leases = leases
        for lease in before.values():
            if how := _ending(lease, now - lease.last_seen):
                self.totals[how] += 1
                one, since = lease.found, min(lease.since, wall)
                self.ended.append(
                    Ended(one.name, one.kind, one.part, lease.holder, since, wall, how)
                )


def _ending(lease: SeenLease, unseen: float) -> str:
    """Return how a lease ended that was seen last `unseen` seconds ago; "" if it may be anything.

    A holder that lives renews its lease, so that the lease doesn't come near its end. So a lease
    that vanished early in its ttl was released, even if its ttl is shorter than the pause between
    two looks.
    """
    left = lease.found.remaining or 0.0
    if lease.found.rests:
        return ""  # its holder released it before
    if left - unseen >= NEARLY_EXPIRED:
        return "released"
    if unseen > GAP:
        return ""
    return "ran out" if left < lease.longest * OVERDUE else "ended"


def _seen_node(health: NodeHealth, reply: object) -> SeenNode:
    info = parse_info(reply)
    cause = health.cause or (reply.cause if isinstance(reply, Failure) else "")
    watched, clients = (info.get(key, "") for key in ("tracking_total_keys", "connected_clients"))
    counts = (_KEYS.match(value) for name, value in info.items() if _DATABASE.fullmatch(name))
    return SeenNode(health, cause, watched, clients, sum(int(one[1]) for one in counts if one))


# ---- Whether the settings of a tool seem to differ from those of the services --------------------


CLOCKS_APART = 2.0
"""Seconds by which the clocks of this machine and of the nodes may differ."""


OPERATOR = (
    "user operator on >PASSWORD ~{}* resetchannels -@all +evalsha +eval +time +get +set +del "
    "+exists +pexpire +pttl +mget +hmget +hset +zadd +zrange +zrangebyscore +zrem "
    "+zremrangebyscore +zrevrange +zrank +zscore +script|load +info +config|get +client|tracking "
    "+client|caching +wait +select +client|setname +scan +client|list"
)
"""The line of an ACL file for people and their tools, with the prefix left out (docs/access.md)."""


def lacking_rights(errors: Mapping[str, str], prefix: str) -> list[str]:
    """Return what helps if a node has refused to show its keys to the user of its URL."""
    refused = [cause.partition(" (")[0] for cause in errors.values() if cause.startswith("NOPERM")]
    if not refused:
        return []
    advice = (
        f"the user of the URL may not see what is held ({refused[0]}): log in as a user for "
        "operators, which needs this line in the ACL file of each node, or the same words after "
        "ACL SETUSER:"
    )
    return [advice, OPERATOR.format(prefix)]


def false_alarm(monitor: Monitor, since: float) -> Trouble | None:
    """Return what to say in place of "nothing can be locked" if clients have locked meanwhile.

    Args:
        monitor: a monitor that reports red trouble.
        since: when the trouble began, in seconds since 1970.
    """
    guarded = sum(node.health.state == "quarantined" for node in monitor.nodes)
    later = (one for one in monitor.leases.values() if _lives(one, since + CLOCKS_APART))
    lease = next(later, None) if guarded else None
    if lease is None:
        return None
    return Trouble(
        "amber",
        f"{guarded} of {len(monitor.nodes)} nodes have no vote by the settings of this page, but "
        f"clients go on locking, such as {lease.found.name!r}: the settings differ from those of "
        "the services; give the same restart_guard (--restart-guard) and max_ttl (--max-ttl)",
    )


def _lives(lease: SeenLease, since: float) -> bool:
    """Return whether a holder got its lease after `since`, or still renews it a ttl later.

    A holder whose renewals don't count has lost its lease by then.
    """
    if lease.found.owner is None:
        return False
    return (lease.exact and lease.since > since) or lease.renewed > since + lease.longest


def doubts(monitor: Monitor, prefix: str, max_ttl: float) -> list[str]:
    """Return a sentence for each setting that seems to differ from that of the services."""
    found = lacking_rights(monitor.survey.errors, prefix)
    for lease in monitor.leases.values():
        if lease.left > max_ttl and not lease.found.rests:
            found.append(
                f"{lease.found.name!r} has {lease.left:.0f} s left, more than the max_ttl of "
                f"{max_ttl:g} s here allows: give the max_ttl of the services (--max-ttl)"
            )
            break
    others = max(node.keys for node in monitor.nodes)
    if others and not monitor.survey.keys and not monitor.survey.errors:
        found.append(
            f"no key begins with {prefix!r}, and a node has {others:,} others: is it the prefix of "
            "the services (--prefix)?"
        )
    return found
