"""Draws the README's picture from a committed result, so that anyone can check it."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .report import colour, label
from .results import Case, Results
from .systems import QUEUED

PANELS = (
    ("5 masters, 100 tasks", Case("cycle", 5, 100)),
    ("one server, 100 tasks", Case("cycle", 1, 100)),
    ("one name, 100 tasks, 5 masters", Case("hot", 5, 100)),
)

CAPTION = (
    "One name: asynclock passes its lease from task to task inside the process, with a fence for"
    " each task. A peer asks the servers for each task, unless a local lock is in front of it."
)
"""Under the panel that sets a hand-over inside a process against acquisitions over the network."""


def draw(results: Results, target: Path) -> None:
    """Write an SVG with one panel per case that was measured."""
    panels = [(title, case) for title, case in PANELS if case in results.cases()]
    if not panels:
        raise ValueError("the result holds none of the cases of the chart")
    # A fixed salt and no date, so that the same result gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "asynclock", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(4.2 * len(panels), 3.1), layout="constrained")
        for axes, (title, case) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _panel(axes, results, title, case)
        figure.suptitle("acquire + release per second, logarithmic (longer is better)")
        if any(case.scenario == "hot" for _, case in panels):
            figure.supxlabel(CAPTION, fontsize=8)
        figure.savefig(target, format="svg", metadata={"Date": None})


def _panel(axes: Axes, results: Results, title: str, case: Case) -> None:
    pace = {s: results.median(case, s, "cycles_per_s") for s in results.systems(case)}
    # Of the peers behind a local lock only the fastest: a panel has room for a bar per system.
    queued = sorted((s for s in pace if s in QUEUED), key=pace.__getitem__)
    for slower in queued[:-1]:
        del pace[slower]
    ordered = sorted(pace, key=pace.__getitem__)
    bars = axes.barh(
        [label(system).split(":")[0] for system in ordered],
        [pace[system] for system in ordered],
        color=[colour(system) for system in ordered],
    )
    axes.bar_label(bars, [f"{pace[system]:,.0f}" for system in ordered], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left=1, right=max(pace.values()) * 10)  # one origin for all panels
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
