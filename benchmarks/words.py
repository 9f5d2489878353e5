"""The README's lines on speed: the machine of a result, some figures, and a link to all of them."""

from __future__ import annotations

from .kinds import OURS
from .results import Case, Results

LEADING = (("five masters", Case("cycle", 5, 100)), ("one server", Case("cycle", 1, 100)))
PEERS = ("redis-semaphore", "node-redlock", "redis-py", "aioredlock")
"""The peers that the README names; the pictures show all."""


def machine(results: Results) -> str:
    """Describe the machine and the versions that the figures depend on."""
    made = results.machine
    nodes = str(made["nodes"]).partition(" (")[0].replace("redis", "Redis")
    return (
        f"{made['processor']}, {made['cores']} cores, {made['system']},"
        f" Python {made['python']}, {nodes}"
    )


def readme(results: Results, name: str) -> str:
    """Return the README's lines on speed for the result that is stored as `name`."""
    date = results.machine["date"].split()[0]
    paces = "; ".join(f"{where}: {_paces(results, case)}" for where, case in LEADING)
    return (
        f"Measured beside other libraries on {date}, on one machine whose cores clients and servers"
        f" share\n({machine(results)}).\n"
        f"[Every bar, met or not](benchmarks/results/{name}.md), and [how](benchmarks/README.md)"
        " to measure:\n\n"
        f"![Acquire and release a second with 100 tasks, {paces}.](benchmarks/results/headline.svg)"
    )


def _paces(results: Results, case: Case) -> str:
    chosen = {
        system: pace.median
        for system in (OURS, *PEERS)
        if (pace := results.spread(case, system, "cycles_per_s"))
    }
    return ", ".join(f"{system} {pace:,.0f}" for system, pace in chosen.items())
