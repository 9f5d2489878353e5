"""The content of the page as plain data. All texts in it are untrusted: a page must escape them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..._inspect.monitor import Monitor, doubts, false_alarm
from ..._rules.quorum import majority
from ...events import Acquired, Event, Lost, NodeDown, NodeUp
from ...manager import LockManager, node_access
from .rows import SORTED, Key, Row, in_order, past, rows_of

VERSION = 1
"""Version of the format; it rises with changes that may break a program that reads snapshots."""
FRESH = 1.0
"""Minimum seconds that a snapshot is used for all viewers, so that they don't add load on nodes."""
SHARE = 4
"""A snapshot is used for this many times the time it took to make: at most a fifth of a CPU."""
RECENT = 10.0
"""Seconds for which an outdated snapshot is still good enough for a new request."""
MOST_LOCKS = 200
"""Maximum number of names on a page."""
MOST_LOSSES = 50
"""Maximum number of losses that are kept."""
LONGEST_SEARCH = 200
"""Maximum number of characters to search for."""
COLUMNS = ("attention", *SORTED)
"""What names can be sorted by; with "attention", what is wrong comes first."""
ANSWERING = ("up", "quarantined", "rejected")
"""The states of nodes whose round trip and version are known and present."""


@dataclass(frozen=True, slots=True)
class Query:
    """The selection and order of names that a viewer asks for."""

    search: str = ""
    sort: str = "attention"
    reverse: bool = False
    offset: int = 0
    limit: int = 100
    lock: str | None = None
    """The name whose lock is shown in full."""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Query:
        """Read the parameters of a URL; malformed ones are ignored."""
        offset, limit = (asked.get(key, "") for key in ("offset", "limit"))
        return cls(
            search=asked.get("search", "")[:LONGEST_SEARCH].casefold(),
            sort=asked["sort"] if asked.get("sort") in COLUMNS else "attention",
            reverse=asked.get("reverse") == "1",
            offset=_number(offset, 0),
            limit=min(max(1, _number(limit, 100)), MOST_LOCKS),
            lock=asked.get("lock"),
        )


def _number(text: str, otherwise: int) -> int:
    # Python refuses to read numbers with thousands of digits.
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise


class Snapshots:
    """Takes snapshots of one manager and its nodes for all viewers."""

    def __init__(self, locks: LockManager) -> None:
        self._locks = locks
        self._monitor = Monitor()
        self._history = History()
        self._losses: deque[dict[str, Any]] = deque(maxlen=MOST_LOSSES)
        self._turn = asyncio.Lock()
        self._rows: list[Row] = []
        self._sorted: dict[str, list[Row]] = {}
        """The rows in the orders that viewers have asked for."""
        self._asked: set[str] = set()
        """The columns that viewers have asked for since the last snapshot."""
        self._odd: set[Key] = set()
        """The rows whose nodes differed in the last picture."""
        self._ours: set[str] = set()
        self._rest: dict[str, Any] = {}
        self._states: dict[str, tuple[str, float]] = {}
        """Node -> its state, and since when it is known."""
        self._down: dict[str, float] = {}
        """Node -> when it went down."""
        self._met: set[str] = set()
        """The nodes that have answered at some time."""
        self._red = float("inf")
        """Since when nothing seems to be lockable."""
        self._stale_at = float("-inf")
        self.pace: float = FRESH
        """Seconds between two snapshots."""
        locks.observe(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, Acquired):
            self._history.waits.append(event.waited)
        elif isinstance(event, Lost):
            self._history.losses += 1
            self._losses.appendleft({**asdict(event), "at": time.time()})
        elif isinstance(event, NodeDown):
            self._down.setdefault(event.node, time.time())
        elif isinstance(event, NodeUp):
            self._down.pop(event.node, None)
            self._met.add(event.node)

    async def take(self, query: Query, *, at_once: bool = False) -> dict[str, Any]:
        """Return the present state, within some node timeouts. Raises ConfigurationError.

        With `at_once` a recent snapshot is enough: a search among 100,000 locks must not wait until
        all of them have been read again.
        """
        if not at_once or time.monotonic() > self._stale_at + self.pace + RECENT:
            await self._look()
        self._asked.add(query.sort)
        rows = self._sorted.get(query.sort)
        if rows is None:
            rows = self._sorted[query.sort] = in_order(self._rows, query.sort)
        if query.search:
            rows = [row for row in rows if row.contains(query.search)]
        first, last = query.offset, query.offset + query.limit
        shown = rows[::-1][first:last] if query.reverse else rows[first:last]
        return {
            **self._rest,
            "pace": self.pace,
            "found": len(rows),
            "offset": query.offset,
            "locks": [row.as_json(self._ours) for row in shown],
            "lock": None if query.lock is None else self._lock(query.lock),
        }

    def _lock(self, name: str) -> dict[str, Any]:
        rows = [row for row in self._rows if row.name == name]
        return {
            "name": name,
            "watched": self._history.watched,
            "kinds": [row.in_full(self._ours) for row in rows],
            "past": past(self._monitor.ended, name),
        }

    async def _look(self) -> None:
        async with self._turn:
            if time.monotonic() >= self._stale_at:
                began = time.monotonic()
                await self._monitor.refresh(self._locks)
                await self._make()
                self.pace = max(FRESH, SHARE * (time.monotonic() - began))
                self._stale_at = time.monotonic() + self.pace

    async def _make(self) -> None:
        locks, monitor, now = self._locks, self._monitor, time.time()
        self._ours = {lease.owner for lease in locks.leases()}
        rows, odd = await rows_of(monitor, locks.waiters(), self._odd)
        asked, self._asked, orders = self._asked, set(), {}
        for column in asked:
            await asyncio.sleep(0)  # 100,000 rows take up to a tenth of a second
            orders[column] = in_order(rows, column)
        self._rows, self._odd, self._sorted = rows, odd, orders
        waited = [row for row in self._rows if row.count]
        waiting = sum(row.count for row in waited)
        longest = max((now - row.since for row in waited if row.since is not None), default=0.0)
        self._history.note(now, self.pace, monitor.counts, waiting, longest)
        nodes = [self._node(asdict(node), now) for node in locks.nodes()]
        access, trouble = node_access(locks), monitor.trouble
        red = trouble is not None and trouble.level == "red"
        self._red = min(self._red, now) if red else float("inf")
        if red:
            trouble = false_alarm(monitor, self._red) or trouble
        self._rest = {
            "version": VERSION,
            "at": now,
            "quorum": majority(len(nodes)),
            "trouble": asdict(trouble) if trouble else None,
            "doubts": doubts(monitor, access.prefix, access.nodes[0].settings.max_ttl),
            "held": len(monitor.leases),
            "waiting": waiting,
            "waited_for": len(waited),
            "longest": longest,
            "wrong": sum(bool(row.level) for row in self._rows),
            "nodes": nodes,
            "losses": list(self._losses),
            "seen": {
                "since": self._history.watched,
                **{name.replace(" ", "_"): self._history.seen(name) for name in _COUNTED},
            },
            "own": _own(locks),
            "history": self._history.as_json(),
        }

    def _node(self, node: dict[str, Any], now: float) -> dict[str, Any]:
        name, state = node["node"], node["state"]
        if self._states.get(name, ("",))[0] != state:
            self._states[name] = state, self._down.get(name, now)
        known = {"round_trip": None, "version": None}
        if state in ANSWERING:
            self._met.add(name)
            known = {}
        return {**node, **known, "since": self._states[name][1], "exact": name in self._met}


