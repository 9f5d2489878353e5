"""``python -m benchmarks workers``: one looping worker per process, in seconds and without a file.

For the short loop of someone who changes the queue. The figures that count are those of `run` and
`bars`, which measure in rounds, with peers in environments of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .install import command, command_here
from .nodes import local_nodes
from .results import Case, Sample
from .rounds import Round, Settings
from .systems import SYSTEMS
from .workers import Plan, figures, run

COLUMNS = (
    ("leases/s", "leases_per_s", "{:,.0f}"),
    ("least", "least_share", "{:.2f}"),
    (" most", "most_share", "{:.2f}"),
    ("longest wait", "longest_wait_ms", "{:,.0f} ms"),
    ("p99 wait", "wait_p99_ms", "{:,.1f} ms"),
    ("p50 wait", "wait_p50_ms", "{:,.1f} ms"),
    ("scripts/lease/node", "scripts", "{:.2f}"),
    ("server µs", "server_us", "{:,.0f}"),
    ("server CPU", "server_cores_percent", "{:.0f} %"),
    ("client µs", "client_us", "{:,.0f}"),
    ("violations", "violations", "{:g}"),
    ("errors", "errors", "{:g}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--processes", type=int, nargs="+", default=[16])
    parser.add_argument("--body", type=float, nargs="+", default=[0.002], help="seconds")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=["asynclock"])
    parser.add_argument(
        "--kind",
        nargs="+",
        default=["lock"],
        help="lock, fair_lock, write, read, semaphore, election; the processes take them in turn,"
        " so that 2 writers and 6 readers are: write write read read read read read read",
    )
    parser.add_argument("--pause", type=float, nargs=2, default=(0.0, 0.0), metavar=("LOW", "HIGH"))
    parser.add_argument("--names", type=int, default=1)
    parser.add_argument("--managers", type=int, default=1, help="in each process")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="an argument of asynclock.connect, such as ttl=2",
    )


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        return name, {"True": True, "False": False}.get(value, value)


def main(arguments: argparse.Namespace) -> int:
    """Measure each combination once and print a line for each."""
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"load of this machine: {load} on {os.cpu_count()} cores")
    print("  ".join([f"{'':42}", *(title for title, _, _ in COLUMNS)]))
    asyncio.run(_measure(arguments))
    return 0


async def _measure(arguments: argparse.Namespace) -> None:
    async with local_nodes(max(arguments.nodes)) as nodes:
        for count in arguments.nodes:
            for processes in arguments.processes:
                for body in arguments.body:
                    for name in arguments.system:
                        if count not in SYSTEMS[name].nodes:
                            continue
                        plan = _plan(arguments, body)
                        case = Case("workers", count, processes)
                        await _one(arguments, nodes.first(count), case, name, plan)


def _plan(arguments: argparse.Namespace, body: float) -> Plan:
    return Plan(
        body=body,
        pause=(arguments.pause[0], arguments.pause[1]),
        names=arguments.names,
        kinds=tuple(arguments.kind),
        managers=arguments.managers,
    )


async def _one(
    arguments: argparse.Namespace, nodes: Any, case: Case, name: str, plan: Plan
) -> None:
    system = SYSTEMS[name]
    if system.environment == "asynclock":
        # The servers are seconds old; in `run` and `bars` the guard is on and the runner waits.
        own = {"restart_guard": False, **dict(arguments.set)}
        system = replace(system, options={**system.options, **own})
    argv = command(system, case.loop) or command_here(system, case.loop)
    settings = replace(Settings(), seconds=arguments.seconds)
    await nodes.flush()
    round_ = Round(case, system, nodes, settings, argv, [], f"quick:{name}")
    try:
        async with round_.stack:
            seen = await run(round_, plan)
    finally:
        await asyncio.gather(*(worker.end() for worker in round_.pool))
    title = f"{name} N={case.nodes} P={case.tasks} body={plan.body * 1000:g} ms"
    print(f"{title:42}", *_cells(figures(seen)), sep="  ", flush=True)
    if len(plan.kinds) > 1:
        each = zip(itertools.cycle(plan.kinds), seen.counts, strict=False)
        print("    turns of each:", *(f"{kind} {count}" for kind, count in each))


def _cells(sample: Sample) -> Iterator[str]:
    for title, metric, form in COLUMNS:
        yield (form.format(sample[metric]) if metric in sample else "-").rjust(len(title))
