"""The performance bars of asynclock: each has its figures, its limit and its way to measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .results import Case, Results
from .runner import Cell
from .systems import ON_ONE_NAME, PYTHON_REDLOCKS, QUEUED

OURS = "asynclock"
NODES = ("node-redlock", "redis-semaphore")
Verdict = tuple[str, bool]


@dataclass(frozen=True)
class Bar:
    """One line of the table. ``judge`` returns the measured figure and whether it meets the bar."""

    title: str
    required: str
    judge: Callable[[Results], Verdict]


def times_faster(
    case: Case,
    peers: Sequence[str],
    factor: float,
    system: str = OURS,
    metric: str = "cycles_per_s",
) -> Bar:
    """Compare our pace with that of the fastest peer."""

    def judge(results: Results) -> Verdict:
        ours = results.median(case, system, metric)
        name, best = _best(results, case, peers, metric, max)
        ratio = ours / best if best else math.inf
        return f"{ratio:.3g}× ({ours:,.0f}/s against {name} {best:,.0f}/s)", ratio >= factor

    against = peers[0] if len(peers) == 1 else f"best of {', '.join(peers)}"
    title = str(case) if system == OURS else f"{case}: {system}"
    return Bar(title, f"≥ {factor:g}× the pace of {against}", judge)


def latency_ratio(case: Case, peers: Sequence[str], factor: float) -> Bar:
    """Compare our median cycle with that of the fastest peer."""

    def judge(results: Results) -> Verdict:
        ours = results.median(case, OURS, "cycle_p50_ms")
        name, best = _best(results, case, peers, "cycle_p50_ms", min)
        ratio = ours / best
        return f"{ratio:.3g}× ({ours:.3g} ms against {name} {best:.3g} ms)", ratio <= factor

    against = peers[0] if len(peers) == 1 else f"best of {', '.join(peers)}"
    return Bar(f"{case}, median cycle", f"≤ {factor:.3g}× that of {against}", judge)


def at_most(case: Case, metric: str, limit: float, unit: str, system: str = OURS) -> Bar:
    """Compare one of our figures with a fixed limit."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, system, metric)
        return f"{value:,.3g} {unit}", value <= limit

    return Bar(f"{case}: {metric}", f"≤ {limit:g} {unit}", judge)


def never(case: Case, metric: str) -> Bar:
    """Require that something happens in no round."""

    def judge(results: Results) -> Verdict:
        spread = results.spread(case, OURS, metric)
        return (f"{spread.high:g}", spread.high == 0) if spread else ("not measured", False)

    return Bar(f"{case}: {metric}", "0", judge)


def as_healthy(case: Case, metric: str, factor: float) -> Bar:
    """Compare a figure with a failing node with the same figure just before."""

    def judge(results: Results) -> Verdict:
        failing = results.median(case, OURS, metric)
        healthy = results.median(case, OURS, f"healthy_{metric}")
        ratio = failing / healthy
        return f"{ratio:.3g}× ({failing:.3g} ms, healthy {healthy:.3g} ms)", ratio <= factor

    return Bar(f"{case}: {metric}", f"≤ {factor:g}× healthy", judge)


def least_share(case: Case, share: float) -> Bar:
    """Require that no process starves."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, OURS, "least_share")
        return f"{value:.2f} of a fair share", value >= share

    return Bar(f"{case}: the process that got least", f"≥ {share:g} of its share", judge)


def cheap(case: Case, without: str, share: float) -> Bar:
    """Compare our pace with a feature with the pace without it."""

    def judge(results: Results) -> Verdict:
        on = results.median(case, OURS, "cycles_per_s")
        off = results.median(case, without, "cycles_per_s")
        cost = 1 - on / off
        return f"{cost:.1%} ({on:,.0f}/s against {off:,.0f}/s)", cost < share

    return Bar(f"{case}: cost against {without}", f"< {share:.0%}", judge)


def two_round_trips(case: Case, reference: Case) -> Bar:
    """Compare a hand-over with the floor's cycle, which is two round trips."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, OURS, "handover_p50_ms")
        limit = results.median(reference, "floor", "cycle_p50_ms") + 1.0
        return f"{value:.3g} ms (limit {limit:.3g} ms)", value <= limit

    return Bar(f"{case}: median", "≤ 2 round trips + 1 ms", judge)


