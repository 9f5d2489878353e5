"""``python -m benchmarks``: list, install, run, bars, workers, capacity, report, chart and more."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import bars, bars_workers, capacity, install, kinds, quick, results
from .matrix import SCENARIOS
from .nodes import local_nodes
from .results import Results
from .rounds import Settings
from .runner import Cell, Runner, matrix, missing
from .systems import ENVIRONMENTS, SYSTEMS

HELD = {"cycles": bars, "workers": bars_workers}
"""What `bars` may judge: each module has CELLS and BARS."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="scenarios, systems and whether they are installed")

    make = commands.add_parser("install", help="make the environments under .bench/")
    make.add_argument("environment", nargs="*", choices=[*ENVIRONMENTS, []], default=[])
    make.add_argument("--again", action="store_true", help="make them anew")

    run = commands.add_parser("run", help="measure scenarios; everything that is not narrowed")
    run.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], default=[])
    run.add_argument("--system", action="append", choices=SYSTEMS, default=[])
    run.add_argument("--nodes", action="append", type=int, choices=(1, 3, 5), default=[])
    run.add_argument("--tasks", action="append", type=int, default=[])
    run.add_argument("--loop", action="append", choices=("asyncio", "uvloop"), default=[])

    held = commands.add_parser("bars", help="measure what asynclock is held to, and judge")
    held.add_argument("about", nargs="?", choices=HELD, default="cycles")
    held.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="cases whose title contains this, such as 'N=5, 100'; written only with --out",
    )
    for parser_ in (run, held):
        _add_settings(parser_)

    for name, help_ in (
        ("report", "write .md and .html"),
        ("chart", "draw headline.svg and all.svg, or waiting.svg"),
    ):
        drawn = commands.add_parser(name, help=f"{help_} from a result, the newest by default")
        drawn.add_argument("json", nargs="?", type=Path)
    looping = commands.add_parser("workers", help="looping workers in some processes, quickly")
    quick.add_arguments(looping)
    capacity.add_arguments(commands.add_parser("capacity", help="what locks cost, for planning"))
    count = commands.add_parser("instructions", help="instructions of a cycle against the record")
    count.add_argument("--record", action="store_true", help="make this figure the record")
    return parser.parse_args(argv)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    usual = Settings()
    names = ("rounds", "seconds", "warmup", "ttl", "max_ttl", "hold_seconds", "handovers", "votes")
    for name in names:
        value = getattr(usual, name)
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=type(value), default=value, help=f"default {value}")
    parser.add_argument(
        "--without-missing", action="store_true", help="go on without systems that lack packages"
    )
    parser.add_argument("--here", action="store_true", help="all systems in this interpreter")
    parser.add_argument("--out", type=Path, help="without suffix; default results/<date>")


def _settings(arguments: argparse.Namespace) -> Settings:
    chosen = {
        name: getattr(arguments, name) for name in vars(Settings()) if hasattr(arguments, name)
    }
    return replace(Settings(), **chosen)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse(cells: Sequence[Cell], arguments: argparse.Namespace) -> bool:
    """Say which systems can't run; a comparison that lacks half of its peers misleads."""
    absent = [] if arguments.here or arguments.without_missing else missing(cells)
    if absent:
        _say(f"not installed: {', '.join(system.name for system in absent)}")
        _say(f"to install them: {install.how(absent)}")
        _say("to measure the others: --without-missing, or name systems with --system")
    return bool(absent)


async def _measure(cells: Sequence[Cell], arguments: argparse.Namespace) -> Results:
    most = max(cell.case.nodes for cell in cells)
    async with local_nodes(most) as nodes:
        runner = Runner(nodes, _settings(arguments), _say, here=arguments.here)
        return await runner.run(cells)


def _write(measured: Results, out: Path | None) -> None:
    from .report import write

    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d-%H%M")
    target = out or results.HERE / stamp
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".json").write_text(measured.to_json())
    write(measured, target)
    _say(f"written: {target}.json, .md, .html")


def _list() -> None:
    for name, scenario in SCENARIOS.items():
        purpose = (scenario.run.__doc__ or "").strip()
        print(f"{name:12} N={scenario.nodes} tasks={scenario.tasks}  {purpose}")
    print()
    for name, system in SYSTEMS.items():
        ready = "ready" if install.command(system, "asyncio") else "not installed"
        print(f"{name:20} N={system.nodes}  {ready:13}  {system.label}")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    match arguments.command:
        case "list":
            _list()
        case "install":
            chosen = arguments.environment or list(ENVIRONMENTS)
            for name, state in install.install(chosen, arguments.again).items():
                print(f"{name:12} {state}")
        case "run":
            chosen = arguments.scenario or list(SCENARIOS)
            cells = matrix(
                chosen, arguments.system, arguments.nodes, arguments.tasks, arguments.loop
            )
            if _refuse(cells, arguments):
                return 1
            _write(asyncio.run(_measure(cells, arguments)), arguments.out)
        case "bars":
            return _judge(arguments)
        case "report" | "chart":
            _draw(arguments)
        case "workers":
            return quick.main(arguments)
        case "capacity":
            return capacity.main(arguments)
        case "instructions":
            from .instructions import check

            return check(record=arguments.record)
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    """Measure the cases of a group, print the table of its bars, and write the result."""
    held = HELD[arguments.about]
    cells: Sequence[Cell] = held.CELLS
    judged: Sequence[kinds.Bar] = held.BARS
    if arguments.only:
        cells = [cell for cell in cells if any(text in str(cell.case) for text in arguments.only)]
        judged = kinds.about(judged, [cell.case for cell in cells])
    if not cells:
        _say(f"no case contains any of {arguments.only}")
        return 1
    if _refuse(cells, arguments):
        return 1
    measured = asyncio.run(_measure(cells, arguments))
    measured.bars = kinds.judge(measured, judged)
    print("\n".join(kinds.table(measured.bars)))
    # A part is no result that the report or the picture may take for the newest.
    if arguments.out or not arguments.only:
        _write(measured, arguments.out)
    return 0


def _draw(arguments: argparse.Namespace) -> None:
    source = arguments.json or results.latest()
    measured = Results.from_json(source.read_text())
    if arguments.command == "report":
        from .report import write

        write(measured, source.with_suffix(""))
        return
    from . import chart, chart_workers, words

    if any(case.scenario == chart_workers.SCENARIO for case in measured.cases()):
        chart_workers.draw(measured, results.HERE / "waiting.svg")
    else:
        chart.headline(measured, results.HERE / "headline.svg")
        chart.draw(measured, results.HERE / "all.svg")
        print(words.readme(measured, source.stem))


if __name__ == "__main__":
    sys.exit(main())
