"""`asynclock inspect` on nodes in memory: what it says, and with which status it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import asynclock
from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.reports import NodeHealth
from asynclock._engine.waiters import Waiter
from asynclock._inspect.states import SharedState
from asynclock._inspect.survey import Survey
from asynclock._primitives.kind import StateView
from asynclock.cli._sources import Settings
from asynclock.cli._status import Status
from asynclock.cli.look import held
from asynclock.cli.look.held import InspectArguments, parse
from asynclock.errors import ConfigurationError
from asynclock.testing import memory_node, run_virtual

NODES = ("memory://a", "memory://b", "memory://c")
QUICK: dict[str, Any] = {"restart_guard": False, "ttl": 60.0, "max_ttl": 60.0}
Locks = asynclock.LockManager
Scene = Callable[[Locks], Coroutine[Any, Any, None]]


def look(
    scene: Scene, name: str | None, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[int, list[float]]:
    """Let `scene` happen on three nodes, then inspect; return the status and the seconds."""
    took: list[float] = []

    async def found(given: Settings, wanted: str | None) -> Survey:
        async with asynclock.connect(*NODES, **QUICK, label="web-1:77:job") as locks:
            await scene(locks)
            began = asyncio.get_running_loop().time()
            answer = await find(given, wanted)
            took.append(asyncio.get_running_loop().time() - began)
            return answer

    def load(*_: Any, **__: Any) -> Settings:
        return Settings(NODES, {**QUICK, **settings})

    find = held.find
    monkeypatch.setattr(held, "find", found)
    monkeypatch.setattr(held, "load", load)
    monkeypatch.setattr(held, "log_to_nobody", lambda: None)
    monkeypatch.setattr(asyncio, "run", run_virtual)
    wanted = InspectArguments(name, all=name is None, json=settings.pop("json", False))
    return held.show(wanted), took


async def two_locks(locks: Locks) -> None:
    assert await locks.lock("a").acquire()
    assert await locks.lock("b").acquire()


async def one_silent(locks: Locks) -> None:
    await two_locks(locks)
    memory_node("c").freeze()


async def two_silent(locks: Locks) -> None:
    await one_silent(locks)
    memory_node("b").freeze()


@pytest.mark.parametrize("name", ["a", "free", None])
@pytest.mark.parametrize(
    ("scene", "status", "silent"),
    [
        (two_locks, Status.OK, []),
        (one_silent, Status.OK, ["memory://c"]),
        (two_silent, Status.UNREACHABLE, ["memory://b", "memory://c"]),
    ],
)
def test_the_status_says_whether_a_quorum_answered_and_each_silent_node_is_named(
    name: str | None,
    scene: Scene,
    status: int,
    silent: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended, (took,) = look(scene, name, monkeypatch)
    assert ended == status
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in said] == silent
    # People can wait longer than locks, and not for ever.
    assert took <= 4.5


@pytest.mark.parametrize("name", ["a", None])
def test_it_waits_as_long_for_a_node_as_it_was_asked_to(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (usual,) = look(one_silent, name, monkeypatch)
    monkeypatch.undo()
    _, (longer,) = look(one_silent, name, monkeypatch, node_timeout=2.0)
    assert longer - usual >= 0.9


async def young(locks: Locks) -> None:
    for node in NODES[1:]:
        memory_node(node).born_ago(1.0)


@pytest.mark.parametrize("name", ["x", None])
def test_nodes_that_answer_and_have_no_vote_are_named(
    name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They restarted, and may have forgotten what they granted."""
    ended, _ = look(young, name, monkeypatch, restart_guard=True)
    assert ended == Status.OK
    shown = capsys.readouterr()
    assert shown.err.count("answers, but has no vote: ") == 2
    if name is not None:
        assert "no owner is known, but 2 of 3 nodes have no vote" in shown.out
        assert shown.out.count("free, no vote: ") == 2


def test_which_nodes_have_no_vote() -> None:
    """A node that does not answer is named for that alone."""

    class Health:
        def nodes(self) -> list[NodeHealth]:
            states = ("up", "quarantined", "rejected", "down", "stalled", "connecting", "rejected")
            return [
                NodeHealth(f"n{at}", state, f"why {at}", 0.0, None, None, None)
                for at, state in enumerate(states)
            ]

    locks: Any = Health()
    found = held.with_missing_votes(Survey([], {"n6": "no answer"}), locks)
    assert found.without_vote == {"n1": "why 1", "n2": "why 2"}


