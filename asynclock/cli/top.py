"""`asynclock top`: shows held locks and the health of the nodes, continuously."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from .. import _clock
from .._engine.inspection import Waiter
from .._inspect.monitor import Monitor, SeenLease, SeenNode, lacking_rights
from .._inspect.survey import Survey
from .._inspect.views import number, title
from ..manager import LockManager
from . import _app
from ._output import (
    SPARE,
    Status,
    ago,
    clean,
    console,
    lines_of_table,
    log_to_nobody,
    print_table,
    print_text,
    wrapped,
)
from ._settings import Settings, load
from .inspect import lease_cells, say_causes

SORTED_BY: Mapping[str, Callable[[SeenLease], Any]] = {
    "name": lambda lease: title(lease.found).casefold(),
    "holder": lambda lease: (lease.holder or "").casefold(),
    "held for": lambda lease: (
        lease.found.since or _clock.wall() - (lease.last_seen - lease.first_seen)
    ),
    "remaining": lambda lease: lease.found.remaining or 0.0,
    "fence": lambda lease: lease.found.fence,
    "nodes": lambda lease: sum(view.owner is not None for view in lease.found.nodes),
    "waiting": lambda lease: len(lease.found.waiting),
    "message": lambda lease: (lease.found.message or "").casefold(),
    "note": lambda lease: lease.agreement.note.casefold(),
}
"""Each column of a lock, with what it is sorted by: to make all cells would take long."""
COLUMNS = tuple(SORTED_BY)
NODE_COLUMNS = ("node", "state", "round trip", "tracked keys", "clients", "version", "cause")
WAITING = COLUMNS.index("waiting")
SPARE_OF_NODES = ("version", "tracked keys", "clients", "round trip")


def cells(lease: SeenLease) -> tuple[str, ...]:
    """Return a lease as text, in the order of COLUMNS."""
    found, agreement = lease.found, lease.agreement
    left = found.remaining
    if left is None and agreement.leading is not None:
        left = agreement.leading.remaining
    seen = lease.last_seen - lease.first_seen
    *row, message, note = lease_cells(found, agreement, left, seen)
    return (*row, _waiting(found.waiting), message, note)


def ordered(monitor: Monitor, column: int, reverse: bool, search: str) -> Sequence[SeenLease]:
    """Return the leases whose name or holder contains `search`, sorted by a column."""
    text = search.casefold()
    rows: Iterable[SeenLease] = monitor.leases.values()
    if text:
        rows = [row for row in rows if text in f"{title(row.found)}\0{row.holder or ''}".casefold()]
    return sorted(rows, key=SORTED_BY[COLUMNS[column]], reverse=reverse)


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


def node_cells(node: SeenNode) -> tuple[str, ...]:
    """Return a node as text, in the order of NODE_COLUMNS."""
    health = node.health
    trip = "" if health.round_trip is None else f"{health.round_trip * 1000:.1f} ms"
    version = health.version or ""
    return health.node, health.state, trip, node.watched, node.clients, version, node.cause


# ---- Keys of the terminal, read one at a time, without waiting for Enter -------------------------


SEQUENCES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~"), "end"),
}
"""The sequences that terminals send for the arrow and page keys."""


@contextlib.contextmanager
def pressed() -> Iterator[asyncio.Queue[str]]:
    """Yield a queue of the pressed keys, and restore the terminal's mode afterwards."""
    fd = sys.stdin.fileno()
    keys: asyncio.Queue[str] = asyncio.Queue()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(fd, 1024).decode("utf-8", "replace")
        if not data:  # the terminal is gone
            loop.remove_reader(fd)
            keys.put_nowait("q")
        # An arrow or function key sends a sequence, which must not count as Escape and letters.
        elif data.startswith("\x1b") and len(data) > 1:
            if data in SEQUENCES:
                keys.put_nowait(SEQUENCES[data])
            return
        for key in data:
            keys.put_nowait(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield keys
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


# ---- The command ---------------------------------------------------------------------------------


HELP = (
    *("q quit", "↑↓ PgUp PgDn scroll", "s sort", "r reverse"),
    *("/ filter", "Esc no filter", "space pause"),
)
WIDE = 70
"""Minimum width of a terminal, in characters, for all columns."""
FEW = (0, 1, 2)
"""The columns of a lock that a narrower terminal shows."""


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print once; the default without a terminal.")
    ] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Between two refreshes.")
    ] = 1.0,
    node: _app.NodeOption = None,
    config: _app.ConfigOption = None,
    prefix: _app.PrefixOption = None,
    node_timeout: _app.LongNodeTimeoutOption = None,
    max_ttl: _app.MaxTtlOption = None,
    restart_guard: _app.RestartGuardOption = None,
    acks: _app.AcksOption = None,
) -> int:
    """Watch held locks, locks that ran out, and the health of the nodes.

    Keys: q quits, arrows, PgUp, PgDn, Home and End scroll, s sorts by the next column, r reverses,
    / filters by name or holder (Enter ends the filter, Esc drops it), space pauses. Names with the
    most waiters come first.

    "tracked keys" and "clients" are each server's own counts: keys that clients watch (a waiter
    watches some), and connections, with those of this command. "ran out" counts locks whose holder
    neither renewed nor released them: the holder died, or lost them.

    Give the same prefix, max_ttl, restart_guard and acks as your services, or their file: votes are
    counted as the services count them. The exit status is 69 if too few nodes answered at the last
    look.

    Examples:

        asynclock top
        asynclock top --once | grep payments
    """
    settings = load(node, config, prefix, node_timeout, max_ttl, restart_guard, acks)
    log_to_nobody()
    live = not once and sys.stdin.isatty() and sys.stdout.isatty()
    return asyncio.run(_top(settings, interval, live=live))


