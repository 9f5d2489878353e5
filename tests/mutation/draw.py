"""Which mutants are played: a draw of all, those of changed lines, or named ones."""

import random
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache

from tests.mutation import lua, python
from tests.mutation.mutant import ROOT, Mutant


def files() -> list[str]:
    """Return the files of the library that have mutants."""
    found = (ROOT / "asynclock").rglob("*")
    return sorted(str(p.relative_to(ROOT)) for p in found if p.suffix in (".py", ".lua"))


@cache
def mutants(file: str) -> tuple[Mutant, ...]:
    """Return the mutants of a file."""
    make = python.mutants if file.endswith(".py") else lua.mutants
    return tuple(make(file, (ROOT / file).read_bytes()))


def compiles(mutant: Mutant) -> bool:
    """Return whether its language can read a mutant: nobody would commit another."""
    reads = python.compiles if mutant.file.endswith(".py") else lua.compiles
    return reads(mutant.apply((ROOT / mutant.file).read_bytes()))


PER_NIGHT = 1500
"""Mutants that a night is to play, so that all have their turn within some weeks."""
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def everything() -> list[Mutant]:
    """Return all mutants of the library."""
    return [mutant for file in files() for mutant in mutants(file)]


def shuffled(found: Iterable[Mutant], seed: int, skipped: int = 0) -> Iterator[Mutant]:
    """Yield mutants in the order of a seed: as many as one takes are a draw without bias.

    skipped: how many of the first ones come last.
    """
    order = sorted(found, key=lambda mutant: (mutant.file, mutant.start, mutant.name))
    random.Random(seed).shuffle(order)
    first = skipped % max(1, len(order))
    return (mutant for mutant in order[first:] + order[:first] if compiles(mutant))


def changed(base: str) -> list[Mutant]:
    """Return the mutants of the lines that differ from a revision; none if it does not exist."""
    known = ["git", "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"]
    if subprocess.run(known, cwd=ROOT, capture_output=True, check=False).returncode:
        print(f"there is no {base}, so nothing has changed since")
        return []
    command = ["git", "diff", "--unified=0", "--no-color", base, "--", "asynclock"]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = new_lines(diff)
    ours = sorted(set(files()) & lines.keys())
    return [one for file in ours for one in mutants(file) if one.line in lines[file]]


def new_lines(diff: str) -> dict[str, set[int]]:
    """Return the numbers of the lines that a diff without context adds to each file."""
    lines: dict[str, set[int]] = defaultdict(set)
    for part in re.split(r"^diff --git .*$", diff, flags=re.MULTILINE):
        if name := re.search(r"^\+\+\+ b/(.+)$", part, re.MULTILINE):
            for first, count in HUNK.findall(part):
                lines[name[1]] |= set(range(int(first), int(first) + int(count or 1)))
    return lines


def named(names: Iterable[str]) -> list[Mutant]:
    """Return the mutants with these names. Raises SystemExit if the code has changed since."""
    found = []
    for name in names:
        ours = [one for one in mutants(name.partition(":")[0]) if one.name == name]
        if not ours:
            raise SystemExit(f"there is no such mutant (any more): {name}")
        found += ours
    return found
