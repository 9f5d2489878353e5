"""The content of the page as plain data. All texts in it are untrusted: a page must escape them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..._engine.inspection import Inspection
from ..._engine.waiters import Waiter
from ..._inspect.monitor import Monitor
from ..._inspect.views import MANY, Agreement, queue_as_json
from ..._rules.quorum import majority
from ...events import Event, Lost
from ...manager import LockManager

VERSION = 1
"""Version of the format; it rises with changes that may break a program that reads snapshots."""
FRESH = 1.0
"""Minimum seconds that a snapshot is used for all viewers, so that they don't add load on nodes."""
SHARE = 4
"""A snapshot is used for this many times the time it took to make: at most a fifth of a CPU."""
RECENT = 10.0
"""Seconds for which an outdated snapshot is still good enough for a new request."""
MOST_LOCKS = 200
"""Maximum number of locks on a page, and of names in the list of waiters."""
MOST_WAITERS = 20
"""Maximum number of waiters of a name that are listed."""
MOST_LOSSES = 50
"""Maximum number of losses that are kept."""
LONGEST_SEARCH = 200
"""Maximum number of characters to search for."""
COLUMNS = ("name", "holder", "remaining", "fence", "nodes", "note")
"""The columns by which locks can be sorted."""


@dataclass(frozen=True, slots=True)
class Query:
    """The selection and order of locks that a viewer asks for."""

    search: str = ""
    sort: str = "name"
    reverse: bool = False
    offset: int = 0
    limit: int = 100

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Query:
        """Read the parameters of a URL; malformed ones are ignored."""
        offset, limit = (asked.get(key, "") for key in ("offset", "limit"))
        return cls(
            search=asked.get("search", "")[:LONGEST_SEARCH].casefold(),
            sort=asked["sort"] if asked.get("sort") in COLUMNS else "name",
            reverse=asked.get("reverse") == "1",
            offset=_number(offset, 0),
            limit=min(max(1, _number(limit, 100)), MOST_LOCKS),
        )


def _number(text: str, otherwise: int) -> int:
    # Python refuses to read numbers with thousands of digits.
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise


class Snapshots:
    """Takes snapshots of one manager and its nodes for all viewers."""

    def __init__(self, locks: LockManager) -> None:
        self._locks = locks
        self._monitor = Monitor()
        self._losses: deque[dict[str, Any]] = deque(maxlen=MOST_LOSSES)
        self._turn = asyncio.Lock()
        self._rows: list[dict[str, Any]] = []
        self._rest: dict[str, Any] = {}
        self._since = time.time()
        self._stale_at = float("-inf")
        self.pace: float = FRESH
        """Seconds between two snapshots."""
        locks.observe(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, Lost):
            self._losses.appendleft({**asdict(event), "at": time.time()})

    async def take(self, query: Query, *, at_once: bool = False) -> dict[str, Any]:
        """Return the present state, within some node timeouts. Raises ConfigurationError.

        With `at_once` a recent snapshot is enough: a search among 100,000 locks must not wait until
        all of them have been read again.
        """
        if not at_once or time.monotonic() > self._stale_at + self.pace + RECENT:
            await self._look()
        rows = [row for row in self._rows if query.search in row["text"]]
        rows.sort(key=lambda row: _key(row, query.sort), reverse=query.reverse)
        shown = rows[query.offset : query.offset + query.limit]
        page = [{key: value for key, value in row.items() if key != "text"} for row in shown]
        return {**self._rest, "found": len(rows), "offset": query.offset, "locks": page}

    async def _look(self) -> None:
        async with self._turn:
            if time.monotonic() >= self._stale_at:
                began = time.monotonic()
                await self._monitor.refresh(self._locks)
                self.pace = max(FRESH, SHARE * (time.monotonic() - began))
                self._stale_at = time.monotonic() + self.pace
                self._make()

    def _make(self) -> None:
        locks, monitor = self._locks, self._monitor
        ours = {lease.owner for lease in locks.leases()}
        nodes = [asdict(node) for node in locks.nodes()]
        waiters = _waiters(locks.waiters(), monitor.survey.waiting)
        self._rows = [_lock(lease.found, ours) for lease in monitor.leases.values()]
        self._rest = {
            "version": VERSION,
            "at": time.time(),
            "pace": self.pace,
            "quorum": majority(len(nodes)),
            "trouble": asdict(monitor.trouble) if monitor.trouble else None,
            "held": len(self._rows),
            "waiters": waiters[:MOST_LOCKS],
            "waited_for": len(waiters),
            "nodes": nodes,
            "losses": list(self._losses),
            "seen": {
                "since": self._since,
                **{name.replace(" ", "_"): monitor.counts[name] for name in _COUNTED},
            },
            "own": _own(locks),
        }


_COUNTED = ("acquired", "released", "ran out")


def _own(locks: LockManager) -> dict[str, int] | None:
    # None for a manager that has not been used for locks, as in `asynclock serve`.
    counts = locks.statistics()
    if not counts.attempts and not counts.acquired and not counts.waiting:
        return None
    return {
        "acquired": counts.acquired,
        "lost": counts.lost,
        "refused": counts.refused,
        "waiting": counts.waiting,
    }


def _waiters(here: dict[str, int], known: dict[str, tuple[Waiter, ...]]) -> list[dict[str, Any]]:
    # The tasks of a process have one place together in the queue that the nodes keep.
    found = []
    for name in sorted(here.keys() | known.keys()):
        queue = known.get(name, ())
        count = max(here.get(name, 0), len(queue))
        first = queue_as_json(queue[:MOST_WAITERS])
        found.append({"name": name, "count": count, "more": len(queue) >= MANY, "queue": first})
    return found


def _lock(found: Inspection, ours: set[str]) -> dict[str, Any]:
    agreement = Agreement.of(found)
    view, owner = agreement.leading, found.owner
    holder = view.holder if view else None
    return {
        "name": found.name,
        "part": found.part,
        "holder": holder,
        "fence": found.fence,
        "remaining": found.remaining,
        "nodes": sum(view.owner is not None for view in found.nodes),
        "agreed": found.agreed and owner is not None,
        "note": agreement.note,
        "ours": owner is not None and owner in ours,
        "text": f"{found.name}\0{found.part}\0{holder or ''}".casefold(),
    }


def _key(row: dict[str, Any], column: str) -> tuple[Any, ...]:
    value = row[column]
    number = value if isinstance(value, int | float) else 0 if value is None else None
    if number is not None:
        return 0.0 + number, "", row["name"]
    return 0.0, str(value).casefold(), row["name"]
