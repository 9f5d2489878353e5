"""The performance bars of asynclock: what is measured for them, and their limits."""

from __future__ import annotations

from collections.abc import Sequence

from .kinds import (
    OURS,
    as_healthy,
    at_most,
    cheap,
    client_cpu,
    least_share,
    never,
    no_more,
    of_case,
    reported,
    times_faster,
    trips,
    two_round_trips,
)
from .results import Case
from .runner import Cell
from .systems import FLOOR, FLOOR_QUEUED, FLOOR_SCRIPTS, FLOOR_WAITING, PYTHON_REDLOCKS

NODES = ("node-redlock", "redis-semaphore")
WIDE, ONE = Case("cycle", 5, 100), Case("cycle", 5, 1)
WIDE_SINGLE, ONE_SINGLE = Case("cycle", 1, 100), Case("cycle", 1, 1)
WIDE_UV, WIDE_SINGLE_UV = Case("cycle", 5, 100, "uvloop"), Case("cycle", 1, 100, "uvloop")
GUARDS = Case("guards", 5, 100)
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
FAR, FAR_FIVE = Case("far", 1, 1), Case("far", 5, 1)
NAMES, START = Case("names", 1, 1_000_000), Case("start", 1, 1)
NEW = Case("new", 1, 100)
THREAD, THREADS, THREAD_FIVE = Case("threads", 1, 1), Case("threads", 1, 32), Case("threads", 5, 1)
SPREAD, ACKED, SHARDED = Case("cycle4", 5, 100), Case("acked", 1, 100), Case("sharded", 1, 100)
BODIES = 20_000
"""Maximum number of other processes' bodies during one wait; they take about 0.2 s. A process that
knows of no waiter keeps a name for 0.1 s."""

SINGLE = ("redis-py", "coredis", *NODES)
"""The peers on one server. The Redlocks of Python are slower there than these."""
REDLOCKS = (*PYTHON_REDLOCKS, *NODES)
_VARIANTS = (OURS, "asynclock-strict", "asynclock-apart")


