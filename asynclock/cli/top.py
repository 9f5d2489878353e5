"""`asynclock top`: what is held right now, and how the nodes are."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..manager import LockManager
from ._board import COLUMNS, NODE_COLUMNS, Board
from ._keys import pressed
from ._options import ConfigOption, NodeOption, NodeTimeoutOption, PrefixOption, Settings, load
from ._output import cell, clean, console, print_table
from .inspect import NODE_TIMEOUT

HELP = "q quit   s sort   r reverse   / filter   Esc no filter   space pause"
_GOOD = frozenset({"up"})


def add_to(app: typer.Typer) -> None:
    """Make the command known."""
    app.command("top")(top)


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; the way without a terminal.")
    ] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3600, help="Between two looks.")
    ] = 1.0,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: NodeTimeoutOption = None,
) -> int:
    """Watch what is held, what ran out, and how the nodes are.

    Keys: q quits, s sorts by the next column, r reverses, / filters by name or holder (Enter ends
    the filter, Esc drops it), space pauses.

    "waited for" is the number of names that somebody waits for, as each server counts it. "ran
    out" counts locks whose holder neither renewed nor released them: it died, or lost them.

    Examples:

        asynclock top
        asynclock top --once | grep payments
    """
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout)
    live = not once and sys.stdin.isatty() and sys.stdout.isatty()
    return asyncio.run(_top(settings, interval, live=live))


async def _top(settings: Settings, interval: float, *, live: bool) -> int:
    timeout = settings.options.get("node_timeout", NODE_TIMEOUT)
    async with settings.connect(
        node_timeout=timeout, restart_guard=False, clock_guard=False
    ) as locks:
        view = View(Board())
        if live:
            await view.run(locks, interval)
        else:
            await view.board.look(locks)
            view.print()
    return 0


class View:
    """The board as it is shown: sorted, filtered, paused."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._column = 0
        self._reverse = False
        self._filter = ""
        self._typing = False
        self._paused = False
        self._ended = asyncio.Event()
        self._console = console()

    def print(self) -> None:
        """Once, as text."""
        print_table(NODE_COLUMNS, [row.cells() for row in self.board.nodes])
        print()
        rows = self.board.sorted(self._column, self._reverse, "")
        print_table(COLUMNS, [row.cells() for row in rows])
        print(f"{len(rows)} held")

    async def run(self, locks: LockManager, interval: float) -> None:
        """Live, until `q`."""
        with (
            pressed() as keys,
            Live(
                console=self._console, screen=True, auto_refresh=False, get_renderable=self._picture
            ) as live,
        ):
            looking = asyncio.ensure_future(self._keep_looking(locks, interval, live))
            try:
                while not self._ended.is_set():
                    self._key(await keys.get())
                    live.refresh()
            finally:
                looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await looking

    async def _keep_looking(self, locks: LockManager, interval: float, live: Live) -> None:
        while True:
            if not self._paused:
                await self.board.look(locks)
                live.refresh()
            await asyncio.sleep(interval)

    def _key(self, key: str) -> None:
        if key == "\x1b":
            self._typing, self._filter = False, ""
        elif self._typing:
            if key in "\r\n":
                self._typing = False
            elif key in "\x7f\b":
                self._filter = self._filter[:-1]
            elif key.isprintable():
                self._filter += key
        elif key == "q":
            self._ended.set()
        elif key == "s":
            self._column = (self._column + 1) % len(COLUMNS)
        elif key == "r":
            self._reverse = not self._reverse
        elif key == "/":
            self._typing, self._filter = True, ""
        elif key == " ":
            self._paused = not self._paused

    # as a picture

    def _picture(self) -> RenderableType:
        return Group(self._headline(), self._nodes(), self._locks(), self._footer())

    def _headline(self) -> Text:
        counts = self.board.counts
        words = [f"{len(self.board.rows)} held"]
        words += [f"{counts[word]} {word}" for word in ("acquired", "released", "ran out")]
        return Text("asynclock  " + "   ".join(words), style="bold")

    def _nodes(self) -> Table:
        table = Table(*NODE_COLUMNS, box=box.SIMPLE_HEAD, padding=(0, 1))
        for row in self.board.nodes:
            style = "" if row.state in _GOOD else "bold red"
            table.add_row(*(cell(text, style) for text in row.cells()))
        return table

    def _locks(self) -> Table:
        arrow = "▼" if self._reverse else "▲"
        titles = [
            f"{title} {arrow}" if number == self._column else title
            for number, title in enumerate(COLUMNS)
        ]
        table = Table(*titles, box=box.SIMPLE_HEAD, padding=(0, 1), expand=True)
        room = max(3, self._console.height - len(self.board.nodes) - 10)
        rows = self.board.sorted(self._column, self._reverse, self._filter)
        for row in rows[:room]:
            cells = row.cells()
            table.add_row(*(cell(text, "yellow" if cells[-1] else "") for text in cells))
        if len(rows) > room:
            table.add_row(Text(f"… {len(rows) - room} more", style="dim"))
        return table

    def _footer(self) -> Text:
        if self._typing:
            return Text(f"filter: {clean(self._filter)}▏")
        shown = f"   filter: {clean(self._filter)}" if self._filter else ""
        return Text(HELP + shown + ("   paused" if self._paused else ""), style="dim")
