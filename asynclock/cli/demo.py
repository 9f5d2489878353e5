"""`asynclock demo`: what the library is for, on five local Redis servers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from ._demo_play import FROZEN, KILLED, NODES, SERVICES, TITLES, USERS, Act, DemoError, play
from ._output import console, say
from ._status import Status

_STYLES = {"up": "green", "killed": "bold red", "frozen": "bold cyan"}
INTRO = (
    f"{len(SERVICES)} service processes × {USERS} users; "
    "all of them grab the same order at the same moment."
)


def add_to(app: typer.Typer) -> None:
    """Make the command known."""
    app.command("demo")(demo)


def demo(
    orders: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many orders each act sells.")
    ] = 100,
) -> int:
    """Play the story of this library on five local Redis servers, in some ten seconds.

    Two service processes with ten users each grab one order at the same moment, many orders in
    a row: first without a lock, then with a lock inside each process, then with asynclock over
    five masters, of which one is killed and one frozen half-way.

    Exits with 0 only if the last act sold every order exactly once.

    Examples:

        asynclock demo

        asynclock demo --orders 500
    """
    out = console()
    try:
        acts = asyncio.run(_until_stopped(orders, out))
    except DemoError as error:
        say(error)
        return 1
    if acts is None:
        say("stopped; servers and services are gone")
        return 128 + signal.SIGTERM
    out.print()
    out.print(_result(acts))
    out.print(_verdict(acts[-1]))
    return Status.OK if acts[-1].right else 1


async def _until_stopped(orders: int, out: Console) -> list[Act] | None:
    # asyncio.run turns Ctrl-C into a cancellation; SIGTERM must clean up just as well.
    stopped = asyncio.Event()
    with Screen(out) if out.is_terminal else Lines(out) as audience:
        work = asyncio.ensure_future(play(orders, audience))

        def stop() -> None:
            stopped.set()
            work.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        try:
            return await work
        except asyncio.CancelledError:
            if stopped.is_set():
                return None
            raise


class Screen:
    """The play on a terminal: a bar per act, and the nodes."""

    def __init__(self, out: Console) -> None:
        self._nodes = Text("starting five Redis servers …", style="dim")
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[verdict]}"),
            console=out,
        )
        self._live = Live(console=out, refresh_per_second=12, get_renderable=self._picture)
        self._tasks: dict[int, TaskID] = {}
        out.print(INTRO)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def _picture(self) -> Group:
        return Group(self._nodes, self._bars)

    def nodes(self, states: Sequence[str]) -> None:
        """How each server is."""
        parts = [Text("nodes  ")]
        for number, state in enumerate(states, 1):
            parts.append(Text(f"● {number}", style=_STYLES[state]))
            parts.append(Text("   " if state == "up" else f" {state}   ", style=_STYLES[state]))
        self._nodes = Text.assemble(*parts)

    def begins(self, act: Act) -> None:
        """A new bar."""
        title = f"{act.number}  {act.title}"
        self._tasks[act.number] = self._bars.add_task(title, total=act.orders, verdict="")

    def progress(self, act: Act) -> None:
        """One order further."""
        style = "red" if act.doubles else "green"
        self._bars.update(
            self._tasks[act.number],
            completed=len(act.sold),
            verdict=f"[{style}]orders sold twice or more: {act.doubles}[/]",
        )

    def ends(self, act: Act) -> None:
        """Nothing more to draw."""


class Lines:
    """The play as plain lines, for a log."""

    def __init__(self, out: Console) -> None:
        self._out = out
        out.print(INTRO)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def nodes(self, states: Sequence[str]) -> None:
        """How each server is."""
        self._out.print(
            "nodes: " + ", ".join(f"{number} {state}" for number, state in enumerate(states, 1))
        )

    def begins(self, act: Act) -> None:
        """A line for the start."""
        self._out.print(f"act {act.number} of {len(TITLES)}: {act.title}, {act.orders} orders")

    def progress(self, act: Act) -> None:
        """Nothing: a log is no place for a bar."""

    def ends(self, act: Act) -> None:
        """A line for the end."""
        self._out.print(
            f"  {act.sales} sales in {act.seconds:.1f} s; orders sold twice or more: {act.doubles}"
        )


def _result(acts: Sequence[Act]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("act")
    for title in ("orders", "sales", "sold once", "sold twice", "unsold", "seconds"):
        table.add_column(title, justify="right")
    for act in acts:
        unsold = sum(count == 0 for count in act.sold.values())
        table.add_row(
            f"{act.number}  {act.title}",
            str(act.orders),
            str(act.sales),
            Text(str(act.once), style="green" if act.right else ""),
            Text(str(act.doubles), style="bold red" if act.doubles else "green"),
            Text(str(unsold), style="bold red" if unsold else ""),
            f"{act.seconds:.1f}",
        )
    return table


def _verdict(act: Act) -> Text:
    faults = f"node {KILLED + 1} of {NODES} was killed and node {FROZEN + 1} frozen half-way"
    if act.right:
        return Text(f"asynclock: every order was sold exactly once, though {faults}.", "bold green")
    return Text(f"asynclock: {act.orders - act.once} orders went wrong; {faults}.", "bold red")