def _queued(peers: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{peer}-queued" for peer in peers)


_FIVE = (("rounds", 5),)
# The pace of one task varies with the load of the machine: in short rounds the floor was slower.
_LONG = (("rounds", 5), ("seconds", 1.5))
_FEW = (("rounds", 2), ("seconds", 2.0))
_TWICE = (("rounds", 2),)
_ONCE = (("rounds", 1),)
_LONG_ONCE = (("rounds", 1), ("seconds", 6.0))
_SHORT = (("rounds", 2), ("ttl", 2.0))
# A node that was restarted may vote after this max_ttl: nobody waits for a longer silence.
_BRIEF = (("rounds", 2), ("ttl", 2.0), ("max_ttl", 2.0))
CELLS = (
    # One server first: meanwhile the others become old enough to vote.
    Cell(WIDE_SINGLE, (OURS, FLOOR, "gather", *SINGLE), _FIVE),
    Cell(WIDE, (OURS, FLOOR, FLOOR_SCRIPTS, "gather", *REDLOCKS), _FIVE),
    Cell(WIDE_SINGLE_UV, (OURS, FLOOR, "redis-py"), _FIVE),
    Cell(WIDE_UV, (OURS, FLOOR, FLOOR_SCRIPTS, *PYTHON_REDLOCKS)),
    Cell(SPREAD, (OURS,), _FIVE),
    Cell(ACKED, (OURS, FLOOR), _FIVE),
    Cell(SHARDED, (OURS, FLOOR), _FIVE),
    # The floor is called in the same way: from threads, into a loop in another thread.
    Cell(THREAD, (OURS, FLOOR, FLOOR_SCRIPTS, "redis-py"), _LONG),
    Cell(THREADS, (OURS, FLOOR, FLOOR_SCRIPTS, "redis-py"), _LONG),
    Cell(THREAD_FIVE, (OURS, "pottery"), _LONG),
    Cell(ONE_SINGLE, (OURS, FLOOR, "redis-py", *NODES), _LONG),
    Cell(ONE, (OURS, FLOOR, FLOOR_SCRIPTS, *REDLOCKS), _LONG),
    Cell(GUARDS, (OURS, "asynclock-unguarded"), _LONG),
    Cell(HOT, (*_VARIANTS, FLOOR_QUEUED, *SINGLE, *_queued(SINGLE))),
    Cell(HOT_FIVE, (*_VARIANTS, FLOOR_QUEUED, *REDLOCKS, *_queued(REDLOCKS))),
    Cell(APART, (OURS, *SINGLE), _FEW),
    Cell(APART_FIVE, (OURS, *REDLOCKS), _FEW),
    Cell(SHARE, (OURS,), _LONG_ONCE),
    Cell(SHARE_FIVE, (OURS,), _LONG_ONCE),
    Cell(HAND, (OURS, FLOOR_WAITING, "redis-py", "redis-semaphore"), _TWICE),
    Cell(HAND_FIVE, (OURS, FLOOR_WAITING, "redis-semaphore"), _TWICE),
    Cell(FAR, (OURS, FLOOR), _ONCE),
    Cell(FAR_FIVE, (OURS, FLOOR), _ONCE),
    Cell(START, (OURS,), _ONCE),
    Cell(ORPHAN, (OURS,), _SHORT),
    Cell(ORPHAN_FIVE, (OURS,), _SHORT),
    Cell(WAITERS, (OURS,), (("rounds", 1), ("hold_seconds", 10.0))),
    Cell(WAITERS_FIVE, (OURS,), (("rounds", 1), ("hold_seconds", 10.0))),
    Cell(MEMORY, (OURS,), _TWICE),
    Cell(RENEWAL, (OURS,), (("rounds", 1), ("hold_seconds", 20.0))),
    Cell(NAMES, (OURS,), _ONCE),
    Cell(FROZEN, (OURS,)),
    Cell(FROZEN, REDLOCKS, _ONCE),  # no bar compares them: they are for the picture
    Cell(KILLED, (OURS,), _BRIEF),
    Cell(KILLED, REDLOCKS, _ONCE),
    Cell(NEW, (OURS, FLOOR, *SINGLE), _TWICE),
)
"""All that the bars compare, and some more peers for the picture."""

BARS = (
    times_faster(WIDE, (FLOOR,), 0.6),
    times_faster(WIDE_UV, (FLOOR,), 0.65),
    *(times_faster(case, PYTHON_REDLOCKS, 25) for case in (WIDE, WIDE_UV)),
    times_faster(WIDE, ("node-redlock",), 4),
    times_faster(WIDE, ("gather",), 10),
    *(times_faster(case, (FLOOR,), 0.65) for case in (WIDE_SINGLE, WIDE_SINGLE_UV)),
    times_faster(WIDE_SINGLE, ("node-redlock",), 1.1),
    times_faster(WIDE_SINGLE, ("redis-semaphore",), 1),
    *(times_faster(case, ("redis-py",), 8) for case in (WIDE_SINGLE, WIDE_SINGLE_UV)),
    no_more(WIDE_SINGLE, (FLOOR,), 1.6, "server_us"),
    no_more(WIDE, (FLOOR,), 1.5, "server_us"),
    of_case(SPREAD, WIDE, 1.3, "server_us"),
    *(of_case(case, WIDE_SINGLE, 0.7) for case in (ACKED, SHARDED)),
    times_faster(ACKED, (FLOOR,), 0.5),
    times_faster(SHARDED, (FLOOR,), 0.2),
    no_more(THREAD, ("redis-py",), 1.6),
    times_faster(THREADS, ("redis-py",), 2.5),
    times_faster(THREAD_FIVE, ("pottery",), 2),
    *(client_cpu(case, 20) for case in (WIDE_SINGLE, WIDE_SINGLE_UV)),
    *(client_cpu(case, 25) for case in (WIDE, WIDE_UV)),
    no_more(ONE, (FLOOR,), 1.3),
    no_more(ONE, PYTHON_REDLOCKS, 0.45),
    no_more(ONE_SINGLE, ("redis-py",), 1),
    no_more(WIDE, (FLOOR,), 2.5, "wait_p99_ms"),
    # 40.5 MB after a tenth of the names and 40.6 MB after all of them is flat.
    at_most(NAMES, "client_growth_percent", 2, "%"),
    reported(NAMES, "node_bytes_per_name", "bytes"),
    *(trips(case, "cold_trips", 3) for case in (FAR, FAR_FIVE)),
    *(trips(case, "acquire_trips", 1) for case in (FAR, FAR_FIVE)),
    *(trips(case, "release_trips", 1) for case in (FAR, FAR_FIVE)),
    *(trips(case, "handover_trips", 2) for case in (FAR, FAR_FIVE)),
    at_most(START, "over_redis_ms", 60, "ms"),
    at_most(START, "run_ms", 200, "ms"),
    as_healthy(FROZEN, "cycle_p99_ms", 2),
    as_healthy(FROZEN, "wait_p50_ms", 1.5),
    as_healthy(KILLED, "wait_p50_ms", 1.5),
    at_most(RENEWAL, "cores_percent", 10, "% of a core"),
    never(RENEWAL, "lost"),
    at_most(MEMORY, "bytes_per_lease", 3072, "bytes"),
    cheap(GUARDS, "asynclock-unguarded", 0.05),
    times_faster(HOT, ("redis-py",), 50),
    times_faster(HOT, NODES, 15),
    times_faster(HOT_FIVE, ("pottery",), 100),
    times_faster(HOT_FIVE, ("node-redlock",), 50),
    # Like with like: both keep the name inside the process, or both ask the servers each time.
    times_faster(HOT, _queued(SINGLE), 10),
    times_faster(HOT_FIVE, _queued(REDLOCKS), 10),
    times_faster(HOT, ("redis-py",), 2, "asynclock-apart"),
    times_faster(HOT_FIVE, REDLOCKS, 2, "asynclock-apart"),
    *(times_faster(case, (FLOOR_QUEUED,), 0.65, "asynclock-apart") for case in (HOT, HOT_FIVE)),
    times_faster(APART, SINGLE, 5),
    times_faster(APART_FIVE, REDLOCKS, 5),
    least_share(SHARE, 0.5),
    least_share(SHARE_FIVE, 0.5),
    at_most(SHARE, "waited_bodies", BODIES, "bodies of others"),
    at_most(SHARE_FIVE, "waited_bodies", BODIES, "bodies of others"),
    two_round_trips(HAND, ONE_SINGLE),
    at_most(HAND, "handover_p50_ms", 0.9, "ms"),
    at_most(HAND_FIVE, "handover_p50_ms", 1.5, "ms"),
    *(no_more(case, (FLOOR_WAITING,), 2, "handover_p50_ms") for case in (HAND, HAND_FIVE)),
    at_most(HAND_FIVE, "handover_p99_ms", 20, "ms"),
    at_most(ORPHAN, "late_ms", 200, "ms"),
    at_most(ORPHAN_FIVE, "late_ms", 200, "ms"),
    at_most(WAITERS, "commands_per_s_and_node", 20, "commands/s"),
    at_most(WAITERS_FIVE, "commands_per_s_and_node", 20, "commands/s"),
    *(never(case, "violations") for case in HISTORIES),
)
