"""What primitives declare of themselves is all that tools know of them."""

from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.spec import LeaseOptions
from asynclock._inspect.survey import SharedState
from asynclock._keys import lock_key
from asynclock._primitives.base import Held
from asynclock._primitives.kinds import KINDS, PARTS, SCRIPTS, KeyRef, spec_of
from asynclock._primitives.lock import MUTEX
from asynclock._primitives.readwrite import READERS
from asynclock._primitives.shared.register import State, StateView
from asynclock.manager import engine_of


def test_no_two_parts_have_the_same_key() -> None:
    assert sorted(PARTS) == sorted(end for kind in KINDS for one in kind.parts for end in one.ends)
    assert Held(SCRIPTS[0], "at", numbered=3).ends == ("at0", "at1", "at2")


def test_every_script_of_a_primitive_is_declared() -> None:
    """Connections load the declared scripts, and an unknown script loses a wake-up."""
    folder = Path(asynclock.__file__).parent / "_primitives"
    sources = {path.read_text("utf-8") for path in folder.rglob("*.lua")}
    assert all(any(source in script.source for script in SCRIPTS) for source in sources)


async def test_every_primitive_can_be_tried() -> None:
    async with asynclock.connect("memory://") as locks:
        for kind in KINDS:
            assert callable(getattr(locks, kind.method or kind.name))
            await kind.trial(engine_of(locks), kind.name, LeaseOptions(5.0), 2.0)
            assert not locks.leases(), kind.name


def test_a_key_is_read_as_it_is_declared() -> None:
    for kind, part, end in ((*declared, end) for end, declared in PARTS.items()):
        keys = part.keys(lock_key("app:", "a"), end)
        found = KeyRef.parse("app:", keys[0].encode())
        assert found is not None
        assert (found.name, found.kind, found.part) == ("a", kind.name, part)
        if isinstance(part, Held):
            seen = Inspection("a", (), 1, found.kind, found.shown)
            assert spec_of("app:", seen).keys == keys
    assert KeyRef.parse("app:", b"app:a:#256") is None, "a semaphore has 256 slots"


def test_one_command_reads_many_keys_of_owners_but_not_of_readers() -> None:
    assert {end for end, (_, part) in PARTS.items() if isinstance(part, Held) != part.single} == {
        "readers"
    }


NOT_OURS = {
    "event": ("true", "", "clear "),
    "latch": ('[3, {"a": 0}]', '[3, {"a": -1}]', '[3, {"a": true}]', '[3, {"a": "1"}]', "[3]"),
    "once": ("[7]", '["7", "a"]', '[7, "a", "xml", 1]', '[7, "a", "bytes", "?"]', "[7, 8]"),
    "barrier": (
        '[2, 0, {"a": "soon"}, [], false, []]',
        '[2, 0, {"a": true}, [], false, []]',
        "[2, 0, {}, [7], false, []]",
        "[2, 0, {}, [], false, [7]]",
        "[2, 0, {}, [], 0, []]",
        '["2", 0, {}, [], false, []]',
        "[2, 0, {}, [], false]",
    ),
}
ALIKE = ("?", "null", "[1]", '["3", {}]', '[3, {"a": "b"}]', "[" * 200_000)
"""What only resembles a state: other programs, or people, wrote it."""
OURS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("event", "set", {"set": True}, "set"),
    ("event", "clear", {"set": False}, "cleared"),
    ("latch", "[3, {}]", {"count": 3, "remaining": 3}, "3 of 3 to go"),
    ("latch", '[3, {"a": 1}]', {"count": 3, "remaining": 2}, "2 of 3 to go"),
    ("latch", '[3, {"a": 2, "b": 2}]', {"count": 3, "remaining": 0}, "0 of 3 to go"),
    ("once", '[7, "a"]', {"done": False, "fence": 7}, "begun, fence 7"),
    ("once", '[7, "a", "json", null]', {"done": True, "fence": 7}, "done, fence 7"),
    ("once", '[7, "a", "bytes", "YQ=="]', {"done": True, "fence": 7}, "done, fence 7"),
    ("barrier", "[3, 7, {}, [], false, []]", {"waiting": 0}, "0 of 3 wait for round 8"),
    (
        "barrier",
        '[3, 7, {"a": 101, "b": 99, "c": 102, "d": 100}, [], false, []]',
        {"waiting": 2},
        "2 of 3 wait for round 8",
    ),
    (
        "barrier",
        "[3, 7, {}, [], true, []]",
        {"broken": True},
        "broken in round 8, until it is reset",
    ),
)


def shared_state(kind: str, value: str) -> SharedState:
    _, part = PARTS[kind]
    assert isinstance(part, State)
    return SharedState("x", part, (StateView("a:1", number=1, value=value, now=100),), 1)


