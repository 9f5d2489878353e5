"""The kinds of bars: how each compares the figures of a result, and the verdicts on a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .results import Case, Results
from .systems import FLOOR

OURS = "asynclock"
Verdict = tuple[str, bool]


@dataclass(frozen=True)
class Bar:
    """One line of the table. `judge` returns the measured figure and whether it meets the bar."""

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


def no_more(case: Case, peers: Sequence[str], factor: float, metric: str = "cycle_p50_ms") -> Bar:
    """Compare a time or a cost of ours with the lowest of the peers."""

    def judge(results: Results) -> Verdict:
        ours = results.median(case, OURS, metric)
        name, best = _best(results, case, peers, metric, min)
        ratio = ours / best if best else math.inf
        unit = metric.rpartition("_")[2]
        return f"{ratio:.3g}× ({ours:.3g} {unit} against {name} {best:.3g} {unit})", ratio <= factor

    against = peers[0] if len(peers) == 1 else f"best of {', '.join(peers)}"
    return Bar(f"{case}: {metric}", f"≤ {factor:.3g}× that of {against}", judge)


def of_case(case: Case, reference: Case, factor: float, metric: str = "cycles_per_s") -> Bar:
    """Compare a figure of ours with ours in another case: a pace at least, a cost at most."""
    pace = metric == "cycles_per_s"

    def judge(results: Results) -> Verdict:
        ours = results.median(case, OURS, metric)
        other = results.median(reference, OURS, metric)
        ratio = ours / other if other else math.inf
        met = ours >= factor * other if pace else ours <= factor * other
        return f"{ratio:.3g}× ({ours:,.4g} against {other:,.4g})", met

    return Bar(
        f"{case}: {metric}", f"{'≥' if pace else '≤'} {factor:g}× that of {reference}", judge
    )


def client_cpu(case: Case, limit: float, factor: float = 2.2) -> Bar:
    """Limit our client's CPU per cycle: to `limit` µs, or to `factor` times that of the floor."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, OURS, "client_us")
        floor = results.median(case, FLOOR, "client_us")
        ratio = value / floor if floor else math.inf
        return f"{value:.3g} µs, {ratio:.3g}×", value <= limit or ratio <= factor

    required = f"≤ {limit:g} µs or ≤ {factor:g}× that of {FLOOR}"
    return Bar(f"{case}: client_us", required, judge)


def at_most(case: Case, metric: str, limit: float, unit: str, system: str = OURS) -> Bar:
    """Compare one of our figures with a fixed limit."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, system, metric)
        return f"{value:,.3g} {unit}", value <= limit

    return Bar(f"{case}: {metric}", f"≤ {limit:g} {unit}", judge)


def trips(case: Case, metric: str, limit: int) -> Bar:
    """Limit a number of round trips; a quarter of one is left for the machine itself."""
    bar = at_most(case, metric, limit + 0.25, "round trips")
    return Bar(bar.title, f"≤ {limit} (+ 0.25) round trips", bar.judge)


def reported(case: Case, metric: str, unit: str) -> Bar:
    """Require that a figure was measured; it has no limit."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, OURS, metric)
        return f"{value:,.3g} {unit}", math.isfinite(value)

    return Bar(f"{case}: {metric}", "reported", judge)


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
    """Limit what a feature costs: our pace with it against the pace without it."""

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
        limit = results.median(reference, FLOOR, "cycle_p50_ms") + 1.0
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


def about(bars: Sequence[Bar], cases: Sequence[Case]) -> list[Bar]:
    """Return the bars of these cases: each title begins with its case."""
    begins = tuple(f"{case}{end}" for case in cases for end in (":", "\n"))
    return [bar for bar in bars if f"{bar.title}\n".startswith(begins)]


def judge(results: Results, bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Return every bar with its measured figure; a missing figure fails the bar."""
    lines = []
    for bar in bars:
        measured, met = bar.judge(results)
        shown = "not measured" if "nan" in measured else measured
        lines.append(
            {"bar": bar.title, "required": bar.required, "measured": shown, "met": bool(met)}
        )
    return lines


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table of verdicts, line by line; the last line counts the bars that are met."""
    rows = [
        ("met" if line["met"] else "NOT MET", line["bar"], line["required"], line["measured"])
        for line in lines
    ]
    rows.insert(0, ("", "bar", "required", "measured"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    text = ["  ".join((*map(str.ljust, row, widths), row[3])) for row in rows]
    return [*text, f"{sum(line['met'] for line in lines)} of {len(lines)} bars are met"]
