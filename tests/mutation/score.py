"""What a draw says: its score, whether that is too low, and the page `docs/mutations.md`."""

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

from tests.mutation.mutant import Mutant
from tests.mutation.runner import DOUBTFUL, Outcome

ACCEPTED = Path(__file__).with_name("accepted.toml")
CHANCE = 0.001
"""A good tree fails one run of a thousand."""


@dataclass(frozen=True)
class Acceptance:
    """Why the mutants that an operator makes in a function may survive."""

    file: str
    function: str
    operator: str
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        """Return whether a mutant is of that function and operator."""
        mine = (self.file, self.function, self.operator)
        return mine == (mutant.file, mutant.place.function, mutant.operator)


def acceptances() -> list[Acceptance]:
    """Return the list of survivors that make no difference."""
    return [Acceptance(**one) for one in tomllib.loads(ACCEPTED.read_text("utf-8"))["accepted"]]


def counted(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that count: no doubtful ones, no survivors that make no difference."""
    known = acceptances()
    return [
        one
        for one in outcomes
        if one.status != DOUBTFUL
        and (one.caught or not any(other.covers(one.mutant) for other in known))
    ]


def survivors(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return what no test caught and nobody accepted."""
    return [one for one in counted(outcomes) if not one.caught]


def most_survivors(drawn: int, score: float) -> int:
    """Return how many of a draw may survive: more are improbable if the true score is this one.

    The number of survivors is then a binomial one; more than this have a chance below `CHANCE`.
    """
    chance, number = 0.0, -1
    while chance < 1 - CHANCE and number < drawn:
        number += 1
        chance += comb(drawn, number) * (1 - score) ** number * score ** (drawn - number)
    return number


def write(page: Path, outcomes: Sequence[Outcome], seed: int, commit: str) -> None:
    """Write the tables of a draw below the text of the page."""
    head, mark, _ = page.read_text("utf-8").partition("## The draw\n")
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for one in counted(outcomes):
        groups[_package(one.mutant)].append(one)
    ours = [one for group in groups.values() for one in group]
    rows = [_row(name, groups[name]) for name in sorted(groups)]
    lines = [
        head + mark,
        f"Seed {seed}, commit `{commit}`, {len(outcomes)} mutants, {len(ours)} of them count.",
        "",
        "| package | mutants | caught | score |",
        "|---|--:|--:|--:|",
        *rows,
        _row("**all**", ours),
    ]
    page.write_text("\n".join(lines) + "\n", "utf-8")


def _package(mutant: Mutant) -> str:
    if mutant.file.endswith(".lua"):
        return "Lua"
    parts = Path(mutant.file).parts
    return f"`{parts[1]}`" if len(parts) > 2 else "`asynclock`"


def _row(name: str, group: Sequence[Outcome]) -> str:
    caught = sum(one.caught for one in group)
    return f"| {name} | {len(group)} | {caught} | {caught / len(group):.1%} |"
