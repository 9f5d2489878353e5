"""All scenarios: what a whole run measures of each, and what its table tells a user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .costs import far, names, start
from .results import Sample
from .rounds import Round
from .scenarios import (
    acked,
    cold,
    cycle,
    cycle4,
    frozen,
    handover,
    hot,
    hot4,
    killed,
    memory,
    new,
    orphan,
    paced,
    renewal,
    restarting,
    sharded,
    slow,
    threads,
    waiters,
)
from .systems import FLOOR, ON_ONE_NAME, System
from .votes import failing, quitter, together, zones
from .workers import (
    elections,
    managers,
    ordered,
    pauses,
    permits,
    phases,
    workers0,
    workers2,
    workers20,
)


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
    kinds: tuple[str, ...] = ("lock",)
    """The primitives that it uses."""
    tries: bool = False
    """Whether it tries once instead of waiting."""
    least_nodes: int = 1
    """With fewer there is no majority left."""
    systems: tuple[str, ...] = ()
    """Where it compares variants of one system; else all systems."""
    loops: tuple[str, ...] = ("asyncio",)

    def measures(self, system: System) -> bool:
        """Whether it makes sense for this system."""
        if self.tries and not system.tries:
            return False
        if not set(self.kinds) <= set(system.kinds):
            return False
        return (system.contends or not self.contends) and (system.renews or not self.renews)


def _looping(
    run: Callable[[Round], Awaitable[Sample]],
    metric: str,
    nodes: tuple[int, ...],
    processes: tuple[int, ...],
    **more: Any,
) -> Scenario:
    """One looping worker per process: the tasks of the case are the processes."""
    return Scenario(run, metric, nodes, processes, contends=True, **more)


BOTH = ("asyncio", "uvloop")
SCENARIOS = {
    "cycle": Scenario(cycle, "cycles_per_s", (1, 3, 5), (1, 10, 100, 1000), loops=BOTH),
    "new": Scenario(new, "cycles_per_s", (1, 5), (100,)),
    "threads": Scenario(threads, "cycles_per_s", (1, 5), (1, 32), kinds=("thread",)),
    "cycle4": Scenario(cycle4, "server_us", (1, 5), (100,)),
    "acked": Scenario(acked, "cycles_per_s", (1,), (100,), systems=("asynclock", FLOOR)),
    "sharded": Scenario(sharded, "cycles_per_s", (1,), (100,), systems=("asynclock", FLOOR)),
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
    "paced": Scenario(paced, "wait_p50_ms", (1, 5), (1,)),
    "handover": Scenario(handover, "handover_p50_ms", (1, 5), (2,), contends=True),
    "orphan": Scenario(orphan, "late_ms", (1, 5), (2,), contends=True),
    "waiters": Scenario(waiters, "commands_per_s_and_node", (1, 5), (1000,), contends=True),
    "workers20": _looping(workers20, "leases_per_s", (1, 3), (2, 16)),
    "workers2": _looping(workers2, "leases_per_s", (1, 3), (2, 4, 8, 16, 32)),
    "workers0": _looping(workers0, "leases_per_s", (1, 3), (2, 16)),
    "managers": _looping(managers, "leases_per_s", (1, 3), (4, 100)),
    "pauses": _looping(pauses, "wait_p99_ms", (1, 3), (12,)),
    "permits": _looping(permits, "least_share", (1, 3), (8,), kinds=("semaphore",)),
    "elections": _looping(elections, "least_share", (1, 3), (16,), kinds=("election",)),
    "phases": _looping(phases, "least_turns", (1, 3), (8,), kinds=("read", "write")),
    "together": _looping(together, "one_percent", (5,), (16,), tries=True),
    "zones": _looping(zones, "one_percent", (3, 5), (3, 5), tries=True),
    "quitter": _looping(quitter, "late_ms", (1, 5), (2,)),
    "frozen": Scenario(frozen, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "slow": Scenario(slow, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "renewal": Scenario(renewal, "cores_percent", (1, 3), (1000, 10_000), renews=True),
    "memory": Scenario(memory, "bytes_per_lease", (1, 5), (5000,)),
    "far": Scenario(far, "cold_trips", (1, 5), (1,)),
    "names": Scenario(names, "node_bytes_per_name", (1,), (1_000_000,), systems=("asynclock",)),
    "start": Scenario(start, "run_ms", (1,), (1,), systems=("asynclock",)),
    "cold": Scenario(cold, "cold_ms", (1, 5), (1,)),
    # Last: their nodes are young afterwards, and the next scenario has to wait for them.
    "killed": Scenario(killed, "wait_p99_ms", (5,), (10,), least_nodes=3),
    "restarting": Scenario(restarting, "gap_ms", (1, 5), (10,)),
    "failing": _looping(failing, "gap_ms", (3,), (8,), least_nodes=3),
    "ordered": _looping(ordered, "overtaken", (5,), (8,), kinds=("fair_lock",)),
}

TELLS = {
    "cycle": "How long a free lock takes, and how many locks one process takes a second.",
    "new": "What a lock costs whose name comes once, such as a request's id, and how much memory of"
    " each node its name uses afterwards.",
    "threads": "What a free lock takes in code that blocks, and how many threads take a second.",
    "cycle4": "Whether servers need more CPU if four processes share the load of one.",
    "acked": "What it costs to wait for a replica.",
    "sharded": "How many locks one process takes a second from a Cluster.",
    "guards": "What the guards against restarts and clock jumps cost.",
    "observers": "What an observer costs: logs and metrics are observers.",
    "hot": "How fast the tasks of one process share one name. asynclock passes its lease from task"
    " to task, and a peer asks the servers each time. These pairs do the same work: asynclock and a"
    " peer behind a local lock; asynclock without hand-over and a peer.",
    "hot4": "How fast four processes share one name.",
    "share": "Whether each of four processes gets its part of a name that all of them want.",
    "paced": "How long a free lock takes for a process that has not asked for one for some time.",
    "handover": "How long a name is unused between its release in one process and the next body in"
    " another process.",
    "orphan": "How long a name stays unused after the lease of a dead process has ended.",
    "waiters": "How much work tasks that only wait are for a node.",
    "workers20": "What a fleet of workers gets from one busy name, and whether anybody starves.",
    "workers2": "The same with short work, where the cost of waiting itself begins to count.",
    "workers0": "The same without work: only the cost of passing a name on.",
    "managers": "Whether a process with many managers serves each of them.",
    "pauses": "How long workers wait that do something else between their locks.",
    "permits": "Whether processes share the two permits of a semaphore evenly.",
    "elections": "Whether each candidate gets to lead when leaders resign all the time.",
    "phases": "Whether writers and readers of one name both get their turns.",
    "together": "How often a free name stays free although many asked for it, because their votes"
    " were split.",
    "zones": "The same where each process has one node beside it: then each asks that one first.",
    "quitter": "How long a name stays unused when the waiter whose turn it is has died.",
    "frozen": "What callers notice while one of the nodes hangs.",
    "slow": "What callers notice while one of the nodes is slow.",
    "renewal": "What thousands of held leases cost the process that renews them.",
    "memory": "How much memory a held lease uses in its process.",
    "far": "How many round trips each step takes where the servers are far away.",
    "names": "Whether a process grows with the number of names that it has used, and what each name"
    " leaves on a node until its counter expires.",
    "start": "How long `import asynclock` and a job under `asynclock run` take.",
    "cold": "How long a program that has just started waits for its first lock.",
    "killed": "What callers notice while one of the nodes is dead.",
    "restarting": "The longest pause that callers notice while a node restarts.",
    "failing": "How long all workers stand still when a node freezes, dies or comes back.",
    "ordered": "Whether anybody is overtaken in the queue of a fair lock while masters fail.",
}
"""What a user learns from the table of each scenario."""
