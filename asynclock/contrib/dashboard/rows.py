"""The names on the page: who holds each, who waits for it and for how long, and what is wrong."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._engine.inspection import Waiter
from ..._inspect.monitor import Ended, Monitor, SeenLease
from ..._inspect.survey import in_slices
from ..._inspect.views import MANY, origin, seconds, title

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
        if len(self.leases) == 1:
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
            "nodes": min((one.kept for one in found), default=0),
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
        "nodes": agreement.kept,
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
    "nodes": _ordered(lambda seen: seen.agreement.kept),
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
