"""The leases and nodes of a Monitor as rows of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import _clock
from ..._engine.inspection import Waiter
from ..._inspect.monitor import Monitor, SeenLease, SeenNode
from ..._inspect.survey import Survey
from ..._inspect.views import number, title
from .._text import ago, held_for, seconds
from .held import LONGEST_VALUE

COLUMNS = (
    "name",
    "holder",
    "held for",
    "remaining",
    "fence",
    "nodes",
    "waiting",
    "message",
    "note",
)
NODE_COLUMNS = ("node", "state", "round trip", "tracked keys", "clients", "version", "cause")
WAITING = COLUMNS.index("waiting")
SPARE_OF_NODES = ("version", "tracked keys", "clients", "round trip")


def cells(lease: SeenLease) -> tuple[str, ...]:
    """Return a lease as text, in the order of COLUMNS."""
    found, agreement = lease.found, lease.agreement
    view = agreement.leading
    left = found.remaining
    if left is None and view is not None:
        left = view.remaining
    return (
        title(found),
        lease.holder or "",
        held_for(found, lease.last_seen - lease.first_seen),
        seconds(left),
        str(found.fence or ""),
        agreement.support,
        _waiting(found.waiting),
        (found.message or "")[:LONGEST_VALUE],
        agreement.note,
    )


def ordered(monitor: Monitor, column: int, reverse: bool, search: str) -> Sequence[SeenLease]:
    """Return the leases whose name or holder contains `search`, sorted by a column."""
    text = search.casefold()
    rows: Iterable[SeenLease] = monitor.leases.values()
    if text:
        rows = [row for row in rows if text in f"{title(row.found)}\0{row.holder or ''}".casefold()]
    return sorted(rows, key=lambda row: _key(row, column), reverse=reverse)


def waited(found: Survey) -> str:
    """Return how many wait for all names together, and the longest wait."""
    waiting = [one for each in found.queues.values() for one in each]
    longest = ago(min((one.since for one in waiting if one.since is not None), default=None))
    return f"{number(waiting)} waiting{', longest ' * bool(longest)}{longest}"


def _waiting(waiting: Sequence[Waiter]) -> str:
    """Return how many wait, and for how long the first one has waited."""
    if not waiting:
        return ""
    waited = ago(waiting[0].since)
    return f"{number(waiting)}{' for ' * bool(waited)}{waited}, first {waiting[0].label}"


def _key(lease: SeenLease, column: int) -> tuple[float, str]:
    # This makes no other cells than the one to sort by, because there may be 100,000 leases.
    match column:
        case 0:
            return 0.0, title(lease.found).casefold()
        case 1:
            return 0.0, (lease.holder or "").casefold()
        case 2:
            return lease.found.since or _clock.wall() - (lease.last_seen - lease.first_seen), ""
        case 3:
            return lease.found.remaining or 0.0, ""
        case 4:
            return lease.found.fence, ""
        case 5:
            return sum(view.owner is not None for view in lease.found.nodes), ""
        case 6:  # WAITING
            return len(lease.found.waiting), ""
        case 7:
            return 0.0, (lease.found.message or "").casefold()
        case _:
            return 0.0, lease.agreement.note.casefold()


def node_cells(node: SeenNode) -> tuple[str, ...]:
    """Return a node as text, in the order of NODE_COLUMNS."""
    health = node.health
    trip = "" if health.round_trip is None else f"{health.round_trip * 1000:.1f} ms"
    version = health.version or ""
    return health.node, health.state, trip, node.watched, node.clients, version, node.cause
