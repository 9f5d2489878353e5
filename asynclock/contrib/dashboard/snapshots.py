"""The content of the page as plain data. All texts in it are untrusted: a page must escape them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..._engine.inspection import Waiter
from ..._inspect.monitor import Ended, Monitor, SeenLease, doubts, false_alarm
from ..._inspect.survey import in_slices
from ..._inspect.views import MANY, origin, seconds, title
from ..._rules.quorum import majority
from ...events import Acquired, Event, Lost, NodeDown, NodeUp
from ...manager import LockManager, engine_of

# ---- The names: who holds each, who waits for it and for how long, and what is wrong -------------


Key = tuple[str, str]
"""A name and its kind."""

USUAL_HOLD = 10.0
"""Seconds after which a wait stands out if the usual hold of the name isn't known."""
FEWEST_HOLDS = 3
"""Minimum number of ended holds from which the usual one is taken."""
SHORTEST_WAIT = 1.0
"""Maximum seconds of a wait that is never reported."""
MOST_LISTED = 200
"""Maximum number of holders, waiters and past holds that the view of one lock lists."""
LEVELS = ("", "amber", "red")
"""The colours of a row, the most urgent one last."""


@dataclass(slots=True)
class Row:
    """A name of one kind, with all its leases and waiters."""

    name: str
    kind: str
    leases: list[SeenLease] = field(default_factory=list)
    waiting: tuple[Waiter, ...] = ()
    here: int = 0
    """Number of tasks of this process that wait for the name."""
    since: float | None = None
    """When the first waiter that is left began to wait, in seconds since 1970."""
    usual: float | None = None
    """Usual seconds of a hold, as seen; None if too few were seen."""
    level: str = ""
    why: str = ""
    """What is wrong, in words; "" if nothing is."""

    @property
    def count(self) -> int:
        """Number of waiters: the tasks of a process have one place together in the queue."""
        return max(self.here, len(self.waiting))

    @property
    def urgency(self) -> tuple[int, int, float, str]:
        """The sort key: trouble comes first, then the longest wait for a name."""
        since = float("inf") if self.since is None else self.since
        return -LEVELS.index(self.level), -bool(self.count), since, self.name.casefold()

    @property
    def holder(self) -> str:
        """The labels of the holders, one for each."""
        if len(self.leases) == 1:  # as nearly all of 100,000 rows have
            return self.leases[0].holder or ""
        return ", ".join(sorted(filter(None, {one.holder for one in self.leases})))

    def contains(self, search: str) -> bool:
        """Return whether `search`, in lower case, is in the name, a part, a holder or a waiter."""
        for one in self.leases:
            if search in one.text:
                return True
        if not self.count:
            return False
        texts = [self.name, *(one.label for one in self.waiting)]
        return any(search in text.casefold() for text in texts if text)

    def judge(self, *, odd: bool) -> None:
        """Say what is wrong; with `odd`, nodes differed in the picture before as well."""
        found = [one.agreement.odd for one in self.leases]
        notes = sorted({note for note in found if note})
        if notes and odd:
            self.level, self.why = "red", ", ".join(notes)
        elif self.since is not None:
            waited = time.time() - self.since
            long = max(SHORTEST_WAIT, self.usual or USUAL_HOLD)
            blocked = self._blocked if waited > SHORTEST_WAIT else ""
            over = "the usual hold of " if self.usual else ""
            limit = f"{long:.3g} s" if long < 60 else seconds(long)
            late = f"the longest wait is over {over}{limit}" if waited > long else ""
            self.why = ", ".join(filter(None, (blocked, late)))
            self.level = "amber" if self.why else ""

    @property
    def _blocked(self) -> str:
        """Which side of a read-write lock waits for the other one; "" if neither does."""
        if self.kind != "rwlock":
            return ""
        reading = sum(one.found.part == "read" for one in self.leases)
        readers = sum(one.shared for one in self.waiting)
        writers = len(self.waiting) - readers
        if reading and writers:
            return f"{_who_waits(writers, 'writer')} for {_number(reading, 'reader')}"
        if readers and len(self.leases) > reading:
            return f"{_who_waits(readers, 'reader')} for a writer"
        return ""

    def as_json(self, ours: Collection[str]) -> dict[str, Any]:
        """Return what the table shows; `ours` are the owners of this process."""
        leases = self.leases  # there may be thousands
        first: Mapping[str, Any] = {}
        if leases:
            first = lease_as_json(min(leases, key=lambda one: one.since), ours)
        found = [one.agreement for one in leases]
        parts = {one.found.part for one in leases}
        titled = leases and len(parts) == 1
        plain = self.name if self.kind == "lock" else f"{self.name} [{self.kind}]"
        return {
            "name": self.name,
            "kind": self.kind,
            "title": title(leases[0].found) if titled else plain,
            "part": parts.pop() if titled else "",
            "holder": first.get("holder"),
            "holders": len(leases),
            "held": first.get("held"),
            "exact": first.get("exact", True),
            "fence": first.get("fence", 0),
            "remaining": first.get("remaining"),
            "nodes": min((one.agreeing for one in found), default=0),
            "agreed": all(one.owners == 1 and one.held and not one.missing for one in found),
            "note": ", ".join(sorted({one.note for one in found if one.note})),
            "ours": bool(ours) and any(one.found.owner in ours for one in leases),
            "waiting": self.count,
            "more": len(self.waiting) >= MANY,
            "waited": _ago(self.since),
            "usual": self.usual,
            "level": self.level,
            "why": self.why,
        }

    def in_full(self, ours: Collection[str]) -> dict[str, Any]:
        """Return what the view of one lock shows."""
        longest = sorted(self.leases, key=lambda one: one.since)[:MOST_LISTED]
        leases = [lease_as_json(one, ours, whole=True) for one in longest]
        queue = [
            {
                "label": one.label,
                **origin(one.label),
                "woken": one.woken,
                "waited": _ago(one.since),
                "shared": one.shared,
            }
            for one in self.waiting[:MOST_LISTED]
        ]
        return {**self.as_json(ours), "leases": leases, "queue": queue, "here": self.here}


