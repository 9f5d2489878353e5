"""Writes a result as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import plotly.graph_objects as go

from .matrix import SCENARIOS, TELLS
from .results import Case, Results
from .systems import SYSTEMS

COLUMNS = {
    "cycles_per_s": "cycles/s",
    "wait_p50_ms": "acquire p50 ms",
    "wait_p99_ms": "p99 ms",
    "wait_p999_ms": "p99.9 ms",
    "cycle_p50_ms": "cycle p50 ms",
    "client_us": "client CPU µs/cycle",
    "server_us": "server CPU µs/cycle",
    "commands": "commands/cycle",
}
"""What a table of cycles shows; other scenarios show all that they measure."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right }
th:first-child, td:first-child { text-align: left }
.no { color: #b00020; font-weight: 600 }
"""
_COLOURS = (
    "#0b7285", "#868e96", "#adb5bd", "#e8590c", "#f59f00",
    "#9c36b5", "#c2255c", "#a61e4d", "#2b8a3e", "#5c940d", "#1098ad",
)  # fmt: skip

Table = tuple[list[str], list[list[str]]]


def write(results: Results, target: Path) -> None:
    """Write ``target`` with the suffixes .md and .html."""
    target.with_suffix(".md").write_text(markdown(results))
    target.with_suffix(".html").write_text(page(results))


def label(system: str) -> str:
    return SYSTEMS[system].label if system in SYSTEMS else system


def colour(system: str) -> str:
    """Each system has one colour in all charts, and its variants have the same."""
    order = [name for name, known in SYSTEMS.items() if known.variant_of is None]
    system = (SYSTEMS[system].variant_of or system) if system in SYSTEMS else system
    return _COLOURS[order.index(system) % len(_COLOURS)] if system in order else "#868e96"


def facts(results: Results) -> Iterator[tuple[str, str]]:
    """The machine, the settings and what each system was made of."""
    yield from ((key, str(value)) for key, value in results.machine.items())
    yield "settings", ", ".join(f"{key} {value}" for key, value in results.settings.items())
    for system, versions in results.versions.items():
        yield label(system), ", ".join(f"{name} {version}" for name, version in versions.items())
    for system, problem in results.problems.items():
        yield f"not measured: {system}", problem


def bars_table(results: Results) -> Table:
    rows = [
        [bar["bar"], bar["required"], bar["measured"], "met" if bar["met"] else "not met"]
        for bar in results.bars
    ]
    return ["bar", "required", "measured", ""], rows


def case_table(results: Results, case: Case) -> Table:
    """One line per system: medians, and the spread of the leading figure."""
    leading = SCENARIOS[case.scenario].metric
    found = dict.fromkeys(
        name for system in results.systems(case) for name, _ in results.metrics(case, system)
    )
    # The scenario's own figures first; a table of cycles has too many for one line.
    shown = [name for name in found if name in COLUMNS or "cycles_per_s" not in found]
    if leading not in shown:
        shown.append(leading)
    rows = []
    for system in results.systems(case):
        figures = [_figure(results.median(case, system, name)) for name in shown]
        spread = results.spread(case, system, leading)
        between = f"{_figure(spread.low)} – {_figure(spread.high)}" if spread else ""
        rows.append([label(system), *figures, between])
    names = [COLUMNS.get(name, name) for name in shown]
    return ["system", *names, f"{COLUMNS.get(leading, leading)}: spread"], rows


def _figure(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def markdown(results: Results) -> str:
    parts = [f"# Benchmarks of {results.machine['date']}\n"]
    if results.bars:
        parts += ["## Bars\n", _markdown_table(bars_table(results))]
    for case in results.cases():
        parts += [f"## {case}\n", _purpose(case) + "\n", _markdown_table(case_table(results, case))]
    parts += ["## Made with\n", _markdown_table((["", ""], [list(f) for f in facts(results)]))]
    return "\n".join(parts)


def _purpose(case: Case) -> str:
    """What a user learns from a table, then how it was measured."""
    return f"{TELLS[case.scenario]} {(SCENARIOS[case.scenario].run.__doc__ or '').strip()}"


def _markdown_table(table: Table) -> str:
    heads, rows = table
    lines = [heads, ["---", *("--:" for _ in heads[1:])], *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def page(results: Results) -> str:
    """Charts by scenario, then every table."""
    body = ["<h1>Benchmarks</h1>"]
    if results.bars:
        body += ["<h2>Bars</h2>", _html_table(bars_table(results))]
    scripts: bool | str = True  # the library goes into the page once
    for scenario in dict.fromkeys(case.scenario for case in results.cases()):
        for figure in _charts(results, scenario):
            body.append(figure.to_html(full_html=False, include_plotlyjs=scripts))
            scripts = False
    for case in results.cases():
        body += [f"<h3>{html.escape(str(case))}</h3>", f"<p>{html.escape(_purpose(case))}</p>"]
        body.append(_html_table(case_table(results, case)))
    made = [list(fact) for fact in facts(results)]
    body += ["<h2>Made with</h2>", _html_table((["", ""], made))]
    head = f"<meta charset=utf-8><title>asynclock benchmarks</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>\n"


def _charts(results: Results, scenario: str) -> Iterable[go.Figure]:
    """One chart per loop: the leading figure of each system over the cases."""
    cases = [case for case in results.cases() if case.scenario == scenario]
    metric = SCENARIOS[scenario].metric
    for loop in dict.fromkeys(case.loop for case in cases):
        chosen = [case for case in cases if case.loop == loop]
        figure = go.Figure()
        for system in dict.fromkeys(s for case in chosen for s in results.systems(case)):
            figure.add_trace(_trace(results, chosen, system, metric))
        title = f"{scenario}, {loop}: {COLUMNS.get(metric, metric)}"
        figure.update_layout(barmode="group", template="plotly_white", title=title, height=420)
        if metric == "cycles_per_s":
            figure.update_yaxes(type="log")  # three orders of magnitude between the systems
        yield figure


def _trace(results: Results, cases: Sequence[Case], system: str, metric: str) -> go.Bar:
    spreads = {case: s for case in cases if (s := results.spread(case, system, metric))}
    return go.Bar(
        name=label(system),
        marker_color=colour(system),
        x=[f"N={case.nodes}, {case.tasks:,}" for case in spreads],
        y=[s.median for s in spreads.values()],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [s.high - s.median for s in spreads.values()],
            "arrayminus": [s.median - s.low for s in spreads.values()],
        },
    )


def _html_table(table: Table) -> str:
    heads, rows = table
    lines = ["<tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in heads) + "</tr>"]
    for row in rows:
        kind = ' class="no"' if row[-1] == "not met" else ""
        lines.append(f"<tr{kind}>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>")
    return f"<table>{''.join(lines)}</table>"
