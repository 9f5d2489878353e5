"""The bars of waiting: pace, fairness and waits of many processes that want one name."""

from __future__ import annotations

from .bars import HAND, HAND_FIVE
from .kinds import OURS, Bar, Verdict, at_most, never, times_faster
from .results import Case, Results
from .runner import Cell
from .systems import FLOOR, PYTHON_REDLOCKS

TURN_MS = 10.0
"""Milliseconds for which a process may keep a name that others wait for: the default `turn`."""
HANDOVER_MS = 3.0
"""Milliseconds from one process's body to the next one's, on a busy machine."""
REDLOCKS = (*PYTHON_REDLOCKS, "node-redlock", "redis-semaphore")


def at_least(case: Case, metric: str, limit: float) -> Bar:
    """Compare one of our figures with a fixed limit."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, OURS, metric)
        return f"{value:,.4g}", value >= limit

    return Bar(f"{case}: {metric}", f"≥ {limit:g}", judge)


def against_case(case: Case, other: Case, metric: str, factor: float) -> Bar:
    """Compare one of our figures with the same figure in another case."""

    def judge(results: Results) -> Verdict:
        value, reference = (results.median(one, OURS, metric) for one in (case, other))
        return f"{value / reference:.3g}× ({value:,.4g}, {reference:,.4g})", (
            value >= factor * reference
        )

    return Bar(f"{case}: {metric}", f"≥ {factor:g}× that of {other}", judge)


def handed_over(case: Case, reference: Case) -> Bar:
    """Compare a hand-over with the floor's acquire, which is one round trip."""

    def judge(results: Results) -> Verdict:
        value = results.median(case, OURS, "handover_p50_ms")
        limit = 1.5 * results.median(reference, FLOOR, "wait_p50_ms") + 0.5
        return f"{value:.3g} ms (limit {limit:.3g} ms)", value <= limit

    return Bar(f"{case}: median", "≤ 1.5 round trips + 0.5 ms", judge)


def waits(case: Case, body_ms: float) -> Bar:
    """Require that everybody waits for everybody else's turn twice at most."""
    turn = max(body_ms, TURN_MS) + HANDOVER_MS
    return at_most(case, "longest_wait_ms", 2 * case.tasks * turn, "ms")


def pace(case: Case, peers: tuple[str, ...], factor: float) -> Bar:
    """Compare our leases per second with those of the fastest peer."""
    return times_faster(case, peers, factor, metric="leases_per_s")


LONG = {(n, p): Case("workers20", n, p) for n in (1, 3) for p in (2, 16)}
SHORT = {(n, p): Case("workers2", n, p) for n in (1, 3) for p in (2, 4, 8, 16, 32)}
EMPTY = Case("workers0", 1, 16)
FEW, MANY = Case("managers", 1, 4), Case("managers", 1, 100)
PAUSES, PAUSES_THREE = Case("pauses", 1, 12), Case("pauses", 3, 12)
PERMITS = tuple(Case("permits", n, 8) for n in (1, 3))
ELECTIONS = tuple(Case("elections", n, 16) for n in (1, 3))
PHASES = tuple(Case("phases", n, 8) for n in (1, 3))
TOGETHER = Case("together", 5, 16)
QUITTERS = tuple(Case("quitter", n, 2) for n in (1, 5))
FAILING = Case("failing", 3, 8)
ORDERED = Case("ordered", 5, 8)
NODE_TIMEOUT_MS = 250.0
"""Milliseconds that a node may take to answer: a failing one delays everybody by this at most."""

PACED, PACED_FIVE = Case("paced", 1, 1), Case("paced", 5, 1)

_RUN = (("rounds", 1), ("seconds", 8.0))
_VOTES = (("rounds", 1), ("votes", 1000))
_ONCE = (("rounds", 1),)
_HANDS = (("rounds", 3),)


