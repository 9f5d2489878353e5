"""`asynclock demo`: shows what the library is for, on five local Redis servers."""

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

from .._output import console
from .._status import Status
from .._text import say
from .scenario import FROZEN, KILLED, NODES, SERVICES, TITLES, USERS, Act, DemoError, run_acts

_STYLES = {"up": "green", "killed": "bold red", "frozen": "bold cyan"}
INTRO = (
    f"{len(SERVICES)} service processes × {USERS} users; "
    "all of them try to buy the same order at the same moment."
)


def demo(
    orders: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of orders that each act sells.")
    ] = 100,
) -> int:
    """Show what the library is for on five local Redis servers, in about ten seconds.

    Two service processes with ten users each try to buy the same order at the same moment, order
    after order: first without a lock, then with a lock inside each process, then with asynclock
    over five masters, of which one is killed and one frozen half-way.

    The exit status is 0 only if the last act sold every order exactly once.

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
    return Status.OK if acts[-1].correct else 1


async def _until_stopped(orders: int, out: Console) -> list[Act] | None:
    # asyncio.run turns Ctrl-C into a cancellation; SIGTERM must clean up in the same way.
    stopped = asyncio.Event()
    with Screen(out) if out.is_terminal else Lines(out) as display:
        work = asyncio.ensure_future(run_acts(orders, display))

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
    """Shows the demo on a terminal: a bar per act, and the nodes."""

    def __init__(self, out: Console) -> None:
        self._nodes = Text("starting five Redis servers …", style="dim")
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[verdict]}"),
            console=out,
        )
        self._live = Live(console=out, refresh_per_second=12, get_renderable=self._render)
        self._tasks: dict[int, TaskID] = {}
        out.print(INTRO)

    def __enter__(self) -> Screen:
        # Draw now, because servers that start fast would replace the first line before it is seen.
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> Group:
        return Group(self._nodes, self._bars)

    def nodes(self, states: Sequence[str]) -> None:
        """Show the state of each server."""
        parts = [Text("nodes  ")]
        for number, state in enumerate(states, 1):
            parts.append(Text(f"● {number}", style=_STYLES[state]))
            parts.append(Text("   " if state == "up" else f" {state}   ", style=_STYLES[state]))
        self._nodes = Text.assemble(*parts)

    def act_began(self, act: Act) -> None:
        """Add a bar for the act."""
        title = f"{act.number}  {act.title}"
        self._tasks[act.number] = self._bars.add_task(title, total=act.orders, verdict="")

    def progress(self, act: Act) -> None:
        """Move the bar by one order."""
        style = "red" if act.doubles else "green"
        self._bars.update(
            self._tasks[act.number],
            completed=len(act.sold),
            verdict=f"[{style}]orders sold twice or more: {act.doubles}[/]",
        )

    def act_ended(self, act: Act) -> None:
        """Do nothing: the last progress has drawn everything."""


class Lines:
    """Shows the demo as plain lines, for a log."""

    def __init__(self, out: Console) -> None:
        self._out = out
        out.print(INTRO)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def nodes(self, states: Sequence[str]) -> None:
        """Show the state of each server."""
        self._out.print(
            "nodes: " + ", ".join(f"{number} {state}" for number, state in enumerate(states, 1))
        )

    def act_began(self, act: Act) -> None:
        """Print a line at the start."""
        self._out.print(f"act {act.number} of {len(TITLES)}: {act.title}, {act.orders} orders")

    def progress(self, act: Act) -> None:
        """Do nothing: a log has no bar."""

    def act_ended(self, act: Act) -> None:
        """Print the result of the act."""
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
            Text(str(act.once), style="green" if act.correct else ""),
            Text(str(act.doubles), style="bold red" if act.doubles else "green"),
            Text(str(unsold), style="bold red" if unsold else ""),
            f"{act.seconds:.1f}",
        )
    return table


def _verdict(act: Act) -> Text:
    faults = f"node {KILLED + 1} of {NODES} was killed and node {FROZEN + 1} frozen half-way"
    if act.correct:
        return Text(f"asynclock: every order was sold exactly once, though {faults}.", "bold green")
    return Text(f"asynclock: {act.orders - act.once} orders went wrong; {faults}.", "bold red")