async def queue(locks: Locks) -> None:
    """Two wait for a lock, and the first has been told that it is its turn."""
    assert await locks.lock("a").acquire()
    for node in NODES:
        for number, label, value in ((3, "web-2:8", "go"), (4, "web-3:9:job", "1")):
            ticket = f"{number:032x}:{label}"
            await memory_node(node).command("ZADD", "asynclock:a:#queue", number, ticket)
            key = f"asynclock:a:#queue:#{ticket}"
            await memory_node(node).command("SET", key, value, "PX", 600_000)


async def left(locks: Locks) -> None:
    """Two wait for a lock that nobody has at this moment."""
    await queue(locks)
    for node in NODES:
        await memory_node(node).command("DEL", "asynclock:a")


@pytest.mark.parametrize(("scene", "begin"), [(queue, "a: held by process 77"), (left, "a: free")])
def test_who_waits_and_who_is_told_already(
    scene: Scene, begin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert look(scene, "a", monkeypatch)[0] == Status.OK
    out = capsys.readouterr().out
    assert out.startswith(begin)
    lines = out.partition("2 waiting; the first goes next\n")[2].splitlines()
    assert [line.split() for line in lines] == [
        ["place", "waiter", "note"],
        ["1", "web-2:8", "woken"],
        ["2", "web-3:9:job"],
    ]
    monkeypatch.undo()
    look(scene, "a", monkeypatch, json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(one["label"], one["woken"]) for one in found["waiting"]] == [
        ("web-2:8", True),
        ("web-3:9:job", False),
    ]
    monkeypatch.undo()
    look(scene, None, monkeypatch, json=True)
    assert json.loads(capsys.readouterr().out)["waiting"] == {"a": found["waiting"]}


async def many_kinds(locks: Locks) -> None:
    assert await locks.lock("a").acquire()
    assert await locks.semaphore("pool", 2).acquire()
    assert await locks.semaphore("pool", 2).acquire()
    await locks.event("bell\x1b").set()
    await memory_node("b").command("DEL", "asynclock:bell\x1b:#event")


def test_a_list_of_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    look(many_kinds, None, monkeypatch)
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == "3 held, 1 shared"
    rows = [line.split("  ") for line in lines[1:]]
    assert [row[0] for row in rows] == [
        "a",
        "pool [semaphore 0]",
        "pool [semaphore 1]",
        "bell\\x1b [event]",
    ]
    since = "2023-11-1"  # of the nodes' clocks in virtual time
    assert all("web-1:77:job" in line and since in line for line in lines[1:4])
    assert all(" 60.0 s " in line or " 59.9 s " in line for line in lines[1:4])
    assert lines[4].split()[-2:] == ["2/3", "set"]


async def endless(locks: Locks) -> None:
    """Two wait for a lock that one node keeps without an end."""
    await queue(locks)
    node = memory_node("b")
    await node.command("SET", "asynclock:a", await node.command("GET", "asynclock:a"))


def test_a_list_has_all_that_is_to_be_said_of_a_lock(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look(endless, None, monkeypatch)
    row = capsys.readouterr().out.splitlines()[1]
    assert row.endswith("a key without ttl, 2 waiting")


def test_each_part_of_a_name_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look(many_kinds, "pool", monkeypatch)
    out = capsys.readouterr().out
    assert [f"pool [semaphore {slot}]: held by process 77 on web-1, job" in out for slot in (0, 1)]
    assert "free" not in out
    monkeypatch.undo()
    look(many_kinds, "pool", monkeypatch, json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], [one["part"] for one in found["parts"]]) == ("pool", ["0", "1"])


def test_a_state_and_the_node_that_is_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look(many_kinds, "bell\x1b", monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bell\\x1b [event]: set"
    assert [line.split()[0] for line in lines[2:]] == list(NODES)
    assert ["behind" in line for line in lines[2:]] == [False, True, False]
    assert len(lines) == 5, "an event is no free lock"


# ---- what is said about one lock -----------------------------------------------------------------


def view(node: str, owner: str | None, left: float | None = 4.0, **more: Any) -> NodeView:
    return NodeView(node, owner, left if owner else None, 1_700_000_000_000_000, **more)


def verdict(*owners: str | None, without_vote: int = 0, label: str = "web-1:77:job\x1b") -> str:
    views = [
        view(
            f"n{at}",
            f"{owner * 32}:{label}" if owner else None,
            error="silent" if owner == "" else None,
        )
        for at, owner in enumerate(owners)
    ]
    found = Inspection("x", tuple(views), len(views) // 2 + 1)
    return held._verdict(found, {f"n{at}": "young" for at in range(without_vote)})


def test_a_verdict_in_one_sentence() -> None:
    held_by = "held by process 77 on web-1, job\x1b; since 20"
    assert verdict("a", "a", "a").startswith(held_by)
    assert verdict("a", "a", "a").endswith("; fence 1700000000000000; 4.0 s left without renewal")
    assert verdict("a", "a", None).endswith("renewal; not on 1 of 3 nodes")
    assert verdict("a", "a", "a", label="web").startswith("held by web; since")
    assert verdict("a", "a", "a", label="web:1").startswith("held by process 1 on web; since")
    assert verdict(None, None, None) == "free"
    assert verdict(None, None, None, without_vote=1) == "free"
    assert verdict(None, None, None, without_vote=2).startswith("no owner is known, but 2 of 3")
    assert verdict(None, "", "") == "unknown: 1 of 3 nodes answered"
    assert verdict(None, None, "a") == "nobody has a quorum: no quorum, not on 2 of 3 nodes"


def test_a_table_of_what_each_node_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Of an owner its id alone, which `release --owner` takes; of a free node no seconds."""
    views = (
        view("n1", f"{'a' * 32}:web\x1b"),
        view("n2", None),
        NodeView("n3", None, None, 0, "no answer"),
        view("n4", f"{'a' * 32}:web\x1b"),
        view("n5", f"{'a' * 32}:web\x1b"),
    )
    held._show_lease(Inspection("x\x1b", views, 3), {"n2": "young", "n4": "old"})
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("x\\x1b: held by web\\x1b; since")
    owner = ["a" * 32, "web\\x1b", "4.0", "s", "1700000000000000"]
    assert [line.split() for line in lines] == [
        ["n1", *owner],
        ["n2", "1700000000000000", "free,", "no", "vote:", "young"],
        ["n3", "no", "answer"],
        ["n4", *owner, "no", "vote:", "old"],
        ["n5", *owner],
    ]


def test_a_lease_that_ends_in_this_moment_has_no_seconds_left() -> None:
    views = tuple(view(f"n{at}", "a" * 32, 0.0) for at in range(3))
    found = held._verdict(Inspection("x", views, 2), {})
    assert found.endswith("; 0.0 s left without renewal")


def test_a_table_of_a_long_queue_shows_its_first_twenty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waiting = [Waiter(f"{at:032x}:web-{at}", woken=False) for at in range(1, 24)]
    held._show_queue(waiting[:20])
    assert "more, which --json lists" not in capsys.readouterr().out
    held._show_queue(waiting)
    _, _, *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [[f"{at}", f"web-{at}"] for at in range(1, 21)]
    assert last == "and 3 more, which --json lists"


def test_a_node_that_could_not_tell_its_state_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is not behind: nobody knows what it keeps."""

    class Part:
        suffix = "event"

        def describe(self, value: str, now: int) -> tuple[dict[str, Any], str]:
            return {}, "set"

    part: Any = Part()
    views = (
        StateView("n1", 2, "1", 4.0),
        StateView("n2", 2, "1", 4.0),
        StateView("n3", error="no answer"),
    )
    held._show_state(SharedState("bell", part, views, 2))
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["n1", "1", "4.0", "s"],
        ["n2", "1", "4.0", "s"],
        ["n3", "no", "answer"],
    ]


# ---- arguments -----------------------------------------------------------------------------------


def test_a_name_or_all_but_not_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in (InspectArguments(), InspectArguments("x", all=True)):
        with pytest.raises(ConfigurationError, match="name a lock, or give --all"):
            held.show(wanted)
    assert parse(["x", "y"]) is None, "typer explains it"


def test_its_options_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def find(settings: Settings, name: str | None) -> Survey:
        seen.append((settings, name))
        return Survey([Inspection("x", (view("n", None),), 1)])

    monkeypatch.setattr(held, "find", find)
    monkeypatch.setattr(held, "log_to_nobody", lambda: seen.append("no log"))
    wanted = parse(["x", "--node", "memory://", "--prefix", "p:", "--node-timeout", "0.7"])
    assert wanted is not None
    assert held.show(wanted) == Status.OK
    options = {"prefix": "p:", "node_timeout": 0.7}
    assert seen == ["no log", (Settings(("memory://",), options), "x")]
