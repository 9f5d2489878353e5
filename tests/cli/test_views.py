"""What `inspect`, `top` and the page make of what the nodes say, without any node."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.reports import NodeHealth
from asynclock._engine.waiters import Waiter
from asynclock._inspect.health import Trouble, trouble
from asynclock._inspect.layout import KeyRef
from asynclock._inspect.states import SharedState
from asynclock._inspect.views import (
    Agreement,
    as_json,
    number,
    origin,
    queue_as_json,
    queued,
    title,
)
from asynclock._primitives.kind import State, StateView
from asynclock._primitives.kinds import KINDS

MICROSECONDS = 1_700_000_000_000_000
"""A fence that began at a moment of 2023."""


def inspection(nodes: str, **more: Any) -> Inspection:
    """Return what nodes say of a lock, a letter each: an owner; "." free; "?" silent."""
    views = [
        NodeView(f"n{at}", None, None, 0, "no answer" if one == "?" else None)
        if one in ".?"
        else NodeView(f"n{at}", f"{one * 32}:web-{one}:7", 4.0, MICROSECONDS + ord(one))
        for at, one in enumerate(nodes)
    ]
    return Inspection("orders", tuple(views), len(nodes) // 2 + 1, **more)


# ---- how far the nodes agree ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "support", "note"),
    [
        ("a", "1/1", ""),
        (".", "0/1", ""),
        ("?", "0/1", "unknown: 0 of 1 nodes answered"),
        ("aaa", "3/3", ""),
        ("aa.", "2/3", "not on 1 of 3 nodes"),
        ("aa?", "2/3", ""),
        ("...", "0/3", ""),
        ("..?", "0/3", ""),
        ("a..", "0/3", "no quorum, not on 2 of 3 nodes"),
        ("a.?", "0/3", "unknown: 2 of 3 nodes answered, not on 1 of 3 nodes"),
        (".??", "0/3", "unknown: 1 of 3 nodes answered"),
        ("a??", "0/3", "unknown: 1 of 3 nodes answered"),
        ("baa", "2/3", "nodes disagree"),
        ("ab.", "0/3", "no quorum, nodes disagree, not on 1 of 3 nodes"),
        ("abc", "0/3", "no quorum, nodes disagree"),
        ("ab?", "0/3", "unknown: 2 of 3 nodes answered, nodes disagree"),
        ("baaa.", "3/5", "nodes disagree, not on 1 of 5 nodes"),
        ("bcaa.", "0/5", "no quorum, nodes disagree, not on 1 of 5 nodes"),
        ("bcaa?", "0/5", "unknown: 4 of 5 nodes answered, nodes disagree"),
    ],
)
def test_how_far_nodes_agree(nodes: str, support: str, note: str) -> None:
    agreement = Agreement.of(inspection(nodes))
    assert (agreement.support, agreement.note) == (support, note)
    if "a" in nodes:
        assert agreement.leading is not None
        assert agreement.leading.owner == f"{'a' * 32}:web-a:7", "the one that most nodes name"


def test_a_key_without_a_ttl_is_a_note() -> None:
    usual = NodeView("n0", "x" * 32, 4.0, 0)
    endless = NodeView("n1", "x" * 32, None, 0)
    for views in ((endless,), (usual, endless)):
        assert Agreement.of(Inspection("a", views, len(views))).note == "a key without ttl"


def test_an_empty_owner_holds_the_lock_too() -> None:
    """Another program wrote an empty value: the key still keeps everyone out."""
    agreement = Agreement.of(Inspection("a", (NodeView("n0", "", 4.0, 0),), 1))
    assert (agreement.held, agreement.support, agreement.missing) == (True, "1/1", 0)


@pytest.mark.parametrize(
    ("nodes", "held", "agreed", "conflict"),
    [
        ("aaa", True, True, False),
        ("aa?", True, True, False),
        ("aa.", True, False, False),
        ("baa", True, False, True),
        ("a..", False, False, False),
        ("a??", False, True, False),
        ("...", False, True, False),
    ],
)
def test_programs_see_an_owner_only_if_a_quorum_names_it(
    nodes: str, held: bool, agreed: bool, conflict: bool
) -> None:
    shown = as_json(inspection(nodes))
    assert (shown["held"], shown["agreed"], shown["conflict"]) == (held, agreed, conflict)
    owner = f"{'a' * 32}:web-a:7" if held else None
    assert shown["owner"] == owner
    assert (shown["holder"], shown["host"], shown["pid"]) == (
        ("web-a:7", "web-a", 7) if held else (None, None, None)
    )
    assert (shown["since"], shown["remaining"]) == (
        (pytest.approx(1_700_000_000, abs=1), 4.0) if held else (None, None)
    )
    assert bool(shown["fence"]) is held
    assert shown["fence"] != 0, "null without one"
    assert (shown["silent"], shown["quorum"], shown["part"]) == (nodes.count("?"), 2, None)
    named = sum(one.isalpha() for one in nodes)
    assert shown["missing"] == (nodes.count(".") if named else 0)
    assert [view["fence"] for view in shown["nodes"]] == [
        MICROSECONDS + ord(one) if one.isalpha() else None for one in nodes
    ]
    errors = [view["error"] for view in shown["nodes"]]
    assert errors == ["no answer" if one == "?" else None for one in nodes]


# ---- labels and names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "host", "pid", "task"),
    [
        ("web-1:77", "web-1", 77, None),
        ("web-1:77:nightly", "web-1", 77, "nightly"),
        ("web-1:77:job:9:late", "web-1", 77, "job:9:late"),
        ("web-1:77:two\nlines", "web-1", 77, "two\nlines"),
        ("fe80::1:77", "fe80:", 1, "77"),
        ("web-1", None, None, None),
        ("web-1:job", None, None, None),
        ("web-1:77th", None, None, None),
        (":77", None, None, None),
        ("", None, None, None),
        (None, None, None, None),
    ],
)
def test_where_a_holder_is_by_its_label(
    label: str | None, host: str | None, pid: int | None, task: str | None
) -> None:
    assert origin(label) == {"host": host, "pid": pid, "task": task}


@pytest.mark.parametrize(
    ("kind", "part", "shown"),
    [
        ("lock", "", "orders"),
        ("fair", "", "orders [fair]"),
        ("semaphore", "3", "orders [semaphore 3]"),
        ("rwlock", "write", "orders [rwlock write]"),
    ],
)
def test_the_title_tells_all_but_a_plain_lock(kind: str, part: str, shown: str) -> None:
    assert title(inspection("a", kind=kind, part=part)) == shown


def test_how_many_wait() -> None:
    waiters = [Waiter(f"{n:032x}:web-{n}:7:job", woken=n == 1) for n in range(500)]
    assert [queued(waiters[:n]) for n in (0, 1, 499)] == ["", "1 waiting", "499 waiting"]
    # Half of those that a node tells may have died.
    assert (number(waiters), queued(waiters)) == ("500 or more", "500 or more waiting")
    assert queue_as_json(waiters[1:2]) == [
        {
            "ticket": f"{1:032x}:web-1:7:job",
            "label": "web-1:7:job",
            "host": "web-1",
            "pid": 7,
            "task": "job",
            "woken": True,
        }
    ]


# ---- the health of nodes -------------------------------------------------------------------------

LOST = "nothing can be locked, and no lease can be renewed"
LAST = "locks work; if one more fails, nothing can be locked"


@pytest.mark.parametrize(
    ("states", "level", "text"),
    [
        ("up", None, ""),
        ("up up up", None, ""),
        ("down", "red", f"1 of 1 nodes without a vote (1 down): {LOST}"),
        ("up up down", "amber", f"1 of 3 nodes without a vote (1 down): {LAST}"),
        ("up down down", "red", f"2 of 3 nodes without a vote (2 down): {LOST}"),
        (
            "up stalled rejected",
            "red",
            f"2 of 3 nodes without a vote (1 rejected, 1 stalled): {LOST}",
        ),
        (
            "up up up up quarantined",
            "amber",
            "1 of 5 nodes without a vote (1 quarantined): locks work; 1 more may fail",
        ),
        ("down up up up down", "amber", f"2 of 5 nodes without a vote (2 down): {LAST}"),
        ("up up up down", "amber", f"1 of 4 nodes without a vote (1 down): {LAST}"),
        ("up up down down", "red", f"2 of 4 nodes without a vote (2 down): {LOST}"),
    ],
)
def test_what_missing_nodes_mean(states: str, level: str | None, text: str) -> None:
    nodes = [NodeHealth("n", one, "", 0.0, None, None, None) for one in states.split()]
    assert trouble(nodes) == (Trouble(level, text) if level else None)


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (b"p:a", ("a", "lock", "")),
        (b"p:a:b", ("a:b", "lock", "")),
        (b"p:pool:#12", ("pool", "semaphore", "12")),
        (b"p:book:#readers", ("book", "rwlock", "read")),
        (b"q:a", None),
        (b"p:", None),
        (b"p:\xff", None),
        (b"p:a:#fence", None),
        (b"p:a:#unknown", None),
        (b"p:a:#readers:#fence", None),
        ("p:a:#٣".encode(), None),
        ("p:a:#²".encode(), None),
    ],
)
def test_what_a_key_stands_for(key: bytes, found: tuple[str, str, str] | None) -> None:
    ref = KeyRef.parse("p:", key)
    assert (ref and (ref.name, ref.kind, ref.shown)) == found
    if ref is not None:
        assert KeyRef.shown_as(ref.name, ref.kind, ref.shown) == ref


# ---- shared state --------------------------------------------------------------------------------

(EVENT,) = (
    part
    for kind in KINDS
    for part in kind.parts
    if isinstance(part, State) and part.suffix == "event"
)


@pytest.mark.parametrize(
    ("numbers", "support", "agreed"),
    [((3, 3, 3), 3, True), ((2, 3, 3), 2, True), ((3, 2, 2), 1, False), ((2, 0, 3), 1, False)],
)
def test_the_last_change_of_a_state_counts_once_a_quorum_knows_it(
    numbers: tuple[int, ...], support: int, agreed: bool
) -> None:
    """Nodes may have the same value and not know the last change."""
    views = [
        StateView(f"n{at}", n, "set" if n else None, 5.0 + n, error=None if n else "no answer")
        for at, n in enumerate(numbers)
    ]
    state = SharedState("bell", EVENT, tuple(views), 2)
    assert (state.last.number, state.support, state.agreed) == (3, support, agreed)
    assert state.summary == ("set" if agreed else "set, no quorum")
    shown = state.as_json()
    assert (shown["kind"], shown["state"], shown["agreed"]) == ("event", {"set": True}, agreed)
    assert shown["remaining"] == 8.0, "of the last change"
    assert shown["nodes"] == [
        {"node": one.node, "value": one.value, "remaining": one.remaining, "error": one.error}
        for one in views
    ]


def test_a_value_of_something_else_is_no_state() -> None:
    for value in ("?", None):
        view = StateView("n0", 1, value, None)
        state = SharedState("bell", EVENT, (view,), 1)
        assert (state.state, state.summary) == (None, "written by something else")
