"""What varies from run to run, five times: `python -m benchmarks.five` (two minutes a run).

Each run has new servers and new processes, and measures the bars that a machine's moods decide in a
few short rounds. A table shows median and range. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from . import bars
from .kinds import OURS
from .nodes import local_nodes
from .results import Case, Results
from .rounds import Settings
from .runner import Cell, Runner
from .systems import FLOOR, FLOOR_SCRIPTS, FLOOR_WAITING

FLOORS = OURS, FLOOR, FLOOR_SCRIPTS
ONE_ROUND = (("rounds", 1),)
TWO_ROUNDS = (("rounds", 2),)
CELLS = (
    Cell(bars.WIDE_SINGLE, FLOORS, TWO_ROUNDS),
    Cell(bars.WIDE, FLOORS),
    Cell(bars.WIDE_UV, FLOORS, TWO_ROUNDS),
    Cell(bars.SPREAD, (OURS,), TWO_ROUNDS),
    Cell(bars.ACKED, (OURS, FLOOR), TWO_ROUNDS),
    Cell(bars.SHARDED, (OURS, FLOOR), TWO_ROUNDS),
    Cell(bars.THREAD, (*FLOORS, "redis-py")),
    Cell(bars.THREADS, (*FLOORS, "redis-py"), TWO_ROUNDS),
    Cell(bars.THREAD_FIVE, (OURS, "pottery"), ONE_ROUND),
    Cell(bars.ONE, FLOORS),
    Cell(bars.HAND, (OURS, FLOOR_WAITING), ONE_ROUND),
    Cell(bars.HAND_FIVE, (OURS, FLOOR_WAITING), ONE_ROUND),
)


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, or its ratio to another one of the same run."""

    title: str
    bar: str
    case: Case
    metric: str = "cycles_per_s"
    against: str | None = FLOOR
    """The system to compare with; None: a figure of the same system in the case `of`."""
    of: Case | None = None
    """The case to compare with; None: the same case."""

    def value(self, run: Results, system: str) -> float:
        """Return the figure of a system in one run; nan if it wasn't measured."""
        figure = run.median(self.case, system, self.metric)
        if self.metric == HAND_OVER:
            return figure
        return figure / run.median(self.of or self.case, self.against or system, self.metric)

    def line(self, runs: Sequence[Results]) -> str:
        """Return the line of a Markdown table for all runs."""
        cells = [self.title, self.bar]
        for system in (OURS, FLOOR, FLOOR_SCRIPTS):
            same = FLOOR_WAITING if (self.metric, system) == (HAND_OVER, FLOOR) else system
            values = [self.value(run, same) for run in runs]
            known = [value for value in values if not math.isnan(value)]
            spread = f" ({min(known):.2f} to {max(known):.2f})" if len(known) > 1 else ""
            cells.append(f"{statistics.median(known):.2f}{spread}" if known else "")
        return f"| {' | '.join(cells)} |"


TIME, HAND_OVER = "cycle_p50_ms", "handover_p50_ms"
ROWS = (
    Row("code that blocks, one thread, time of redis-py's", "≤ 1.6", bars.THREAD, TIME, "redis-py"),
    Row("32 threads, of redis-py's pace", "≥ 2.5", bars.THREADS, against="redis-py"),
    Row("one thread on five nodes, of pottery's pace", "≥ 2", bars.THREAD_FIVE, against="pottery"),
    Row("p99 of an acquire, five nodes, 100 tasks", "≤ 2.5", bars.WIDE, "wait_p99_ms"),
    Row("one task, five nodes, time of a cycle", "≤ 1.4", bars.ONE, TIME),
    Row("one node, 100 tasks, pace", "≥ 0.65", bars.WIDE_SINGLE),
    Row("five nodes, 100 tasks, pace", "≥ 0.6", bars.WIDE),
    Row("the same with uvloop", "≥ 0.65", bars.WIDE_UV),
    Row("five nodes, 100 tasks, servers' CPU", "≤ 1.5", bars.WIDE, "server_us"),
    Row("five nodes, 100 tasks, client's CPU", "", bars.WIDE, "client_us"),
    Row("hand-over between processes, one node, ms", "≤ 0.9", bars.HAND, HAND_OVER),
    Row("hand-over between processes, five nodes, ms", "≤ 1.5", bars.HAND_FIVE, HAND_OVER),
    Row("servers' CPU, four processes, of one", "≤ 1.3", bars.SPREAD, "server_us", None, bars.WIDE),
    Row("`acks=1`, of one node", "≥ 0.7", bars.ACKED, against=None, of=bars.WIDE_SINGLE),
    Row("Cluster of three, of one node", "≥ 0.7", bars.SHARDED, against=None, of=bars.WIDE_SINGLE),
)
"""Ratios to the floor, but for those that name something else."""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def _measure() -> Results:
    async with local_nodes(5) as nodes:
        return await Runner(nodes, Settings(), _say).run(CELLS)


def main() -> int:
    """Measure; print the table and each system that failed."""
    parser = argparse.ArgumentParser(description="Measure what varies, and print a table.")
    parser.add_argument("--runs", type=int, default=5, help="default 5")
    options = parser.parse_args()
    runs: list[Results] = []
    for number in range(1, options.runs + 1):
        runs.append(asyncio.run(_measure()))
        _say(f"run {number}: {runs[-1].problems or 'all measured'}")
    print("| | bar | asynclock | floor | floor-scripts |\n|---|--:|--:|--:|--:|")
    print(*(row.line(runs) for row in ROWS), sep="\n")
    return 1 if any(run.problems for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
