"""Make each change of the table and see whether its tests fail: `python -m tests.mutation`.

Ends with status 1 if a change survived that should be caught, if one was caught that is said to
make no difference, or if the table does not fit the code; with `--floor`, only below that score.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

from tests.mutation import report
from tests.mutation.runner import CAUGHT, Outcome, runner
from tests.mutation.table import ROOT, Change, areas, load


def chosen(options: argparse.Namespace) -> list[Change]:
    """The changes that the command line asks for."""
    return [
        change
        for change in load(options.area)
        if (change.quick or not options.quick)
        and any(word in f"{change.file} {change.breaks}" for word in options.match or [""])
    ]


def misfits(changes: Sequence[Change]) -> list[str]:
    """What is wrong with the table."""
    return [f"{change}: {fault}" for change in changes for fault in change.faults()]


def play(changes: Sequence[Change], options: argparse.Namespace) -> list[Outcome]:
    """Run the changes, and tell of each."""
    outcomes = []
    with runner(options.jobs) as run:
        if not options.skip_baseline:
            run.baseline(changes)
        for number, outcome in enumerate(run.outcomes(changes), 1):
            outcomes.append(outcome)
            place = f"{number}/{len(changes)}"
            print(f"{place} {outcome.status} {outcome.seconds:.1f} s  {outcome.change}", flush=True)
            if options.verbose or outcome.status not in (CAUGHT, "survived"):
                print("\n".join(outcome.output.splitlines()[-60:]), flush=True)
    return outcomes


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--area", default="", choices=["", *areas()], help="one file of changes/")
    parser.add_argument("--quick", action="store_true", help="only those of the pure rules")
    parser.add_argument("--match", nargs="*", help="only those with one of these words")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (default: 1)")
    parser.add_argument("--floor", type=float, default=1.0, help="the score to reach (default: 1)")
    parser.add_argument("--report", help="write the report to this file")
    parser.add_argument("--skip-baseline", action="store_true", help="trust the unchanged tests")
    parser.add_argument("--verbose", action="store_true", help="show what pytest said")
    options = parser.parse_args()
    if options.report and (options.quick or options.match):
        parser.error("a report needs whole areas: leave --quick and --match out")
    changes = chosen(options)
    if wrong := misfits(changes):
        print("\n".join(wrong))
        return 1
    if not changes:
        parser.error("no change is like that")
    outcomes = play(changes, options)
    failed = report.wrong(outcomes)
    for outcome in failed:
        print(f"{outcome.status}, against the table: {outcome.change}")
    counts = Counter(outcome.status for outcome in outcomes)
    score = report.score(outcomes)
    print(f"{score:.1%} of {len(changes)} changes: {dict(counts)}")
    if options.report:
        head = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        report.write(options.report, outcomes, commit.strip())
    return int(score < options.floor or (options.floor == 1.0 and bool(failed)))


if __name__ == "__main__":
    sys.exit(main())
