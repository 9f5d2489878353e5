"""Draws pictures from a committed result, so that anyone can check them.

The README's shows two paces; another one shows all of the result that has a place in LOADS or
SINGLES. All axes are linear and begin at zero, so that twice as long is twice as much, and each bar
bears its figure.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from . import words
from .kinds import OURS
from .report import colour, label
from .results import Case, Results
from .systems import QUEUED

LOADS = (
    ("one server, 100 tasks", Case("cycle", 1, 100)),
    ("5 masters, 100 tasks", Case("cycle", 5, 100)),
    ("one server, 100 tasks, uvloop", Case("cycle", 1, 100, "uvloop")),
    ("5 masters, 100 tasks, uvloop", Case("cycle", 5, 100, "uvloop")),
    ("one server, one task", Case("cycle", 1, 1)),
    ("5 masters, one task", Case("cycle", 5, 1)),
    ("one name, one server, 100 tasks", Case("hot", 1, 100)),
    ("one name, 5 masters, 100 tasks", Case("hot", 5, 100)),
    ("one name, one server, 4 processes", Case("hot4", 1, 100)),
    ("one name, 5 masters, 4 processes", Case("hot4", 5, 100)),
)
"""The cases of a load: each has a row with its pace, its CPU and its waits."""


@dataclass(frozen=True)
class Line:
    """One bar of a panel, or one for each system of a case."""

    case: Case
    metric: str
    text: str = ""
    """The label of the bar; if not `alone` it follows the system's name."""
    alone: bool = True
    """Whether there is one bar only, that of asynclock."""


ONE_SERVER, FIVE_MASTERS = "one server", "5 masters"
_FAR = (
    ("connect to first lock", "cold"),
    ("the name of the last run", "again"),
    ("acquire", "acquire"),
    ("release", "release"),
)
SINGLES = (
    (
        "from release in one process to the body in another, median, ms",
        (
            Line(Case("handover", 1, 2), "handover_p50_ms", ONE_SERVER, alone=False),
            Line(Case("handover", 5, 2), "handover_p50_ms", FIVE_MASTERS, alone=False),
        ),
    ),
    (
        "round trips to a far server",
        tuple(
            Line(Case("far", nodes, 1), f"{name}_trips", f"{step}, {where}")
            for step, name in (*_FAR, ("hand-over", "handover"))
            for nodes, where in ((1, ONE_SERVER), (5, FIVE_MASTERS))
        ),
    ),
    (
        "start of a program, ms",
        (
            Line(Case("start", 1, 1), "redis_import_ms", "import redis.asyncio"),
            Line(Case("start", 1, 1), "import_ms", "import asynclock"),
            Line(Case("start", 1, 1), "run_ms", "asynclock run x -- true"),
        ),
    ),
    (
        "the holder was killed: ms from the end of its lease to the next body",
        (
            Line(Case("orphan", 1, 2), "late_ms", ONE_SERVER),
            Line(Case("orphan", 5, 2), "late_ms", FIVE_MASTERS),
        ),
    ),
    (
        "1,000 tasks wait: commands per second and node",
        (
            Line(Case("waiters", 1, 1000), "commands_per_s_and_node", ONE_SERVER),
            Line(Case("waiters", 5, 1000), "commands_per_s_and_node", FIVE_MASTERS),
        ),
    ),
    (
        "4 processes, one name: the least that one got, as a part of a fair share",
        (
            Line(Case("share", 1, 100), "least_share", ONE_SERVER),
            Line(Case("share", 5, 100), "least_share", FIVE_MASTERS),
        ),
    ),
    (
        "memory, bytes",
        (
            Line(Case("memory", 5, 5000), "bytes_per_lease", "client, per held lease"),
            Line(Case("names", 1, 1_000_000), "node_bytes_per_name", "node, per used name"),
        ),
    ),
    (
        "10,000 leases held and renewed, 3 masters: CPU, % of a core",
        (
            Line(Case("renewal", 3, 10_000), "cores_percent", "client"),
            Line(Case("renewal", 3, 10_000), "server_cores_percent", "all servers"),
        ),
    ),
    (
        "guards on and off, 5 masters: acquire + release per second",
        (Line(Case("guards", 5, 100), "cycles_per_s", alone=False),),
    ),
    (
        "one of 5 masters hangs: acquire, 99 of 100, ms",
        (
            Line(Case("frozen", 5, 10), "healthy_wait_p99_ms", "asynclock, all are well"),
            Line(Case("frozen", 5, 10), "wait_p99_ms", alone=False),
        ),
    ),
    (
        "one of 5 masters is dead: acquire, 99 of 100, ms",
        (
            Line(Case("killed", 5, 10), "healthy_wait_p99_ms", "asynclock, all are well"),
            Line(Case("killed", 5, 10), "wait_p99_ms", alone=False),
        ),
    ),
)
COLUMNS = 3
STYLE: dict[Any, Any] = {"svg.hashsalt": "asynclock", "svg.fonttype": "none", "font.size": 9}
"""A fixed salt, and no date below, so that the same result gives the same bytes."""
GREY: dict[Any, Any] = dict.fromkeys(
    ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), "#7d8590"
)
"""A colour that can be read on white and on black."""
CAPTION = (
    "One name: asynclock passes its lease from task to task inside the process without the network,"
    " with a fence for each task. A peer asks the servers for each task, unless a local lock is in"
    " front of it; of those that have one, the fastest is shown."
)
"""The note below a page on which some systems hand a name over without the network."""