def _best(
    results: Results,
    case: Case,
    peers: Sequence[str],
    metric: str,
    choose: Callable[..., str],
) -> tuple[str, float]:
    measured = {p: s.median for p in peers if (s := results.spread(case, p, metric))}
    if not measured:
        return "no peer", math.nan
    name = choose(measured, key=measured.__getitem__)
    return name, measured[name]


WIDE, ONE = Case("cycle", 5, 100), Case("cycle", 5, 1)
WIDE_SINGLE, ONE_SINGLE = Case("cycle", 1, 100), Case("cycle", 1, 1)
WIDE_UV = Case("cycle", 5, 100, "uvloop")
HOT, HOT_FIVE = Case("hot", 1, 100), Case("hot", 5, 100)
APART, APART_FIVE = Case("hot4", 1, 100), Case("hot4", 5, 100)
SHARE, SHARE_FIVE = Case("share", 1, 100), Case("share", 5, 100)
HAND, HAND_FIVE = Case("handover", 1, 2), Case("handover", 5, 2)
ORPHAN, ORPHAN_FIVE = Case("orphan", 1, 2), Case("orphan", 5, 2)
HISTORIES = (
    *(HOT, HOT_FIVE, APART, APART_FIVE, SHARE, SHARE_FIVE),
    *(HAND, HAND_FIVE, ORPHAN, ORPHAN_FIVE),
)
"""The cases with one name for many tasks: each body is recorded, and the checker checks all."""
WAITERS, WAITERS_FIVE = Case("waiters", 1, 1000), Case("waiters", 5, 1000)
FROZEN, KILLED = Case("frozen", 5, 10), Case("killed", 5, 10)
RENEWAL, MEMORY = Case("renewal", 3, 10_000), Case("memory", 5, 5000)

# One task alone is at the mercy of the machine: in short rounds the floor was slower than we.
_LONG = (("rounds", 5), ("seconds", 2.0))
_FEW = (("rounds", 2), ("seconds", 2.0))
_ONCE = (("rounds", 1), ("seconds", 10.0))
_SHORT = (("rounds", 2), ("ttl", 2.0))
CELLS = (
    Cell(WIDE, (OURS, "floor", "floor-plain", "gather", *PYTHON_REDLOCKS, *NODES)),
    Cell(ONE, (OURS, "floor", "floor-plain", "gather", *PYTHON_REDLOCKS, *NODES), _LONG),
    Cell(
        WIDE_SINGLE,
        (OURS, "floor", "floor-plain", "gather", "redis-py", "coredis", *PYTHON_REDLOCKS, *NODES),
    ),
    Cell(ONE_SINGLE, (OURS, "floor", "redis-py", "coredis", *NODES), _LONG),
    Cell(WIDE_UV, (OURS, "floor", "gather", *PYTHON_REDLOCKS)),
    Cell(Case("guards", 5, 100), (OURS, "asynclock-unguarded"), (("rounds", 5),)),
    Cell(HOT, ON_ONE_NAME, (("rounds", 5),)),
    Cell(HOT_FIVE, ON_ONE_NAME),
    Cell(APART, (OURS, "redis-py", "coredis", *NODES), _FEW),
    Cell(APART_FIVE, (OURS, *PYTHON_REDLOCKS, *NODES), _FEW),
    Cell(SHARE, (OURS,), _ONCE),
    Cell(SHARE_FIVE, (OURS,), _ONCE),
    Cell(HAND, (OURS, "redis-py", "redis-semaphore"), (("rounds", 2),)),
    Cell(HAND_FIVE, (OURS, "redis-semaphore"), (("rounds", 2),)),
    Cell(ORPHAN, (OURS,), _SHORT),
    Cell(ORPHAN_FIVE, (OURS,), _SHORT),
    Cell(WAITERS, (OURS,), (("rounds", 1),)),
    Cell(WAITERS_FIVE, (OURS,), (("rounds", 1),)),
    Cell(MEMORY, (OURS,), (("rounds", 2),)),
    Cell(RENEWAL, (OURS,), (("rounds", 1), ("hold_seconds", 60.0))),
    Cell(FROZEN, (OURS, *PYTHON_REDLOCKS, *NODES)),
    Cell(KILLED, (OURS, *PYTHON_REDLOCKS, *NODES), (("rounds", 2),)),
)
"""All that the bars compare, and some more peers for the charts."""

