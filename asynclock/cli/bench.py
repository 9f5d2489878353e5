"""`asynclock bench`: measures the speed of locks with your nodes, network and machine."""

from __future__ import annotations

import asyncio
import secrets
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..manager import LockManager
from ..testing.load import Load, quantile, run_load
from . import _app
from ._output import Status, print_json, print_table
from ._settings import Settings, load

WARM_SECONDS = 0.2


def bench(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL…", help="The nodes.", show_default=False)
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, max=10_000, help="Concurrent tasks.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.05, max=600, help="For each round.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="The result is their median.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: _app.ConfigOption = None,
    prefix: _app.PrefixOption = None,
) -> int:
    """Measure locks on your own nodes, with the load of the project's own benchmarks.

    One task alone shows the latency, many tasks with a name each the throughput, many tasks with
    one name the hand-overs. It loads the nodes as hard as it can. It locks only its own names;
    afterwards a small counter per name is left, which expires by itself.

    Examples:

        asynclock bench redis://localhost

        asynclock bench redis://a redis://b redis://c --tasks 20 --seconds 5
    """
    settings = load(urls, config, prefix)
    rows = asyncio.run(measure(settings, tasks, seconds, rounds))
    if json:
        print_json({"loads": [row.as_json() for row in rows]})
    else:
        titles = ("", "per second", "acquire p50", "p99", "p99.9", "CPU per cycle", "errors")
        print_table(titles, [row.cells() for row in rows])
    return Status.UNREACHABLE if any(row.failed for row in rows) else Status.OK


@dataclass(frozen=True, slots=True)
class Row:
    """The rounds of one kind of load."""

    title: str
    rounds: Sequence[Load]

    @property
    def errors(self) -> dict[str, int]:
        """Number of failed cycles by error, over all rounds."""
        return dict(sum((one.errors for one in self.rounds), start=Counter()))

    @property
    def failed(self) -> bool:
        """Whether no cycle succeeded, so that there is nothing to measure."""
        return not any(one.count for one in self.rounds)

    def figures(self) -> dict[str, float]:
        """Medians over the rounds and latencies over all cycles, in seconds."""
        waits = sorted(wait for one in self.rounds for wait in one.waits)
        return {
            "cycles_per_second": statistics.median(one.count / one.seconds for one in self.rounds),
            "p50": quantile(waits, 0.5),
            "p99": quantile(waits, 0.99),
            "p999": quantile(waits, 0.999),
            "cpu": statistics.median(one.cpu / max(one.count, 1) for one in self.rounds),
        }

    def as_json(self) -> dict[str, Any]:
        """Return the figures under the names of the command's JSON output."""
        known = {} if self.failed else self.figures()
        return {"load": self.title, **known, "errors": self.errors}

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row in the printed table."""
        errors = ", ".join(f"{count} {name}" for name, count in self.errors.items())
        if self.failed:
            return (self.title, "0", "", "", "", "", errors)
        known = self.figures()
        latencies = (f"{known[key] * 1000:.2f} ms" for key in ("p50", "p99", "p999"))
        pace, cpu = f"{known['cycles_per_second']:,.0f}", f"{known['cpu'] * 1e6:.0f} µs"
        return (self.title, pace, *latencies, cpu, errors)


class _Subject:
    def __init__(self, locks: LockManager) -> None:
        self._locks = locks

    async def acquire(self, name: str) -> Any:
        return await self._locks.lock(name).acquire()

    async def release(self, lease: Any) -> None:
        await lease.release()


async def measure(settings: Settings, tasks: int, seconds: float, rounds: int) -> list[Row]:
    """Run three kinds of load in alternating rounds, after a round of warm-up."""
    run = f"bench:{secrets.token_hex(4)}"
    shapes = {
        "1 task": [f"{run}:0"],
        f"{tasks} tasks, own names": [f"{run}:{i}" for i in range(tasks)],
        f"{tasks} tasks, one name": [f"{run}:hot"] * tasks,
    }
    found: dict[str, list[Load]] = {title: [] for title in shapes}
    async with settings.connect() as locks:
        subject = _Subject(locks)
        await run_load(subject, next(iter(shapes.values())), WARM_SECONDS)
        for _ in range(rounds):
            for title, names in shapes.items():
                found[title].append(await run_load(subject, names, seconds))
    return [Row(title, loads) for title, loads in found.items()]
