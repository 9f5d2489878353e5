"""The screen of `asynclock top`: its rows, their order, its keys, and when it asks again."""

import asyncio
import contextlib
import io
import os
import pty
import re
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from asynclock import _clock
from asynclock._engine.engine import NodeHealth
from asynclock._engine.inspection import Inspection, NodeView, Waiter
from asynclock._inspect.monitor import Monitor, SeenLease, SeenNode, trouble
from asynclock._inspect.survey import Survey
from asynclock.cli import _start, top
from asynclock.cli._settings import Settings
from tests.waiting import in_virtual_time, until

REFUSED = "can't connect: Connection refused"
SINCE = 1_700_000_000.0
FENCE = 1_700_000_000_000_000
"""A fence that began at that moment."""
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


def monitor_of(leases: list[SeenLease]) -> Monitor:
    monitor = Monitor()
    monitor.leases = {(one.found.name, "", str(at)): one for at, one in enumerate(leases)}
    return monitor


# ---- rows ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lease", "cells"),
    [
        (
            seen(kind="rwlock", part="write", waiting=QUEUE),
            "a [rwlock write]|web-1:7|over 10.0 s|4.0 s|9|3/3|2, first web-5:1||",
        ),
        # Without a quorum the time is what the leading node tells.
        (
            seen(left=(None, 3.0, None), holder=None, fence=0),
            "a|aaaaaaaa…|over 10.0 s|3.0 s||0/3|||no quorum, not on 2 of 3 nodes",
        ),
        (
            seen(fence=FENCE, waiting=(Waiter(f"{5:032x}:web-5:1", woken=False, since=SINCE - 5),)),
            f"a|web-1:7|4m 10s|4.0 s|{FENCE}|3/3|1 for 4m 15s, first web-5:1||",
        ),
        # With one, that of the quorum: a node may keep the key for longer than the lease holds.
        (seen(left=(9.0, 4.0, 2.0)), "a|web-1:7|over 10.0 s|4.0 s|9|3/3|||"),
    ],
)
def test_the_cells_of_a_lease(
    lease: SeenLease, cells: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_clock, "wall", lambda: SINCE + 250)
    assert "|".join(top.cells(lease)) == cells