def headline(results: Results, target: Path) -> None:
    """Write an SVG of two paces without a background, for light and dark pages."""
    cases = [(title, case) for title, case in LOADS[:2] if case in results.cases()]
    bars = max(len(_systems(results, case)) for _, case in cases)
    with mpl.rc_context(STYLE | GREY):
        figure = Figure(figsize=(9, 1.3 + 0.19 * bars), layout="constrained")
        panels = figure.subplots(1, len(cases), squeeze=False)[0]
        for panel, (title, case) in zip(panels, cases, strict=True):
            _pace(panel, results, title, case)
        _sign(figure, results)
        figure.savefig(target, format="svg", metadata={"Date": None}, transparent=True)


def draw(results: Results, target: Path) -> None:
    """Write an SVG of all that was measured. Raises ValueError if nothing of it was."""
    loads = [(title, case) for title, case in LOADS if case in results.cases()]
    singles = [(title, found) for title, lines in SINGLES if (found := _found(results, lines))]
    if not loads and not singles:
        raise ValueError("the result holds none of the cases of the picture")
    rows = [singles[first : first + COLUMNS] for first in range(0, len(singles), COLUMNS)]
    # Inches: a title and an axis, and a line for each bar.
    upper = [0.8 + 0.19 * len(_systems(results, case)) for _, case in loads]
    lower = [0.8 + 0.19 * max(len(found) for _, found in row) for row in rows]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, sum(upper) + sum(lower) + 1), layout="constrained")
        heights = [sum(part) for part in (upper, lower) if part]
        parts = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
        if loads:
            grid = _grid(parts.pop(0), upper)
            for axes, (title, case) in zip(grid, loads, strict=True):
                _load(axes, results, title, case)
        if singles:
            grid = _grid(parts.pop(0), lower)
            for place, (title, found) in zip(grid.flat, singles, strict=False):
                _single(place, title, found)
            for place in grid.flat[len(singles) :]:
                place.set_axis_off()
        _sign(figure, results)
        if any(case.scenario.startswith("hot") for _, case in loads):
            figure.supxlabel("\n".join(textwrap.wrap(CAPTION, 150)), fontsize=8)
        figure.savefig(target, format="svg", metadata={"Date": None})


def _sign(figure: Figure, results: Results) -> None:
    date = results.machine["date"].split()[0]
    figure.suptitle(f"Measured side by side on {date}\n{words.machine(results)}")


