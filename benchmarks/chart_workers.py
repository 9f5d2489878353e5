"""Draws what waiting costs: many processes, one name, from a result of `bars workers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import words
from .report import colour, label
from .results import Case, Results

SCENARIO = "workers2"
PANELS = (
    ("leases per second", "leases_per_s", 1.0),
    ("least of a fair share", "least_share", 1.0),
    ("longest wait, seconds", "longest_wait_ms", 0.001),
    ("CPU of all servers, % of a core", "server_cores_percent", 1.0),
)
"""For each panel: its title, the figure, and a factor for its unit."""

CAPTION = (
    "One looping worker in each process, one name, bodies of 2 ms. A worker that never got the name"
    " has waited for the whole run."
)


def draw(results: Results, target: Path) -> None:
    """Write an SVG with a row of panels per number of nodes. Raises ValueError without cases."""
    rows = sorted({case.nodes for case in _cases(results)})
    if not rows:
        raise ValueError(f"the result holds no case of {SCENARIO}")
    # A fixed salt and no date, so that the same result gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "asynclock", "svg.fonttype": "none", "font.size": 9}):
        size = (3.4 * len(PANELS), 2.9 * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(rows), len(PANELS), squeeze=False)
        for axes, nodes in zip(grid, rows, strict=True):
            _row(axes, results, nodes)
        measured = f"Measured on {results.machine['date'].split()[0]}: {words.machine(results)}."
        figure.supxlabel(f"{CAPTION}\n{measured}", fontsize=8)
        figure.savefig(target, format="svg", metadata={"Date": None})


def _cases(results: Results) -> list[Case]:
    return [case for case in results.cases() if case.scenario == SCENARIO]


def _row(axes: Sequence[Axes], results: Results, nodes: int) -> None:
    cases = sorted((c for c in _cases(results) if c.nodes == nodes), key=lambda case: case.tasks)
    systems = dict.fromkeys(system for case in cases for system in results.systems(case))
    where = "one server" if nodes == 1 else f"{nodes} masters"
    for panel, (title, metric, factor) in zip(axes, PANELS, strict=True):
        for system in systems:
            found = {c.tasks: s for c in cases if (s := results.spread(c, system, metric))}
            panel.plot(
                [*found],
                [spread.median * factor for spread in found.values()],
                marker="o",
                markersize=3,
                linewidth=2 if system == "asynclock" else 1,
                color=colour(system),
                label=label(system),
            )
        panel.set_xscale("log", base=2)
        ticks = [case.tasks for case in cases]
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        panel.set_title(f"{where}: {title}")
        panel.set_xlabel("processes")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=7, frameon=False)
