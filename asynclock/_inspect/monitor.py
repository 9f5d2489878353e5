"""Leases and nodes watched over time: for `asynclock top` and the dashboard."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import _clock
from .._engine.engine import NodeHealth
from .._engine.inspection import Inspection
from .._nodes.replies import Failure, parse_info
from .._nodes.script import Command
from ..manager import LockManager, node_access
from .health import Trouble, trouble
from .survey import Survey, ask, in_slices, survey
from .views import Agreement

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
        self.counts: Counter[str] = Counter()
        """"acquired", "released", "ran out" and "ended" since the start."""
        self.ended: deque[Ended] = deque(maxlen=MOST_ENDED)
        """The leases that ended, the last one last."""
        self.trouble: Trouble | None = None
        self.survey: Survey = Survey([])
        self._refreshed = False

    async def refresh(self, locks: LockManager) -> None:
        """Ask all nodes once more."""
        found = self.survey = await survey(node_access(locks))
        if len(found.errors) < len(locks.nodes()):
            await self._compare(found, _clock.now())
        replies = await asyncio.gather(*(ask(node, INFO) for node in node_access(locks).nodes))
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
            if self._refreshed:
                self.counts["acquired"] += 1
        self.leases = leases
        for lease in before.values():
            if how := _ending(lease, now - lease.last_seen):
                self.counts[how] += 1
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