BARS = (
    times_faster(WIDE, PYTHON_REDLOCKS, 20),
    times_faster(WIDE, ("node-redlock",), 2),
    times_faster(WIDE, ("floor",), 0.5),
    times_faster(WIDE, ("gather",), 10),
    at_most(WIDE, "client_us", 60, "µs of CPU per cycle"),
    latency_ratio(ONE, ("floor",), 1.5),
    latency_ratio(ONE, PYTHON_REDLOCKS, 1 / 3),
    times_faster(WIDE_SINGLE, ("redis-py",), 5),
    times_faster(WIDE_SINGLE, ("node-redlock",), 1),
    latency_ratio(ONE_SINGLE, ("redis-py",), 1),
    times_faster(WIDE_UV, ("floor",), 0.5),
    as_healthy(FROZEN, "cycle_p99_ms", 2),
    as_healthy(FROZEN, "wait_p50_ms", 1.5),
    as_healthy(KILLED, "wait_p50_ms", 1.5),
    at_most(RENEWAL, "cores_percent", 10, "% of a core"),
    never(RENEWAL, "lost"),
    at_most(MEMORY, "bytes_per_lease", 3072, "bytes"),
    cheap(Case("guards", 5, 100), "asynclock-unguarded", 0.05),
    times_faster(HOT, ("redis-py",), 50),
    times_faster(HOT, NODES, 15),
    times_faster(HOT_FIVE, ("pottery",), 100),
    times_faster(HOT_FIVE, ("node-redlock",), 50),
    # Like with like: both keep the name inside the process, or both ask the servers each time.
    times_faster(HOT, QUEUED, 10),
    times_faster(HOT_FIVE, QUEUED, 10),
    times_faster(HOT, ("redis-py",), 2, "asynclock-apart"),
    times_faster(HOT_FIVE, (*PYTHON_REDLOCKS, *NODES), 2, "asynclock-apart"),
    times_faster(APART, ("redis-py", "coredis", *NODES), 5),
    times_faster(APART_FIVE, (*PYTHON_REDLOCKS, *NODES), 5),
    least_share(SHARE, 0.5),
    least_share(SHARE_FIVE, 0.5),
    at_most(SHARE, "waited_bodies", 4 * 8192, "bodies of others"),
    at_most(SHARE_FIVE, "waited_bodies", 4 * 8192, "bodies of others"),
    two_round_trips(HAND, ONE_SINGLE),
    at_most(HAND_FIVE, "handover_p99_ms", 20, "ms"),
    at_most(ORPHAN, "late_ms", 200, "ms"),
    at_most(ORPHAN_FIVE, "late_ms", 200, "ms"),
    at_most(WAITERS, "commands_per_s_and_node", 20, "commands/s"),
    at_most(WAITERS_FIVE, "commands_per_s_and_node", 20, "commands/s"),
    *(never(case, "violations") for case in HISTORIES),
)


def judge(results: Results, bars: Sequence[Bar] = BARS) -> list[dict[str, Any]]:
    """Return every bar with its measured figure; a missing figure fails the bar."""
    lines = []
    for bar in bars:
        measured, met = bar.judge(results)
        said = "not measured" if "nan" in measured else measured
        lines.append(
            {"bar": bar.title, "required": bar.required, "measured": said, "met": bool(met)}
        )
    return lines
