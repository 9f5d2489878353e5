"""The rows of `asynclock top`: their cells, their order, and what a search finds."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.reports import NodeHealth
from asynclock._engine.waiters import Waiter
from asynclock._inspect.monitor import Monitor, SeenLease, SeenNode
from asynclock.cli.look import rows

QUEUE = tuple(Waiter(f"{n:032x}:web-{n}:1", woken=False) for n in (5, 6))


def seen(
    name: str = "a",
    holder: str | None = "web-1:7",
    left: tuple[float | None, ...] = (4.0, 4.0, 4.0),
    *,
    fence: int = 9,
    first: float = 90.0,
    last: float = 100.0,
    **more: Any,
) -> SeenLease:
    """A lease on three nodes; one that keeps nothing of it has no time left."""
    views = [
        NodeView(f"n{at}", None, None, 0)
        if one is None
        else NodeView(f"n{at}", f"{'a' * 32}:{holder}" if holder else "a" * 32, one, fence)
        for at, one in enumerate(left)
    ]
    return SeenLease(Inspection(name, tuple(views), 2, **more), first, last)


def test_the_cells_of_a_lease() -> None:
    lease = seen(kind="rwlock", part="write", waiting=QUEUE)
    assert rows.cells(lease) == (
        "a [rwlock write]",
        "web-1:7",
        "10.0 s",
        "4.0 s",
        "9",
        "3/3",
        "2, first web-5:1",
        "",
    )


def test_without_a_quorum_the_time_is_what_the_leading_node_tells() -> None:
    lease = seen(left=(None, 3.0, None), holder=None, fence=0)
    found = dict(zip(rows.COLUMNS, rows.cells(lease), strict=True))
    assert (found["remaining"], found["nodes"], found["holder"]) == (
        "3.0 s",
        "0/3",
        "aaaaaaaa…",
    )
    assert (found["fence"], found["waiting"]) == ("", "")


def test_with_a_quorum_the_time_is_that_of_the_quorum() -> None:
    """The first node may keep the key for longer than the lease holds."""
    lease = seen(left=(9.0, 4.0, 2.0))
    found = dict(zip(rows.COLUMNS, rows.cells(lease), strict=True))
    assert found["remaining"] == f"{lease.found.remaining:.1f} s" != "9.0 s"


def names(column: str, *leases: SeenLease, reverse: bool = False, search: str = "") -> list[str]:
    monitor = Monitor()
    monitor.leases = {(one.found.name, "", str(at)): one for at, one in enumerate(leases)}
    at = rows.COLUMNS.index(column)
    return [one.found.name for one in rows.ordered(monitor, at, reverse, search)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("column", "leases"),
    [
        ("name", [seen("a"), seen("B"), seen("c")]),
        ("holder", [seen("1", "aa:7"), seen("2", "BB:7"), seen("3", "cc:7")]),
        ("seen for", [seen("1", first=1.0), seen("2", first=2.0), seen("3", first=10.0)]),
        ("remaining", [seen("1", left=(9.0,) * 3), seen("2", left=(10.0,) * 3)]),
        ("fence", [seen("1", fence=9), seen("2", fence=10)]),
        ("nodes", [seen("1", left=(4.0, None, 4.0)), seen("2")]),
        ("waiting", [seen("1"), seen("2", waiting=QUEUE * 2), seen("3", waiting=QUEUE * 5)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_are_sorted_as_numbers_and_texts_without_case(
    column: str, leases: list[SeenLease], reverse: bool
) -> None:
    wanted = [one.found.name for one in leases]
    given = [*leases[1:], leases[0]]
    assert names(column, *given, reverse=reverse) == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize("search", ["PAY", "pay", "Web-7", "SEMA", "pay [sem"])
def test_a_search_looks_at_titles_and_holders_without_case(search: str) -> None:
    leases = [seen("Pay", "web-7:1", kind="semaphore", part="0"), seen("other", "host:1")]
    assert names("name", *leases, search=search) == ["Pay"]


@pytest.mark.parametrize(("trip", "shown"), [(0.0012, "1.2 ms"), (0.0, "0.0 ms"), (None, "")])
def test_the_cells_of_a_node(trip: float | None, shown: str) -> None:
    health = NodeHealth("n0", "down", "gone", 0.0, trip, None, None)
    node = SeenNode(health, "why", watched="5", clients="9")
    assert rows.node_cells(node) == ("n0", "down", shown, "5", "9", "", "why")