def _grid(part: SubFigure, heights: Sequence[float]) -> Any:
    return part.subplots(len(heights), COLUMNS, squeeze=False, height_ratios=heights)


# ---------------------------------------------------------------- rows of loads


def _systems(results: Results, case: Case) -> list[str]:
    """Return the systems of a case, the fastest last, because the first bar is the lowest."""
    pace = {
        system: found.median
        for system in results.systems(case)
        if (found := results.spread(case, system, "cycles_per_s"))
    }
    # Of the peers behind a local lock only the fastest: a panel has little room.
    queued = sorted((system for system in pace if system in QUEUED), key=pace.__getitem__)
    return sorted(pace.keys() - set(queued[:-1]), key=pace.__getitem__)


def _pace(axes: Axes, results: Results, title: str, case: Case) -> None:
    systems = _systems(results, case)
    paces = [results.median(case, system, "cycles_per_s") for system in systems]
    drawn = axes.barh(list(map(_short, systems)), paces, color=list(map(colour, systems)))
    axes.bar_label(drawn, list(map(_shown, paces)), padding=3)
    _finish(axes, f"{title}\nacquire + release per second")


def _load(row: Sequence[Axes], results: Results, title: str, case: Case) -> None:
    systems = _systems(results, case)
    names = [_short(system) for system in systems]
    colours = [colour(system) for system in systems]

    def figures(metric: str) -> list[float]:
        return [results.median(case, system, metric) for system in systems]

    pace, cpu, wait = row
    _pace(pace, results, title, case)

    ours, theirs = figures("client_us"), figures("server_us")
    cpu.barh(names, ours, color=colours)
    drawn = cpu.barh(names, theirs, left=ours, color=colours, alpha=0.4)
    both = zip(ours, theirs, strict=True)
    cpu.bar_label(drawn, [f"{_shown(a)} + {_shown(b)}" for a, b in both], padding=3)
    _finish(cpu, "CPU of client + all servers (pale),\nµs per cycle (shorter is better)")

    median, late = figures("wait_p50_ms"), figures("wait_p99_ms")
    drawn = wait.barh(names, late, color=colours, alpha=0.4)
    wait.barh(names, median, color=colours)
    both = zip(median, late, strict=True)
    wait.bar_label(drawn, [f"{_shown(a)}; {_shown(b)}" for a, b in both], padding=3)
    for panel in (cpu, wait):
        panel.tick_params(labelleft=False)  # the same systems as in the first panel
    _finish(wait, "acquire, ms: median; 99 of 100 (pale)\n(shorter is better)")


# ---------------------------------------------------------------- panels of their own

Found = list[tuple[str, float, str]]
"""For each bar its label, its length and its colour."""


def _found(results: Results, lines: Sequence[Line]) -> Found:
    """Return the bars of a panel, as far as they were measured."""
    found = []
    for line in lines:
        for system in [OURS] if line.alone else results.systems(line.case):
            text = line.text if line.alone else ", ".join(filter(None, (_short(system), line.text)))
            if line.case in results.cases() and system in results.systems(line.case):
                value = results.median(line.case, system, line.metric)
                found.append((text, value, colour(system)))
    return found


def _single(axes: Axes, title: str, found: Found) -> None:
    labels, values, colours = zip(*reversed(found), strict=True)
    drawn = axes.barh(labels, [max(0, value) for value in values], color=colours, height=0.7)
    axes.bar_label(drawn, [_shown(value) for value in values], padding=3)
    _finish(axes, "\n".join(textwrap.wrap(title, 32)))


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.margins(x=0.3)  # room for the figures
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(3))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.spines[["top", "right"]].set_visible(False)


def _short(system: str) -> str:
    return label(system).split(":")[0].replace(" behind a local lock", " + local lock")


def _shown(value: float) -> str:
    if math.isnan(value):
        return "none in time"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