@pytest.mark.parametrize(("kind", "value", "said", "words"), OURS)
def test_a_state_in_words(kind: str, value: str, said: dict[str, Any], words: str) -> None:
    found = shared_state(kind, value)
    usual = {"parties": 3, "round": 7, "waiting": 0, "broken": False} if kind == "barrier" else {}
    assert (found.state, found.summary) == ({**usual, **said}, words)


@pytest.mark.parametrize("kind", NOT_OURS)
def test_a_state_that_something_else_wrote(kind: str) -> None:
    for value in (*ALIKE, *NOT_OURS[kind]):
        found = shared_state(kind, value)
        assert (found.state, found.summary) == (None, "written by something else"), value[:40]


def views(part: Held, node: str, reply: Any) -> list[NodeView]:
    found = part.views(node, reply)
    assert isinstance(found, list)
    return found


def test_what_a_node_says_of_an_owner() -> None:
    (view,) = views(MUTEX, "a:1", (b"me", 2500, 7, 0))
    assert (view.node, view.owner, view.remaining, view.fence) == ("a:1", "me", 2.5, 7)
    assert not list(views(MUTEX, "a:1", (None, -2, 7, 0)))


def test_an_owner_that_something_else_wrote_is_shown() -> None:
    """A key without a ttl, an empty one, and bytes that are no text."""
    (view,) = views(MUTEX, "a:1", (b"me", -1, 0, 0))
    assert view.remaining is None
    (view,) = views(MUTEX, "a:1", (b"me", 0, 0, 0))
    assert view.remaining == 0, "less than a millisecond"
    (view,) = views(MUTEX, "a:1", (b"", 1000, 0, 0))
    assert view.owner == ""
    (view,) = views(MUTEX, "a:1", (b"\xff", 1000, 0, 0))
    assert view.owner == "\ufffd"


def test_what_a_node_says_of_readers() -> None:
    now = 1_700_000_000_000_000
    first, second = views(
        READERS, "a:1", ([b"one", b"1700000002500", b"\xff", b"1700000001000"], 7, now)
    )
    assert (first.owner, first.remaining, first.fence) == ("one", 2.5, 7)
    assert (second.owner, second.remaining) == ("\ufffd", 1.0)
    assert first.shared, "so its fence doesn't say since when it reads"


@pytest.mark.parametrize(
    ("value", "pttl", "text", "left"),
    [
        (b"set", 2500, "set", 2.5),
        (b"set", 0, "set", 0.0),
        (b"set", -1, "set", None),
        (None, -2, None, None),
        (b"", 2500, None, 2.5),  # a promise without a value, or a value that was taken back
        (b"\xff", 2500, "\ufffd", 2.5),
    ],
)
def test_what_a_node_says_of_a_state(
    value: bytes | None, pttl: int, text: str | None, left: float | None
) -> None:
    view = StateView.parse("a:1", [1, 9, value, pttl, 123])
    assert view == StateView("a:1", 9, text, left, 123)


def test_a_release_by_an_operator_names_what_it_reads_besides() -> None:
    """The queue, whose first waiter it wakes, and of a read-write lock the other side."""
    for kind, shown, wanted in (
        ("lock", "", ["p:a", "p:a:#fence", "p:a:#queue"]),
        ("fair", "", ["p:a:#fair", "p:a:#fair:#fence", "p:a:#waiters"]),
        ("election", "", ["p:a:#leader", "p:a:#leader:#fence", "p:a:#candidates"]),
        ("rwlock", "write", ["p:a:#write", "p:a:#write:#fence", "p:a:#phases", "p:a:#readers"]),
        ("rwlock", "read", ["p:a:#readers", "p:a:#write:#fence", "p:a:#phases", "p:a:#write"]),
        ("rwlock", "upgrade", ["p:a:#upgrade", "p:a:#upgrade:#fence", "p:a:#upgraders"]),
        ("semaphore", "several", ["p:a:#several", "p:a:#several:#fence", "p:a:#collectors"]),
    ):
        command = spec_of("p:", Inspection("a", (), 1, kind, shown)).release("me", 0.0, 0.0)
        assert [*command.keys] == wanted
        assert command.args == ("release", "me")


def test_all_keys_and_queues_of_a_name_are_known() -> None:
    kinds = {kind.name: kind for kind in KINDS}
    assert "p:a:#leader:#message" in kinds["election"].keys("p:a")
    keys = {"p:a", "p:a:#fence", "p:a:#message", "p:a:#queue", "p:a:#queue:#fence"}
    assert kinds["lock"].keys("p:a") == keys
    queues = {name: [[*one.keys] for one in kind.queues("p:a")] for name, kind in kinds.items()}
    assert queues["lock"] == [["p:a:#queue"]]
    assert queues["rwlock"] == [["p:a:#phases", "p:a:#write"], ["p:a:#upgraders"]]
    assert queues["semaphore"] == [["p:a:#slots"], ["p:a:#collectors"]]
    assert queues["latch"] == []
