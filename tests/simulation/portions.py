"""What one process of many plays of a range of seeds."""

from collections import Counter

from tests.simulation.scenario import play

PORTION = 50
Played = tuple[int, Counter[str], list[tuple[int, str, str]]]
"""How many seeds, what took place in them, and (seed, plan, violation) of those that failed."""


def portion(task: tuple[int, int, str]) -> Played:
    """Play some seeds, one after the other."""
    first, count, plan = task
    counts: Counter[str] = Counter()
    failed = []
    for seed in range(first, first + count):
        found = play(seed, plan)
        counts += found.counts
        counts[f"plan {found.plan}"] += 1
        if found.violations:
            failed.append((seed, found.plan, found.violations[0]))
    return count, counts, failed
