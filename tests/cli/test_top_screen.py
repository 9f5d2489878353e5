"""What `asynclock top` shows on a screen, what its keys do, and when it asks the nodes again."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

import asynclock
from asynclock._engine.inspection import Inspection, NodeView
from asynclock._engine.reports import NodeHealth
from asynclock._inspect.health import trouble
from asynclock._inspect.monitor import Monitor, SeenLease, SeenNode
from asynclock._inspect.survey import Survey
from asynclock.cli._sources import Settings
from asynclock.cli._start import start
from asynclock.cli.look import top
from asynclock.testing import memory_node
from tests.waiting import in_virtual_time

NODES = ("memory://a", "memory://b", "memory://c")
REFUSED = "can't connect: Connection refused"
WIDE, TALL = 130, 14
"""A screen with room for three locks below the nodes."""


def lease(at: int) -> SeenLease:
    """A lock whose place in the order of each column is `at`."""
    views = tuple(NodeView(f"n{n}", f"{at:032x}:web-{at}:7:job", 4.0 + at, at) for n in range(3))
    return SeenLease(Inspection(f"job-{at}", views, 2), 10.0 - at, 12.0)


def seen(count: int = 9) -> Monitor:
    """A monitor that knows this many locks, and two nodes of which one is down."""
    monitor = Monitor()
    up = NodeHealth("redis://a", "up", "", 0.0, 0.0012, "7.2.0", "master")
    down = NodeHealth("redis://b", "down", REFUSED, 0.0, None, None, None)
    monitor.nodes = [SeenNode(up, "", "5", "9"), SeenNode(down, REFUSED, "", "")]
    monitor.trouble = trouble([up, down])
    monitor.counts.update({"acquired": 4, "ran out": 1})
    for at in range(1, count + 1):
        monitor.leases[f"job-{at}", "", ""] = lease(at)
    return monitor


def screen(*keys: str, width: int = WIDE, height: int = TALL, monitor: Any = None) -> list[str]:
    """Return the lines of a screen of this size after these keys."""
    view = top.TopScreen(seen() if monitor is None else monitor)
    view._console = Console(file=io.StringIO(), width=width, height=height)
    group: Any = view._render()
    for key in keys:
        view._key(key)
        group = view._render()
    return [str(line).rstrip() for line in group.renderables]


# ---- the screen ----------------------------------------------------------------------------------

HELP = "q quit   ↑↓ PgUp PgDn scroll   s sort   r reverse   / filter   Esc no filter   space pause"


def test_a_wide_screen_shows_everything_of_nodes_and_locks() -> None:
    assert screen("down", " ") == [
        "asynclock   9 held   seen since the start: 4 acquired, 0 released, 1 ran out",
        "1 of 2 nodes without a vote (1 down): nothing can be locked, and no lease can be renewed",
        "",
        "node       state  round trip  tracked keys  clients  version  cause",
        "redis://a  up     1.2 ms      5             9        7.2.0",
        f"redis://b  down{' ' * 47}{REFUSED}",
        f"redis://b: {REFUSED}",
        "",
        "name ▲  holder       seen for  remaining  fence  nodes  waiting  note",
        "job-2   web-2:7:job  4.0 s     6.0 s      2      3/3",
        "job-3   web-3:7:job  5.0 s     7.0 s      3      3/3",
        "job-4   web-4:7:job  6.0 s     8.0 s      4      3/3",
        "",
        f"2-4 of 9   paused   {HELP}",
    ]


def test_a_narrow_screen_shows_the_columns_that_matter_most_and_the_sorted_one() -> None:
    below = [
        "1-3 of 9   q quit   ↑↓ PgUp PgDn scroll   s sort   r reverse",
        "/ filter   Esc no filter   space pause",
    ]
    above = [
        "asynclock   9 held",
        "seen since the start: 4 acquired, 0 released, 1 ran out",
        "1 of 2 nodes without a vote (1 down): nothing can be locked,",
        "and no lease can be renewed",
        "",
        "node       state",
        "redis://a  up",
        "redis://b  down",
        f"redis://b: {REFUSED}",
        "",
    ]
    assert screen(width=60, height=17) == [
        *above,
        "name ▲  holder       remaining",
        "job-1   web-1:7:job  5.0 s",
        "job-2   web-2:7:job  6.0 s",
        "job-3   web-3:7:job  7.0 s",
        "",
        *below,
    ]
    lines = screen("s", "s", "r", width=60, height=17)
    assert lines[10:12] == [
        "name   holder       seen for ▼  remaining",
        "job-1  web-1:7:job  3.0 s       5.0 s",
    ]


@pytest.mark.parametrize(("width", "all_of_it"), [(69, False), (70, True)])
def test_from_which_width_a_screen_has_all_columns(width: int, all_of_it: bool) -> None:
    lines = screen(width=width, height=40)
    assert any("tracked" in line for line in lines) is all_of_it
    assert any("fence" in line for line in lines) is all_of_it


def test_a_node_that_is_up_and_says_nothing_is_explained_where_its_cells_are_cut() -> None:
    monitor = seen(0)
    monitor.nodes[0].cause = "NOPERM not you"
    wide, narrow = (screen(width=width, height=40, monitor=monitor) for width in (WIDE, 60))
    assert "redis://a: NOPERM not you" in narrow
    assert "redis://a: NOPERM not you" not in wide
    assert any(line.endswith("NOPERM not you") for line in wide), "in its own cell"


def test_without_trouble_and_locks_little_is_shown() -> None:
    lines = screen(width=200, monitor=Monitor())
    assert lines == [
        "asynclock   0 held   seen since the start: 0 acquired, 0 released, 0 ran out",
        "",
        "node  state  round trip  tracked keys  clients  version  cause",
        "",
        "name ▲  holder  seen for  remaining  fence  nodes  waiting  note",
        "",
        f"0-0 of 0   {HELP}",
    ]


def test_a_screen_without_room_shows_one_lock_all_the_same() -> None:
    lines = screen("page down", "page down", height=3)
    assert any(line.startswith("3-3 of 9   ") for line in lines)
    assert sum(line.startswith("job-") for line in lines) == 1


# ---- keys ----------------------------------------------------------------------------------------


def shown(*keys: str) -> tuple[str, list[str]]:
    """Return which rows the footer names, and the names of the locks on the screen."""
    lines = screen(*keys)
    (footer,) = (line for line in lines if " of 9   " in line or " of 1   " in line)
    return footer.partition("   ")[0], [line.split()[0] for line in lines if "job-" in line[:4]]


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        ((), 1),
        (("down",), 2),
        (("j", "j"), 3),
        (("up",), 1),
        (("up", "up", "down"), 2),
        (("down", "down", "up"), 2),
        (("j", "j", "k"), 2),
        (("page down",), 4),
        (("page down", "page down", "page up"), 4),
        (("page up",), 1),
        (("page down",) * 5, 7),
        (("end",), 7),
        (("G",), 7),
        (("end", "down", "up"), 6),
        (("end", "home"), 1),
        (("end", "g"), 1),
        (("down", "x", "?"), 2),
        (("end", "/", "j"), 1),
        (("end", "/", "\x1b"), 7),
    ],
)
def test_which_locks_a_key_scrolls_to(keys: tuple[str, ...], first: int) -> None:
    assert shown(*keys) == (
        f"{first}-{first + 2} of 9",
        [f"job-{at}" for at in range(first, first + 3)],
    )


def test_s_sorts_by_the_next_column_and_begins_again_after_the_last() -> None:
    heads = [next(line for line in screen(*["s"] * n) if "▲" in line) for n in range(9)]
    marked = [head.partition(" ▲")[0].rpartition("  ")[2] for head in heads]
    names = ["name", "holder", "seen for", "remaining", "fence", "nodes", "waiting", "note"]
    assert marked == [*names, "name"]


def test_r_turns_the_order_around_and_back() -> None:
    assert shown("r")[1] == ["job-9", "job-8", "job-7"]
    assert "name ▼" in "\n".join(screen("r"))
    assert shown("r", "r")[1] == ["job-1", "job-2", "job-3"]


def test_a_filter_is_typed_ended_replaced_and_dropped() -> None:
    three = (*"/b-3",)
    assert shown(*three) == ("1-1 of 1", ["job-3"])
    # Letters that are commands elsewhere belong to the filter; Enter ends it.
    for key in "qsr ":
        assert f"   filter: {key}▏" in "\n".join(screen("/", key))
    assert "   filter: b-3   q quit" in "\n".join(screen(*three, "\r"))
    assert "   filter: b-3▏   q quit" in "\n".join(screen(*three, "up", "\x01"))
    assert shown(*three, "\r", "r") == ("1-1 of 1", ["job-3"])
    assert shown(*three, "\x7f", "\b", "\x7f") == ("1-3 of 9", ["job-1", "job-2", "job-3"])
    assert shown(*three, "\r", *"/b-4") == ("1-1 of 1", ["job-4"])
    for keys in ((*three, "\x1b"), (*three, "\r", "\x1b")):
        assert "filter:" not in "\n".join(screen(*keys))
        assert shown(*keys) == ("1-3 of 9", ["job-1", "job-2", "job-3"])


def test_space_pauses_and_goes_on() -> None:
    assert "   paused   " in "\n".join(screen(" "))
    assert "paused" not in "\n".join(screen(" ", " "))


# ---- refreshing ----------------------------------------------------------------------------------


class Watched(Monitor):
    """A monitor that notes when it was asked to look, for a second each time."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[float] = []

    async def refresh(self, locks: Any) -> None:
        self.looks.append(now())
        await asyncio.sleep(1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_it_looks_again_after_each_interval_shows_each_key_at_once_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: asyncio.Queue[str] = asyncio.Queue()
    drawn: list[float] = []
    began = now()

    class Live:
        def __init__(self, **_: Any) -> None:
            pass

        def __enter__(self) -> Live:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def refresh(self) -> None:
            drawn.append(now() - began)

    @contextlib.contextmanager
    def pressed() -> Iterator[asyncio.Queue[str]]:
        yield keys

    monkeypatch.setattr(top, "Live", Live)
    monkeypatch.setattr(top, "pressed", pressed)
    monitor, locks = Watched(), object()
    view: Any = top.TopScreen(monitor)
    before = asyncio.all_tasks()
    running = asyncio.ensure_future(view.run(locks, 4.0))
    await asyncio.sleep(12.0)
    assert drawn == pytest.approx([1.0, 6.0, 11.0])
    keys.put_nowait("s")
    await asyncio.sleep(0.5)
    assert drawn[3:] == pytest.approx([12.0])
    keys.put_nowait("q")
    await running
    assert now() - began == pytest.approx(12.5)
    assert asyncio.all_tasks() == before, "nothing looks again"
    assert [at - began for at in monitor.looks] == pytest.approx([0.0, 5.0, 10.0])


@in_virtual_time
async def test_without_a_screen_it_prints_once_what_it_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with asynclock.connect(*NODES, label="web-1:7", restart_guard=False) as locks:
        assert await locks.lock("a").acquire()
        memory_node("b").freeze()
        memory_node("c").freeze()
        began = now()
        assert await top._top(Settings(NODES, {"restart_guard": False}), 1.0, live=False) == 69
        usual = now() - began
        out = capsys.readouterr().out
        began = now()
        settings = Settings(NODES, {"restart_guard": False, "node_timeout": 2.0})
        assert await top._top(settings, 1.0, live=False) == 69
        assert now() - began > usual + 0.9, "as long as it was asked to"
    lines = out.splitlines()
    assert lines[0].startswith("2 of 3 nodes without a vote (")
    assert [line.split()[0] for line in lines[1:5]] == ["node", *NODES]
    assert lines[5] == ""
    assert lines[6].split()[:2] == ["name", "holder"]
    assert lines[7].split()[:2] == ["a", "web-1:7"]
    assert lines[8] == "1 held, but only 1 of 3 nodes answered"


def test_once_prints_what_a_whole_monitor_knows(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = seen(2)
    monitor.trouble = None
    monitor.survey = Survey([])
    top.TopScreen(monitor).print()
    assert capsys.readouterr().out.splitlines() == [
        "node       state  round trip  tracked keys  clients  version  cause",
        "redis://a  up     1.2 ms      5             9        7.2.0",
        f"redis://b  down{' ' * 47}{REFUSED}",
        "",
        "name   holder       seen for  remaining  fence  nodes  waiting  note",
        "job-1  web-1:7:job  3.0 s     5.0 s      1      3/3",
        "job-2  web-2:7:job  4.0 s     6.0 s      2      3/3",
        "2 held",
    ]


class Standard(io.StringIO):
    """A standard file that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("words", "stdin", "stdout", "live"),
    [
        ((), True, True, True),
        ((), False, True, False),
        ((), True, False, False),
        (("--once",), True, True, False),
    ],
    ids=["a terminal", "no keys", "a pipe", "asked for once"],
)
def test_it_is_live_where_it_gets_keys_and_has_a_screen(
    words: tuple[str, ...],
    stdin: bool,
    stdout: bool,
    live: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []

    async def noted(settings: Settings, interval: float, *, live: bool) -> int:
        given.append((settings, interval, live))
        return 0

    monkeypatch.setattr(top, "_top", noted)
    monkeypatch.setattr(top, "log_to_nobody", lambda: given.append("no log"))
    monkeypatch.setattr(sys, "stdin", Standard(stdin))
    monkeypatch.setattr(sys, "stdout", Standard(stdout))
    options = ("--node", "memory://", "--prefix", "p:", "--node-timeout", "0.7")
    assert start(["top", *words, *options, "--interval", "2.5"]) == 0
    settings = Settings(("memory://",), {"prefix": "p:", "node_timeout": 0.7})
    assert given == ["no log", (settings, 2.5, live)]
