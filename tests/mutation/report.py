"""The score of a run, and the page `docs/mutations.md`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.runner import CAUGHT, SURVIVED, Outcome
from tests.mutation.table import Change, load

INTRODUCTION = """\
# Deliberate changes, and the tests that catch them

A test that can't fail proves nothing. So the project keeps a table of deliberate changes to the
library, `tests/mutation/changes`: each replaces a few words by others that break something, and
names the tests that must then fail. `nox -s mutation` makes one change after the other in a copy
of the checkout, runs those tests, and writes this page. The part about the pure rules is a test of
its own, and `nox -s floor` runs the part about the scripts: both have a floor, and CI runs them.
`nox -s nightly` ends with the whole table. It takes long, so a run may be of one area
(`nox -s mutation -- --area engine`); each row names the commit that its run was made on.

The table is our own, because the maintained tools for Python change neither Lua nor the order in
which an event loop runs things, and a random change of this code mostly fails to start.
"""
HEAD = (
    "| area | changes | caught | survived | no difference | score | commit |",
    "|---|--:|--:|--:|--:|--:|---|",
)


def wrong(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes that the table does not expect."""
    return [one for one in outcomes if one.status != (SURVIVED if one.change.harmless else CAUGHT)]


def score(outcomes: Sequence[Outcome]) -> float:
    """The share that was caught of the changes that make a difference."""
    counted = [one for one in outcomes if not one.change.harmless]
    return sum(one.status == CAUGHT for one in counted) / max(1, len(counted))


def write(path: str, outcomes: Sequence[Outcome], commit: str) -> None:
    """Write the page; areas that were not run keep what the page says of them."""
    page = Path(path)
    before = page.read_text("utf-8") if page.exists() else ""
    rows = _rows(before)
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.change.area].append(one)
    rows |= {area: _row(area, group, commit) for area, group in groups.items()}
    text = "\n".join([INTRODUCTION, *HEAD, *(rows[area] for area in sorted(rows)), ""])
    text += "\n".join(["", *_survivors(outcomes, before)])
    page.write_text(text.rstrip() + "\n", "utf-8")


def _rows(page: str) -> dict[str, str]:
    """The row of each area on the page."""
    return {row.split()[1]: row for row in page.splitlines() if row.endswith("` |")}


def _row(name: str, group: Sequence[Outcome], commit: str) -> str:
    caught = sum(one.status == CAUGHT and not one.change.harmless for one in group)
    none = sum(bool(one.change.harmless) for one in group)
    left, rate = len(group) - caught - none, f"{score(group):.1%}"
    return f"| {name} | {len(group)} | {caught} | {left} | {none} | {rate} | `{commit}` |"


def _survivors(outcomes: Sequence[Outcome], before: str) -> list[str]:
    lines = []
    ran = {_line(one.change) for one in outcomes}
    kept = {_line(change) for change in load()} - ran
    survived = [line for line in before.splitlines() if line in kept]
    survived += [_line(one.change) for one in wrong(outcomes) if not one.change.harmless]
    if survived:
        lines += ["## Not caught", "", *survived, ""]
    lines += ["## Why the others make no difference", ""]
    lines += [f"{_line(one)}: {one.harmless}" for one in load() if one.harmless]
    return lines


def _line(change: Change) -> str:
    """Return the line that the page has on a change that was not caught."""
    return f"- `{change.file}`: {change.breaks}"
