"""What `top` knows: who holds what since when, what ran out, how the nodes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import _clock
from .._engine.inspection import Inspection
from .._nodes.link import Failure
from .._nodes.script import Command
from ..manager import LockManager
from ._survey import Survey, ask, survey
from ._views import leading, note, seconds, support, title

COLUMNS = ("name", "holder", "seen for", "remaining", "fence", "nodes", "note")
LATE = 0.5
"""A lock that vanished with less than this left (and a look's interval) ran out of time."""
INFO = Command.plain("INFO")
_COUNTED = ("tracking_total_keys", "connected_clients", "expired_keys")


@dataclass
class Row:
    """One holding as it was at the last look."""

    found: Inspection
    since: float
    """When it was first seen."""
    at: float
    """When it was last seen."""

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of COLUMNS."""
        found, view = self.found, leading(self.found)
        holder = (view.holder if view else None) or ""
        left = found.remaining
        if left is None and view is not None:
            left = view.remaining
        fence = str(found.fence or "")
        age = seconds(self.at - self.since)
        return title(found), holder, age, seconds(left), fence, support(found), note(found)

    def key(self, column: int) -> tuple[float, str]:
        """What it is sorted by: numbers as numbers."""
        cell = self.cells()[column]
        number = {
            2: self.since,
            3: self.found.remaining or 0.0,
            4: float(self.found.fence),
            5: float(sum(view.owner is not None for view in self.found.nodes)),
        }.get(column, 0.0)
        return number, cell.casefold()


@dataclass
class NodeRow:
    """One node."""

    address: str
    state: str
    round_trip: float | None
    watched: str
    """Names that somebody waits for, by the server's own count."""
    clients: str
    version: str
    cause: str

    def cells(self) -> tuple[str, ...]:
        """As text."""
        trip = "" if self.round_trip is None else f"{self.round_trip * 1000:.1f} ms"
        return (
            self.address, self.state, trip, self.watched, self.clients, self.version, self.cause
        )  # fmt: skip


NODE_COLUMNS = ("node", "state", "round trip", "waited for", "clients", "version", "cause")


@dataclass
class Board:
    """The state between two looks."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)
    nodes: list[NodeRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """"acquired", "released" and "ran out" since the start."""
    _looked: bool = False

    async def look(self, locks: LockManager) -> None:
        """Ask all nodes once more."""
        found = await survey(locks)
        now = _clock.now()
        if len(found.errors) < len(locks.nodes()):
            self._compare(found, now)
        self.nodes = [await self._node(locks, number) for number in range(len(locks.nodes()))]
        self._looked = True

    def _compare(self, found: Survey, now: float) -> None:
        before, self.rows = self.rows, {}
        for one in found.places:
            view = leading(one)
            key = (one.name, one.part, (view.owner if view else None) or "")
            known = before.pop(key, None)
            self.rows[key] = Row(one, known.since if known else now, now)
            if known is None and self._looked:
                self.counts["acquired"] += 1
        for row in before.values():
            left = (row.found.remaining or 0.0) - (now - row.at)
            self.counts["ran out" if left < LATE else "released"] += 1

    async def _node(self, locks: LockManager, number: int) -> NodeRow:
        health = locks.nodes()[number]
        info = await ask(locks._engine.multiplexer.nodes[number], INFO)
        said: dict[str, str] = {}
        if isinstance(info, bytes):
            lines = info.decode("utf-8", "replace").splitlines()
            said = dict(line.split(":", 1) for line in lines if ":" in line)
        cause = info.cause if isinstance(info, Failure) and not health.cause else health.cause
        watched, clients, _ = (said.get(name, "") for name in _COUNTED)
        return NodeRow(
            health.node,
            health.state,
            health.round_trip,
            watched,
            clients,
            health.version or "",
            cause,
        )

    def sorted(self, column: int, reverse: bool, wanted: str) -> Sequence[Row]:
        """The rows that contain `wanted` in name or holder."""
        text = wanted.casefold()
        rows = [row for row in self.rows.values() if text in "\0".join(row.cells()[:2]).casefold()]
        return sorted(rows, key=lambda row: row.key(column), reverse=reverse)