def lease_as_json(seen: SeenLease, ours: Collection[str], *, whole: bool = False) -> dict[str, Any]:
    """Return one lease; with `whole`, also what each node says."""
    found = seen.found
    agreement, owner, holder = seen.agreement, found.owner, seen.holder
    shown: dict[str, Any] = {
        "part": found.part,
        "holder": holder,
        "held": _ago(seen.since),
        "exact": seen.exact,
        "fence": found.fence,
        "remaining": found.remaining,
        "nodes": agreement.agreeing,
        "agreed": found.agreed and owner is not None,
        "note": agreement.note,
        "ours": owner is not None and owner in ours,
    }
    if whole:
        names = ("node", "holder", "remaining", "fence", "error")
        views = [{name: getattr(view, name) for name in names} for view in found.nodes]
        shown |= {**origin(holder), "message": found.message, "views": views}
    return shown


async def rows_of(
    monitor: Monitor, here: Mapping[str, int], odd: Collection[Key]
) -> tuple[list[Row], set[Key]]:
    """Return a row for each name that is held or waited for, and the rows whose nodes differ.

    `odd` are those whose nodes differed in the picture before: nodes are asked at different
    moments, so one picture alone shows a name that is being passed on as a disagreement.
    """
    rows: dict[Key, Row] = {}
    differ: set[Key] = set()
    async for seen in in_slices(monitor.leases.values()):
        key = seen.found.name, seen.found.kind
        row = rows.get(key)
        if row is None:
            row = rows[key] = Row(*key)
        row.leases.append(seen)
        if seen.agreement.odd:
            differ.add(key)
    kinds = dict(reversed(rows))  # of several kinds of a name the first
    waiting = {**monitor.survey.queues}
    for name in here:
        waiting.setdefault((name, kinds.get(name, "lock")), ())
    usual = _usual_holds(monitor.ended, waiting)
    for key, waiters in waiting.items():
        row = rows.setdefault(key, Row(*key))
        row.waiting, row.here, row.usual = waiters, here.get(key[0], 0), usual.get(key)
        row.since = min((one.since for one in waiters if one.since is not None), default=None)
    for key in differ | waiting.keys():
        rows[key].judge(odd=key in odd)
    return list(rows.values()), differ


