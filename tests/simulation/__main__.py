"""Play many seeds in several processes: `python -m tests.simulation --seeds 1000 --processes 2`.

Prints each seed that fails, with how to play it again, and in the end how often everything took
place. Ends with status 1 if any seed failed.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.records import Findings
from tests.simulation.scenario import play

PORTION = 50
"""Seeds that one process plays in a row."""


def portion(task: tuple[int, int, str]) -> tuple[int, Counter[str], list[tuple[int, str, str]]]:
    """Return how many were played, what took place, and (seed, plan, violation) of each failure."""
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


def portions(options: argparse.Namespace) -> Iterator[tuple[int, int, str]]:
    """All seeds, in portions."""
    end = options.first + options.seeds
    for first in range(options.first, end, PORTION):
        yield first, min(PORTION, end - first), options.plan


def replay(found: Findings) -> str:
    """How a seed failed, with the end of its story."""
    return "\n".join([f"seed {found.seed}, plan {found.plan}", *found.log, *found.violations])


def main() -> int:
    """Play as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first (default: 0)")
    parser.add_argument("--plan", default="", help="one plan for all (default: each seed's own)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seeds == 1:
        found = play(options.first, options.plan)
        print(replay(found))
        return bool(found.violations)
    began, done, failures = time.monotonic(), 0, 0
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(options.processes) as pool:
        playing = [pool.submit(portion, task) for task in portions(options)]
        for played in as_completed(playing):
            count, some, failed = played.result()
            done += count
            counts += some
            failures += len(failed)
            for seed, plan, violation in failed:
                print(f"seed {seed} ({plan}): {violation}", flush=True)
    for what, number in sorted(counts.items()):
        print(f"{number:10}  {what}")
    print(
        f"{done} seeds, {counts['leases']} leases, {failures} failed,"
        f" in {time.monotonic() - began:.0f} s with {options.processes} processes"
    )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
