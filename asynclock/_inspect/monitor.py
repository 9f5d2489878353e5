"""Leases and nodes watched over time: for `asynclock top` and the dashboard."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from .. import _clock
from .._access import node_access
from .._engine.inspection import Inspection
from .._engine.reports import NodeHealth
from .._nodes.info import parse_info
from .._nodes.replies import Failure
from .._nodes.script import Command
from ..manager import LockManager
from .health import Trouble, trouble
from .survey import Survey, ask, survey
from .views import Agreement

NEARLY_EXPIRED = 0.5
"""Seconds: a lease that vanished with less than this left (and one interval) has run out."""
INFO = Command.plain("INFO")


@dataclass
class SeenLease:
    """A lease as the last refresh found it."""

    found: Inspection
    first_seen: float
    last_seen: float


@dataclass
class SeenNode:
    """A node as the last refresh found it."""

    health: NodeHealth
    cause: str
    """Why the node is not up, or did not answer INFO."""
    watched: str
    """Number of keys that clients watch, by the server's own count; each waiter watches some."""
    clients: str


class Monitor:
    """What the nodes hold now, and what has happened since the first refresh."""

    def __init__(self) -> None:
        self.leases: dict[tuple[str, str, str], SeenLease] = {}
        """By name, part and owner."""
        self.nodes: list[SeenNode] = []
        self.counts: Counter[str] = Counter()
        """"acquired", "released" and "ran out" since the start."""
        self.trouble: Trouble | None = None
        self.survey: Survey = Survey([])
        self._refreshed = False

    async def refresh(self, locks: LockManager) -> None:
        """Ask all nodes once more."""
        found = self.survey = await survey(node_access(locks))
        if len(found.errors) < len(locks.nodes()):
            self._compare(found, _clock.now())
        replies = await asyncio.gather(*(ask(node, INFO) for node in node_access(locks).nodes))
        self.nodes = list(map(_seen_node, locks.nodes(), replies))
        self.trouble = trouble(locks.nodes())
        self._refreshed = True

    def _compare(self, found: Survey, now: float) -> None:
        before, self.leases = self.leases, {}
        for one in found.held:
            view = Agreement.of(one).leading
            key = (one.name, one.part, (view.owner if view else None) or "")
            known = before.pop(key, None)
            self.leases[key] = SeenLease(one, known.first_seen if known else now, now)
            if known is None and self._refreshed:
                self.counts["acquired"] += 1
        for lease in before.values():
            left = (lease.found.remaining or 0.0) - (now - lease.last_seen)
            self.counts["ran out" if left < NEARLY_EXPIRED else "released"] += 1


def _seen_node(health: NodeHealth, reply: object) -> SeenNode:
    info = parse_info(reply)
    cause = health.cause or (reply.cause if isinstance(reply, Failure) else "")
    watched, clients = (info.get(key, "") for key in ("tracking_total_keys", "connected_clients"))
    return SeenNode(health, cause, watched, clients)