_COUNTED = ("acquired", "released", "ran out")


def _own(locks: LockManager) -> dict[str, int] | None:
    # None for a manager that has not been used for locks, as in `asynclock serve`.
    counts = locks.statistics()
    if not counts.attempts and not counts.acquired and not counts.waiting:
        return None
    return {name: getattr(counts, name) for name in ("acquired", "lost", "refused", "waiting")}


# ---- What the page has seen in the last minutes, for its charts ----------------------------------


STEP = 5.0
"""Seconds of one point of a chart."""
POINTS = 120
"""Maximum number of points."""
MOST_WAITS = 2000
"""Maximum number of waits from which a point's percentiles are taken."""


@dataclass(slots=True)
class Point:
    """What was seen in one step."""

    at: float
    """The end of the step, in seconds since 1970."""
    seconds: float = 0.0
    """The part of the step in which the nodes were watched."""
    acquired: int = 0
    ran_out: int = 0
    lost: int = 0
    """Number of leases that this process has lost."""
    waiting: int = 0
    longest: float = 0.0
    """Seconds of the longest wait."""
    waits: list[float] = field(default_factory=list)
    """Seconds that this process waited for its leases."""

    def as_json(self) -> dict[str, Any]:
        """Return the point for a chart; null where nothing is known."""
        waits = sorted(self.waits)
        return {
            "at": self.at,
            "acquired": self.acquired / self.seconds if self.seconds else None,
            "ran_out": self.ran_out,
            "lost": self.lost,
            "waiting": self.waiting,
            "longest": self.longest,
            "p50": waits[len(waits) // 2] if waits else None,
            "p99": waits[len(waits) * 99 // 100] if waits else None,
        }


class History:
    """The points of the last minutes, the last one last."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._counted: Mapping[str, int] = {}
        self._last = float("-inf")
        self._first: Mapping[str, int] = {}
        """The counts since when the nodes have been watched."""
        self.waits: deque[float] = deque(maxlen=MOST_WAITS)
        """Waits of this process since the last picture."""
        self.losses: int = 0
        """Number of losses of this process since the last picture."""
        self.watched: float = 0.0
        """Since when the nodes have been watched without a gap, in seconds since 1970."""

    def note(
        self, now: float, pace: float, counts: Mapping[str, int], waiting: int, longest: float
    ) -> None:
        """Add a picture; after a gap of some of its `pace` the nodes count as not watched."""
        passed = now - self._last
        gap = passed > 3 * pace + STEP
        if gap:
            self.watched, self._first = now, dict(counts)
        end = (now // STEP + 1) * STEP
        if not self._points or self._points[-1].at != end:
            self._points.append(Point(end))
        point, before = self._points[-1], self._counted
        self._counted, self._last = dict(counts), now
        if not gap:
            point.seconds += passed
            point.acquired += counts.get("acquired", 0) - before.get("acquired", 0)
            point.ran_out += counts.get("ran out", 0) - before.get("ran out", 0)
        point.lost += self.losses
        point.waiting, point.longest = max(point.waiting, waiting), max(point.longest, longest)
        point.waits = [*point.waits, *self.waits][-MOST_WAITS:]
        self.waits.clear()
        self.losses = 0

    def seen(self, what: str) -> int:
        """Return how often something was counted since the nodes have been watched."""
        return self._counted.get(what, 0) - self._first.get(what, 0)

    def as_json(self) -> list[dict[str, Any]]:
        """Return all points, the last one last."""
        return [point.as_json() for point in self._points]
