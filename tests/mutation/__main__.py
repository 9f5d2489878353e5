"""Play mutants of the library and see whether tests fail: `nox -s mutation -- --help`."""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from tests.mutation import draw, score
from tests.mutation.mutant import ROOT, Mutant
from tests.mutation.reach import Reach
from tests.mutation.runner import EACH, Outcome, Runner, runner

HOUR = 3600.0
SCORE = 0.80
"""What a good tree is sure to have: see docs/mutations.md."""


def play(run: Runner, mutants: Iterable[Mutant], seconds: float, *, verbose: bool) -> list[Outcome]:
    """Play mutants, and tell of each."""
    outcomes = []
    for number, one in enumerate(run.outcomes(mutants, seconds), 1):
        outcomes.append(one)
        said = one.catcher or next(reversed(one.output.splitlines()), "")
        print(f"{number} {one.status} {one.seconds:.1f} s  {one.mutant}  {said}", flush=True)
        if verbose:
            print("\n".join(one.output.splitlines()[-60:]), flush=True)
    return run.doubted(outcomes)


def tell(outcomes: list[Outcome]) -> bool:
    """Print what a run found; return whether it is good enough."""
    counted, survivors = score.counted(outcomes), score.survivors(outcomes)
    allowed = score.most_survivors(len(counted), SCORE)
    if survivors:
        print("\nNo test noticed these mutants; to play them again:\n")
        names = " ".join(shlex.quote(one.mutant.name) for one in survivors)
        print(f"nox -s mutation -- --only {names}\n")
        print("\n".join(f"{one.status}: {one.mutant}" for one in survivors))
    caught = len(counted) - len(survivors)
    rate = f"{caught / max(1, len(counted)):.1%}"
    print(f"\n{rate} of {len(counted)} mutants were caught; at most {allowed} may survive.")
    return len(survivors) <= allowed


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="nox -s mutation --")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no mutant after these")
    parser.add_argument("--count", type=int, help="the most mutants to play")
    parser.add_argument("--changed", nargs="?", const="HEAD~1", help="of lines that differ from it")
    parser.add_argument("--only", nargs="+", default=[], help="mutants, by their names")
    parser.add_argument("--night", action="store_true", help="an hour, others each night")
    parser.add_argument("--match", default="", help="only files with this in their path")
    parser.add_argument("--each", type=float, default=EACH, help="seconds of tests for each")
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1)
    parser.add_argument("--report", type=Path, help="write the result to this page")
    parser.add_argument("--verbose", action="store_true", help="show what pytest said")
    options = parser.parse_args()
    if options.only:
        found = draw.named(options.only)
    else:
        found = draw.changed(options.changed) if options.changed else draw.everything()
    mutants = [one for one in found if options.match in one.file]
    seed, skipped, seconds = options.seed, 0, options.seconds
    if options.night:
        seed, skipped, seconds = 0, datetime.now(UTC).toordinal() * draw.PER_NIGHT, HOUR
    print(f"{len(mutants)} mutants, in the order of seed {seed}", flush=True)
    reach = Reach()
    with runner(options.jobs, reach, options.each) as run:
        drawn = islice(draw.shuffled(mutants, seed, skipped), options.count)
        outcomes = play(run, drawn, seconds, verbose=options.verbose)
    good = tell(outcomes)
    if options.report:
        head = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        score.write(options.report, outcomes, seed, commit.strip())
    if options.only:
        return int(any(not one.caught for one in outcomes))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