def _peers(nodes: int, processes: int) -> tuple[str, ...]:
    """Return the peers of a case; all Redlocks only where a bar compares with them."""
    if nodes == 1:
        return ("redis-py", "redis-semaphore")
    return REDLOCKS if processes == 16 else ("pottery", "redis-semaphore")


CELLS = (
    # Each hand-over follows its round trip, on a machine that is as busy as then.
    Cell(PACED, (FLOOR,), _HANDS),
    Cell(HAND, (OURS, "redis-py", "redis-semaphore"), _HANDS),
    Cell(PACED_FIVE, (FLOOR,), _HANDS),
    Cell(HAND_FIVE, (OURS, "redis-semaphore"), _HANDS),
    *(Cell(case, (OURS, "redis-py"), _RUN) for (n, _), case in LONG.items() if n == 1),
    *(Cell(case, (OURS,), _RUN) for (n, _), case in LONG.items() if n == 3),
    *(Cell(case, (OURS, *_peers(*key)), _RUN) for key, case in SHORT.items()),
    Cell(EMPTY, (OURS, "redis-py"), _RUN),
    Cell(FEW, (OURS,), _RUN),
    Cell(MANY, (OURS,), _RUN),
    Cell(PAUSES, (OURS, "redis-py"), _RUN),
    Cell(PAUSES_THREE, (OURS,), _RUN),
    *(Cell(case, (OURS, "redis-semaphore"), _RUN) for case in PERMITS),
    *(Cell(case, (OURS,), _RUN) for case in (*ELECTIONS, *PHASES)),
    Cell(TOGETHER, (OURS, "pottery", "node-redlock"), _VOTES),
    *(Cell(case, (OURS,), _ONCE) for case in QUITTERS),
    Cell(FAILING, (OURS, "pottery", "redis-semaphore"), _RUN),
    Cell(ORDERED, (OURS,), _RUN),
)
"""What the bars below compare, and the points of the picture."""

BARS = (
    *(at_least(case, "least_share", 0.9) for case in LONG.values()),
    *(waits(case, 20) for case in LONG.values()),
    *(pace(case, ("redis-py",), 0.95) for (n, _), case in LONG.items() if n == 1),
    *(at_least(case, "least_share", 0.85) for case in SHORT.values()),
    *(waits(case, 2) for case in SHORT.values()),
    pace(SHORT[1, 16], ("redis-py",), 1.0),
    pace(SHORT[3, 16], REDLOCKS, 3.0),
    *(at_most(SHORT[1, p], "scripts", 4, "per lease and node") for p in (2, 4, 8, 16, 32)),
    *(at_most(SHORT[3, p], "scripts", 6, "per lease and node") for p in (2, 4, 8, 16, 32)),
    pace(EMPTY, ("redis-py",), 1.4),
    at_least(EMPTY, "least_share", 0.8),
    against_case(MANY, FEW, "leases_per_s", 0.8),
    at_least(MANY, "least_share", 0.1),
    # What the lock made against redis-py's before it had a queue.
    pace(PAUSES, ("redis-py",), 2.3),
    at_most(PAUSES, "wait_p99_ms", 60, "ms"),
    at_most(PAUSES_THREE, "wait_p99_ms", 80, "ms"),
    at_least(TOGETHER, "one_percent", 99.9),
    never(TOGETHER, "violations"),
    handed_over(HAND, PACED),
    handed_over(HAND_FIVE, PACED_FIVE),
    *(at_most(case, "late_ms", 2000, "ms") for case in QUITTERS),
    *(at_most(case, "frozen_late_ms", 2000, "ms") for case in QUITTERS),
    at_most(FAILING, "gap_ms", NODE_TIMEOUT_MS, "ms"),
    never(FAILING, "violations"),
    never(ORDERED, "overtaken"),
    *(at_least(case, "least_turns", 0.5) for case in PHASES),
    *(at_least(case, "least_share", 0.7) for case in (*PERMITS, *ELECTIONS)),
    *(never(case, "violations") for case in (*LONG.values(), *SHORT.values(), EMPTY, *ELECTIONS)),
)