@pytest.mark.parametrize(("trip", "shown"), [(0.0012, "1.2 ms"), (0.0, "0.0 ms"), (None, "")])
def test_the_cells_of_a_node(trip: float | None, shown: str) -> None:
    health = NodeHealth("n0", "down", "gone", 0.0, trip, None, None)
    node = SeenNode(health, "why", watched="5", clients="9")
    assert top.node_cells(node) == ("n0", "down", shown, "5", "9", "", "why")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("column", "leases"),
    [
        ("name", [seen("a"), seen("B"), seen("c")]),
        ("holder", [seen("1", "aa:7"), seen("2", "BB:7"), seen("3", "cc:7")]),
        ("held for", [seen("1", first=1.0), seen("2", first=2.0), seen("3", first=10.0)]),
        ("remaining", [seen("1", left=(9.0,) * 3), seen("2", left=(10.0,) * 3)]),
        ("fence", [seen("1", fence=9), seen("2", fence=10)]),
        ("nodes", [seen("1", left=(4.0, None, 4.0)), seen("2")]),
        ("waiting", [seen("1"), seen("2", waiting=QUEUE * 2), seen("3", waiting=QUEUE * 5)]),
        ("note", [seen("1"), seen("2", left=(4.0, None, 4.0))]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_are_sorted_as_numbers_and_texts_without_case(
    column: str, leases: list[SeenLease], reverse: bool
) -> None:
    wanted = [one.found.name for one in leases]
    at, given = top.COLUMNS.index(column), monitor_of([*leases[1:], leases[0]])
    found = [one.found.name for one in top.ordered(given, at, reverse, "")]
    assert found == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize("search", ["PAY", "pay", "Web-7", "SEMA", "pay [sem"])
def test_a_search_looks_at_titles_and_holders_without_case(search: str) -> None:
    leases = [seen("Pay", "web-7:1", kind="semaphore", part="0"), seen("other", "host:1")]
    found = top.ordered(monitor_of(leases), 0, False, search)
    assert [one.found.name for one in found] == ["Pay"]


# ---- the screen ----------------------------------------------------------------------------------
def monitored(count: int = 9) -> Monitor:
    """A monitor that knows locks whose place in each order is their number, and two nodes."""
    monitor = Monitor()
    up = NodeHealth("redis://a", "up", "", 0.0, 0.0012, "7.2.0", "master")
    down = NodeHealth("redis://b", "down", REFUSED, 0.0, None, None, None)
    monitor.nodes = [SeenNode(up, "", "5", "9"), SeenNode(down, REFUSED, "", "")]
    monitor.trouble = trouble([up, down])
    monitor.totals.update({"acquired": 4, "ran out": 1})
    for at in range(1, count + 1):
        lease = seen(
            f"job-{at}", f"web-{at}:7:job", (4.0 + at,) * 3, fence=at, first=10.0 - at, last=12.0
        )
        monitor.leases[f"job-{at}", "", ""] = lease
    return monitor


def lines_of(
    *keys: str, width: int = 130, height: int = 14, monitor: Monitor | None = None
) -> list[Any]:
    """Return the lines of a screen of this size after these keys; the usual one has three locks."""
    view = top.TopScreen(monitored() if monitor is None else monitor)
    view._console = Console(file=io.StringIO(), width=width, height=height)
    group: Any = view._render()
    for key in keys:
        view._key(key)
        group = view._render()
    return list(group.renderables)


def screen(*keys: str, **size: Any) -> list[str]:
    return [str(line).rstrip() for line in lines_of(*keys, **size)]


HELP = "q quit   ↑↓ PgUp PgDn scroll   s sort   r reverse   / filter   Esc no filter   space pause"
ABOVE = """\
asynclock   9 held   0 waiting
seen since the start: 4 acquired, 0 released, 1 ran out
1 of 2 nodes without a vote (1 down): nothing can be locked,
and no lease can be renewed

node       state
redis://a  up
redis://b  down
redis://b: can't connect: Connection refused
"""
BELOW = """
1-3 of 9   q quit   ↑↓ PgUp PgDn scroll   s sort   r reverse
/ filter   Esc no filter   space pause"""
SCREENS: dict[str, tuple[list[str], str]] = {
    "wide": (
        screen("down", " "),
        f"""\
asynclock   9 held   0 waiting   seen since the start: 4 acquired, 0 released, 1 ran out
1 of 2 nodes without a vote (1 down): nothing can be locked, and no lease can be renewed

node       state  round trip  tracked keys  clients  version  cause
redis://a  up     1.2 ms      5             9        7.2.0
redis://b  down                                               {REFUSED}
redis://b: {REFUSED}

name   holder       held for    remaining  fence  nodes  waiting ▼  message  note
job-2  web-2:7:job  over 4.0 s  6.0 s      2      3/3
job-3  web-3:7:job  over 5.0 s  7.0 s      3      3/3
job-4  web-4:7:job  over 6.0 s  8.0 s      4      3/3

2-4 of 9   paused   {HELP}""",
    ),
    "narrow": (
        screen(width=60, height=17),
        f"""\
{ABOVE}
name   holder       held for    waiting ▼
job-1  web-1:7:job  over 3.0 s
job-2  web-2:7:job  over 4.0 s
job-3  web-3:7:job  over 5.0 s
{BELOW}""",
    ),
    "narrow, with the sorted column": (
        screen(*"ssssss", "r", width=60, height=17),
        f"""\
{ABOVE}
name   holder       held for     remaining ▼
job-9  web-9:7:job  over 11.0 s  13.0 s
job-8  web-8:7:job  over 10.0 s  12.0 s
job-7  web-7:7:job  over 9.0 s   11.0 s
{BELOW}""",
    ),
    "without trouble and locks": (
        screen(width=200, monitor=Monitor()),
        f"""\
asynclock   0 held   0 waiting   seen since the start: 0 acquired, 0 released, 0 ran out

node  state  round trip  tracked keys  clients  version  cause

name  holder  held for  remaining  fence  nodes  waiting ▼  message  note

0-0 of 0   {HELP}""",
    ),
}


@pytest.mark.parametrize("size", SCREENS)
def test_a_screen_shows_the_columns_that_matter_most(size: str) -> None:
    lines, wanted = SCREENS[size]
    assert lines == wanted.splitlines()


@pytest.mark.parametrize(("width", "all_of_it"), [(69, False), (70, True)])
def test_from_which_width_a_screen_has_all_columns(width: int, all_of_it: bool) -> None:
    text = "\n".join(screen(width=width, height=40))
    assert ("tracked" in text, "fence" in text) == (all_of_it, all_of_it)


def test_a_node_that_is_up_and_says_nothing_is_explained_where_its_cells_are_cut() -> None:
    monitor = monitored(0)
    monitor.nodes[0].cause = "NOPERM not you"
    wide, narrow = (screen(width=width, height=40, monitor=monitor) for width in (130, 60))
    assert "redis://a: NOPERM not you" in narrow
    assert "redis://a: NOPERM not you" not in wide
    assert any(line.endswith("NOPERM not you") for line in wide), "in its own cell"
    monitor.survey.errors["redis://a"] = "NOPERM not you"
    assert " ~* resetchannels" in "".join(screen(width=400, height=40, monitor=monitor))


def test_a_screen_without_room_shows_one_lock_all_the_same() -> None:
    lines = screen("page down", "page down", height=3)
    assert any(line.startswith("3-3 of 9   ") for line in lines)
    assert sum(line.startswith("job-") for line in lines) == 1


def test_what_is_wrong_has_a_colour() -> None:
    monitor = monitored(1)
    monitor.leases["odd", "", ""] = seen("odd", left=(4.0, 4.0, None))
    styles = {str(line).split()[0]: line.style for line in lines_of(monitor=monitor) if str(line)}
    assert (styles["redis://a"], styles["job-1"], styles["odd"]) == ("", "", "yellow")
    down = [line.style for line in lines_of() if str(line).startswith("redis://b  ")]
    assert down == ["bold red"]


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
    names = [f"job-{at}" for at in range(first, first + 3)]
    assert shown(*keys) == (f"{first}-{first + 2} of 9", names)


def test_s_sorts_by_the_next_column_and_begins_again_after_the_last() -> None:
    heads = [re.findall(r"((?:\w+ )?\w+) ([▲▼])", "\n".join(screen(*["s"] * n))) for n in range(10)]
    names = ["name", "holder", "held for", "remaining", "fence", "nodes"]
    marked = [("message", "▲"), ("note", "▲"), *((name, "▲") for name in names)]
    assert heads == [[one] for one in (("waiting", "▼"), *marked, ("waiting", "▼"))]


def test_r_turns_the_order_around_and_back() -> None:
    assert shown(*"sssr")[1] == ["job-9", "job-8", "job-7"]
    assert "name ▼" in "\n".join(screen(*"sssr"))
    assert shown(*"sssrr")[1] == ["job-1", "job-2", "job-3"]


def test_names_that_are_waited_for_come_first_with_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "wall", lambda: SINCE + 250)
    queue = [Waiter(f"{n:032x}:web-{n}:1", woken=False, since=SINCE - n) for n in (5, 6)]
    monitor = monitored(2)
    monitor.leases["z", "", ""] = seen("z", waiting=tuple(queue))
    # A name that is waited for, and that nobody holds, counts, too.
    monitor.survey = Survey([], queues={("z", "lock"): tuple(queue), ("free", "lock"): QUEUE})
    lines = screen(monitor=monitor)
    assert lines[0].startswith("asynclock   3 held   4 waiting, longest 4m 16s   seen")
    assert [line.split()[0] for line in lines if " 3/3" in line] == ["z", "job-1", "job-2"]


THREE = (*"/b-3",)


@pytest.mark.parametrize(
    ("keys", "footer", "rows"),
    [
        (THREE, "filter: b-3▏", "3"),
        # Letters that are commands elsewhere belong to the filter; Enter ends it.
        *((("/", key), f"   filter: {key}▏", None) for key in "qsr "),
        ((*THREE, "\r"), "   filter: b-3   q quit", "3"),
        ((*THREE, "up", "\x01"), "   filter: b-3▏   q quit", "3"),
        ((*THREE, "\r", "r"), "   filter: b-3   q quit", "3"),
        ((*THREE, "\x7f", "\b", "\x7f"), "filter: ▏", "123"),
        ((*THREE, "\r", *"/b-4"), "filter: b-4▏", "4"),
        ((*THREE, "\x1b"), "1-3 of 9   q quit", "123"),
        ((*THREE, "\r", "\x1b"), "1-3 of 9   q quit", "123"),
        ((" ",), "   paused   ", "123"),
        ((" ", " "), "1-3 of 9   q quit", "123"),
    ],
)
def test_a_filter_is_typed_ended_replaced_and_dropped(
    keys: tuple[str, ...], footer: str, rows: str | None
) -> None:
    assert footer in "\n".join(screen(*keys))
    if rows:
        assert shown(*keys)[1] == [f"job-{at}" for at in rows]


def test_scrolling_sorts_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting 100,000 locks takes a second, which no key may wait for."""
    sorts: list[tuple[int, bool, str]] = []

    plain = top.ordered

    def ordered(monitor: Monitor, *how: Any) -> list[Any]:
        sorts.append(how)
        return list(plain(monitor, *how))

    monkeypatch.setattr(top, "ordered", ordered)
    view = top.TopScreen(Monitor())
    for key in ("down", "end", "s", "up", "r", "page down", "/", "x", "\r", "home"):
        view._key(key)
        view._render()
    wanted = [(6, True, ""), (7, False, ""), (7, True, ""), (7, True, "x")]
    assert sorts == wanted
    view.monitor.leases = {}
    view._render()
    assert sorts == [*wanted, wanted[-1]]


# ---- keys of a terminal --------------------------------------------------------------------------
KEYS = {
    **{f"\x1b{form}A": "up" for form in "[O"},
    **{f"\x1b{form}B": "down" for form in "[O"},
    **{f"\x1b{form}": "home" for form in ("[H", "OH", "[1~")},
    **{f"\x1b{form}": "end" for form in ("[F", "OF", "[4~")},
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}


async def test_keys_and_the_end_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, read = [b""], os.read

    def noted(fd: int, size: int) -> bytes:
        seen.append(read(fd, size))
        return seen[-1]

    monkeypatch.setattr(os, "read", noted)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(stdin)
        with top.pressed() as keys:

            async def after(typed: str) -> str:
                os.write(ours, typed.encode())
                return await asyncio.wait_for(keys.get(), 30)

            assert await after("s") == "s"
            for typed, key in KEYS.items():
                assert await after(typed) == key
            assert await after("\x1b") == "\x1b", "Escape itself"
            for unknown in (b"\x1b[Z", b"\x1bx"):  # Shift-Tab, Alt-X
                os.write(ours, unknown)
                await until(lambda: unknown in seen, "it is read")  # noqa: B023
            assert await after("r") == "r", "no letters of a sequence"
        assert termios.tcgetattr(stdin) == before
        with top.pressed() as keys:
            os.close(ours)
            assert await asyncio.wait_for(keys.get(), 30) == "q"
            await asyncio.sleep(0.01)
            assert keys.empty(), "it says so once"
            monkeypatch.setattr(termios, "tcsetattr", lambda *_: None)  # it has no mode any more


# ---- refreshing ----------------------------------------------------------------------------------
@in_virtual_time
async def test_it_looks_again_after_each_interval_shows_each_key_at_once_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A paused view asks no node."""
    loop, keys = asyncio.get_running_loop(), asyncio.Queue[str]()
    began, looks, drawn = loop.time(), list[float](), list[float]()

    class Watched(Monitor):
        async def refresh(self, locks: Any) -> None:
            looks.append(loop.time() - began)
            await asyncio.sleep(1.0)

    class Live(contextlib.nullcontext[Any]):
        def __init__(self, **_: Any) -> None:
            super().__init__(self)

        def refresh(self) -> None:
            drawn.append(loop.time() - began)

    @contextlib.contextmanager
    def pressed() -> Iterator[asyncio.Queue[str]]:
        yield keys

    monkeypatch.setattr(top, "Live", Live)
    monkeypatch.setattr(top, "pressed", pressed)
    view: Any = top.TopScreen(Watched())
    before = asyncio.all_tasks()
    running = asyncio.ensure_future(view.run(object(), 4.0))
    await asyncio.sleep(12.0)
    assert drawn == pytest.approx([1.0, 6.0, 11.0])
    keys.put_nowait(" ")
    await asyncio.sleep(20.5)
    assert drawn[3:] == pytest.approx([12.0])
    keys.put_nowait("q")
    await running
    assert loop.time() - began == pytest.approx(32.5)
    assert asyncio.all_tasks() == before, "nothing looks again"
    assert looks == pytest.approx([0.0, 5.0, 10.0])


class Standard(io.StringIO):
    """A standard file that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal  # type: ignore[method-assign]


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
    words: tuple[str, ...], stdin: bool, stdout: bool, live: bool, monkeypatch: pytest.MonkeyPatch
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
    assert _start(["top", *words, *options, "--interval", "2.5"]) == 0
    settings = Settings(("memory://",), {"prefix": "p:", "node_timeout": 0.7})
    assert given == ["no log", (settings, 2.5, live)]