def _usual_holds(ended: Iterable[Ended], wanted: Collection[Key]) -> dict[Key, float]:
    """Return the median of the holds that were seen to end, where there were enough."""
    found: defaultdict[Key, list[float]] = defaultdict(list)
    for one in ended:
        if (one.name, one.kind) in wanted:
            found[one.name, one.kind].append(one.until - one.since)
    return {
        key: statistics.median(seconds)
        for key, seconds in found.items()
        if len(seconds) >= FEWEST_HOLDS
    }


def _ago(moment: float | None) -> float | None:
    return None if moment is None else max(0.0, time.time() - moment)


def _number(count: int, what: str) -> str:
    return f"a {what}" if count == 1 else f"{count} {what}s"


def _who_waits(count: int, what: str) -> str:
    return f"{_number(count, what)} wait{'s' if count == 1 else ''}"


def _ordered(
    value: Callable[[SeenLease], float], most: Callable[..., float] = min
) -> Callable[[Row], Any]:
    def key(row: Row) -> float:
        leases = row.leases  # nearly always one, and there may be 100,000 rows
        return value(leases[0]) if len(leases) == 1 else most(map(value, leases), default=0.0)

    return key


def _held(seen: SeenLease) -> float:
    return time.time() - seen.since


def _fence(seen: SeenLease) -> int:
    leading = seen.agreement.leading
    return leading.fence if leading else 0


def _left(seen: SeenLease) -> float:
    leading = seen.agreement.leading
    return (leading and leading.remaining) or 0.0


SORTED: Mapping[str, Callable[[Row], Any]] = {
    "name": lambda row: row.name.casefold(),
    "holder": lambda row: row.holder.casefold(),
    "held": _ordered(_held, max),
    "waiting": lambda row: row.count,
    "remaining": _ordered(_left),
    "fence": _ordered(_fence),
    "nodes": _ordered(lambda seen: seen.agreement.agreeing),
}
"""What each column is sorted by."""


def in_order(rows: Sequence[Row], column: str) -> list[Row]:
    """Return `rows`, which are in the order of their names, sorted by a column or by "attention".

    Only a few rows need attention, so only those are sorted by it.
    """
    if column in SORTED:
        return sorted(rows, key=SORTED[column])
    urgent = [row for row in rows if row.level or row.count]
    calm = [row for row in rows if not (row.level or row.count)]
    return sorted(urgent, key=lambda row: row.urgency) + calm


def past(ended: Sequence[Ended], name: str) -> list[dict[str, Any]]:
    """Return the last holds of a name that were seen to end, the first one first."""
    found = [one for one in ended if one.name == name][-MOST_LISTED:]
    names = ("kind", "part", "holder", "since", "until")
    return [{**{name: getattr(one, name) for name in names}, "ended": one.how} for one in found]


# ---- The snapshots -------------------------------------------------------------------------------


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
            offset=_natural(offset, 0),
            limit=min(max(1, _natural(limit, 100)), MOST_LOCKS),
            lock=asked.get("lock"),
        )


def _natural(text: str, otherwise: int) -> int:
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
        self._ours = {grant.owner for grant in engine_of(locks).renewals.grants()}
        rows, odd = await rows_of(monitor, locks.waiters(), self._odd)
        asked, self._asked, orders = self._asked, set(), {}
        for column in asked:
            await asyncio.sleep(0)  # 100,000 rows take up to a tenth of a second
            orders[column] = in_order(rows, column)
        self._rows, self._odd, self._sorted = rows, odd, orders
        waited = [row for row in self._rows if row.count]
        waiting = sum(row.count for row in waited)
        longest = max((now - row.since for row in waited if row.since is not None), default=0.0)
        self._history.note(now, self.pace, monitor.totals, waiting, longest)
        nodes = [self._node(asdict(node), now) for node in locks.nodes()]
        engine, trouble = engine_of(locks), monitor.trouble
        red = trouble is not None and trouble.level == "red"
        self._red = min(self._red, now) if red else float("inf")
        if red:
            trouble = false_alarm(monitor, self._red) or trouble
        self._rest = {
            "version": VERSION,
            "at": now,
            "quorum": majority(len(nodes)),
            "trouble": asdict(trouble) if trouble else None,
            "doubts": doubts(monitor, engine.settings.prefix, engine.settings.max_ttl),
            "held": monitor.held,
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