async def _top(settings: Settings, interval: float, *, live: bool) -> int:
    async with settings.look("top") as locks:
        screen = TopScreen(Monitor(), settings.prefix)
        if live:
            await screen.run(locks, interval)
        else:
            await screen.monitor.refresh(locks)
            screen.print()
        found = screen.monitor.survey
        say_causes(found.errors, settings.prefix)
        return Status.UNREACHABLE if found.shortfall(len(locks.nodes())) else Status.OK


class TopScreen:
    """Shows the monitor's data on the screen: sorted, filtered, scrolled, paused."""

    def __init__(self, monitor: Monitor, prefix: str = "") -> None:
        self.monitor = monitor
        self._prefix = prefix
        self._column = WAITING
        self._reverse = True
        self._filter = ""
        self._typing = False
        self._paused = False
        self._first = 0
        """Index of the first row that is shown."""
        self._room = 1
        """Number of rows that fit on the screen."""
        self._rows: Sequence[SeenLease] = ()
        self._leases: object = None
        self._order = (0, False, "")
        """What the rows were made of, and their order."""
        self._ended = asyncio.Event()
        self._console = console()

    def print(self) -> None:
        """Print everything once, as text."""
        if self.monitor.trouble is not None:
            print_text(self.monitor.trouble.text)
        print_table(NODE_COLUMNS, list(map(node_cells, self.monitor.nodes)), SPARE_OF_NODES)
        print()
        rows = ordered(self.monitor, self._column, self._reverse, "")
        print_table(COLUMNS, list(map(cells, rows)), SPARE)
        found = self.monitor.survey
        short = found.shortfall(len(self.monitor.nodes))
        print_text(f"{self.monitor.held} held, {waited(found)}{short}")

    async def run(self, locks: LockManager, interval: float) -> None:
        """Show everything live until the user presses `q`."""
        with (
            pressed() as keys,
            Live(
                console=self._console, screen=True, auto_refresh=False, get_renderable=self._render
            ) as live,
        ):
            refreshing = asyncio.ensure_future(self._keep_refreshing(locks, interval, live))
            # It ends with an error only, such as that the fleet uses other nodes by now.
            refreshing.add_done_callback(lambda _: self._ended.set())
            refreshing.add_done_callback(lambda _: keys.put_nowait(""))
            try:
                while not self._ended.is_set():
                    self._key(await keys.get())
                    live.refresh()
            finally:
                refreshing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await refreshing

    async def _keep_refreshing(self, locks: LockManager, interval: float, live: Live) -> None:
        while True:
            if not self._paused:
                await self.monitor.refresh(locks)
                live.refresh()
            await asyncio.sleep(interval)

    def _key(self, key: str) -> None:
        if key == "\x1b":
            self._typing, self._filter = False, ""
        elif self._typing and len(key) == 1:
            if key in "\r\n":
                self._typing = False
            elif key in "\x7f\b":
                self._filter = self._filter[:-1]
            elif key.isprintable():
                self._filter += key
                self._first = 0
        elif key == "q":
            self._ended.set()
        elif key == "s":
            self._column = (self._column + 1) % len(COLUMNS)
            self._reverse = self._column == WAITING
        elif key == "r":
            self._reverse = not self._reverse
        elif key == "/":
            self._typing, self._filter = True, ""
        elif key == " ":
            self._paused = not self._paused
        else:
            self._first = max(0, self._first + self._step(key))

    def _step(self, key: str) -> int:
        whole = len(self.monitor.leases)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self._room}
        steps |= {"page down": self._room, "home": -whole, "g": -whole, "end": whole, "G": whole}
        return steps.get(key, 0)

    # we cut each line ourselves, so that the heights are known

    def _render(self) -> RenderableType:
        width, height = self._console.size
        rows = self._ordered()
        above = [*self._headline(width), *self._nodes(width)]
        rest = height - len(above) - len(self._footer(len(rows), width)) - 1
        self._room = max(1, rest)
        self._first = max(0, min(self._first, len(rows) - self._room))
        return Group(*above, *self._locks(rows, width), *self._footer(len(rows), width))

    def _ordered(self) -> Sequence[SeenLease]:
        """Sort only new leases or in a new order: with 100,000 leases that delays each key."""
        leases, order = self.monitor.leases, (self._column, self._reverse, self._filter)
        if leases is not self._leases or order != self._order:
            self._leases, self._order = leases, order
            self._rows = ordered(self.monitor, *order)
        return self._rows

    def _headline(self, width: int) -> list[Text]:
        totals = self.monitor.totals
        words = ["asynclock", f"{self.monitor.held} held", waited(self.monitor.survey)]
        seen = [f"{totals[word]} {word}" for word in ("acquired", "released", "ran out")]
        words.append(f"seen since the start: {', '.join(seen)}")
        lines = wrapped(words, width, "bold")
        trouble = self.monitor.trouble
        if trouble is not None:
            style = {"red": "bold white on red", "amber": "black on yellow"}[trouble.level]
            lines += wrapped(trouble.text.split(" "), width, style, " ")
        return [*lines, Text()]

    def _nodes(self, width: int) -> list[Text]:
        names = NODE_COLUMNS if width >= WIDE else NODE_COLUMNS[:2]
        rows = [node_cells(node)[: len(names)] for node in self.monitor.nodes]
        styles = ["" if node.health.state == "up" else "bold red" for node in self.monitor.nodes]
        lines = self._lines(names, rows, styles, width, SPARE_OF_NODES)
        for node in self.monitor.nodes:
            if node.cause and (width < WIDE or node.health.state != "up"):
                words = f"{node.health.node}: {node.cause}".split(" ")
                lines += wrapped(words, width, "red", " ")
        for sentence in lacking_rights(self.monitor.survey.errors, self._prefix):
            lines += wrapped(sentence.split(" "), width, "bold white on red", " ")
        return [*lines, Text()]

    def _locks(self, rows: Sequence[SeenLease], width: int) -> list[Text]:
        shown = range(len(COLUMNS)) if width >= WIDE else sorted({*FEW, self._column})
        arrow = "▼" if self._reverse else "▲"
        titles = [COLUMNS[n] + (f" {arrow}" if n == self._column else "") for n in shown]
        texts = [cells(row) for row in rows[self._first : self._first + self._room]]
        styles = ["yellow" if row[-1] else "" for row in texts]
        return self._lines(titles, [[row[n] for n in shown] for row in texts], styles, width, SPARE)

    def _lines(
        self,
        titles: Sequence[str],
        rows: Sequence[Sequence[str]],
        styles: Sequence[str],
        width: int,
        spare: Sequence[str],
    ) -> list[Text]:
        head, *lines = lines_of_table(titles, rows, width, spare)
        return [
            Text(head, "bold", no_wrap=True),
            *(Text(line, style, no_wrap=True) for line, style in zip(lines, styles, strict=True)),
        ]

    def _footer(self, rows: int, width: int) -> list[Text]:
        last = min(self._first + self._room, rows)
        words = [f"{self._first + 1 if rows else 0}-{last} of {rows}"]
        if self._typing or self._filter:
            words.append(f"filter: {clean(self._filter)}{'▏' if self._typing else ''}")
        if self._paused:
            words.append("paused")
        return [Text(), *wrapped([*words, *HELP], width, "dim")]
