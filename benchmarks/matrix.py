"""All scenarios: what a whole run measures of each, and what its table tells a user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .results import Sample
from .rounds import Round
from .scenarios import (
    cold,
    cycle,
    frozen,
    handover,
    hot,
    hot4,
    killed,
    memory,
    new,
    orphan,
    renewal,
    restarting,
    slow,
    waiters,
)
from .systems import ON_ONE_NAME, System


@dataclass(frozen=True)
class Scenario:
    """A scenario and the cells of the matrix that a whole run measures."""

    run: Callable[[Round], Awaitable[Sample]]
    metric: str
    """The figure that charts and tables show first."""
    nodes: tuple[int, ...]
    tasks: tuple[int, ...]
    contends: bool = False
    renews: bool = False
    least_nodes: int = 1
    """With fewer there is no majority left."""
    systems: tuple[str, ...] = ()
    """Where it compares variants of one system; else all systems."""
    loops: tuple[str, ...] = ("asyncio",)

    def measures(self, system: System) -> bool:
        """Whether it makes sense for this system."""
        return (system.contends or not self.contends) and (system.renews or not self.renews)


BOTH = ("asyncio", "uvloop")
SCENARIOS = {
    "cycle": Scenario(cycle, "cycles_per_s", (1, 3, 5), (1, 10, 100, 1000), loops=BOTH),
    "new": Scenario(new, "cycles_per_s", (1, 5), (100,)),
    "guards": Scenario(
        cycle, "cycles_per_s", (1, 5), (100,), systems=("asynclock", "asynclock-unguarded")
    ),
    "observers": Scenario(
        cycle, "cycles_per_s", (1, 5), (100,), systems=("asynclock", "asynclock-observed")
    ),
    "hot": Scenario(
        hot, "cycles_per_s", (1, 3, 5), (100,), contends=True, systems=ON_ONE_NAME, loops=BOTH
    ),
    "hot4": Scenario(hot4, "cycles_per_s", (1, 5), (100,), contends=True),
    "share": Scenario(hot4, "least_share", (1, 5), (100,), contends=True),
    "handover": Scenario(handover, "handover_p50_ms", (1, 5), (2,), contends=True),
    "orphan": Scenario(orphan, "late_ms", (1, 5), (2,), contends=True),
    "waiters": Scenario(waiters, "commands_per_s_and_node", (1, 5), (1000,), contends=True),
    "frozen": Scenario(frozen, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "slow": Scenario(slow, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "renewal": Scenario(renewal, "cores_percent", (1, 3), (1000, 10_000), renews=True),
    "memory": Scenario(memory, "bytes_per_lease", (1, 5), (5000,)),
    "cold": Scenario(cold, "cold_ms", (1, 5), (1,)),
    # Last: their nodes are young afterwards, and the next scenario has to wait for them.
    "killed": Scenario(killed, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "restarting": Scenario(restarting, "gap_ms", (1, 5), (10,)),
}

TELLS = {
    "cycle": "How long a free lock takes, and how many locks one process takes a second.",
    "new": "What a lock costs whose name comes once, such as a request's id, and how much memory of"
    " each node its name uses afterwards.",
    "guards": "What the guards against restarts and clock jumps cost.",
    "observers": "What an observer costs: logs and metrics are observers.",
    "hot": "How fast the tasks of one process share one name. asynclock passes its lease from task"
    " to task, and a peer asks the servers each time. These pairs do the same work: asynclock and a"
    " peer behind a local lock; asynclock without hand-over and a peer.",
    "hot4": "How fast four processes share one name.",
    "share": "Whether each of four processes gets its part of a name that all of them want.",
    "handover": "How long a name is unused between its release in one process and the next body in"
    " another process.",
    "orphan": "How long a name stays unused after the lease of a dead process has ended.",
    "waiters": "How much work tasks that only wait are for a node.",
    "frozen": "What callers notice while one of the nodes hangs.",
    "slow": "What callers notice while one of the nodes is slow.",
    "renewal": "What thousands of held leases cost the process that renews them.",
    "memory": "How much memory a held lease uses in its process.",
    "cold": "How long a program that has just started waits for its first lock.",
    "killed": "What callers notice while one of the nodes is dead.",
    "restarting": "The longest pause that callers notice while a node restarts.",
}
"""What a user learns from the table of each scenario."""
