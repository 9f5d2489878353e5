"""Which tests are chosen for a mutant, from a record."""

import gzip
import json
from pathlib import Path

import pytest

from tests.mutation import population
from tests.mutation.mutant import Mutant
from tests.mutation.reach import Reach
from tests.mutation.runner import chosen

FILE = "asynclock/_rules/quorum.py"
HERE = "tests/mutation/test_reach.py"
THERE = "tests/rules/test_quorum.py"
SLOW, FAST, ELSEWHERE = "test_a_slow_one", "test_a_fast_one", "test_majority"


def test_a_slow_one() -> None:
    """Here to be recorded, as is the next one."""


def test_a_fast_one() -> None: ...


def record(folder: Path, tests: dict[str, tuple[float, list[int]]]) -> Reach:
    path = folder / "reach.json.gz"
    sets = [[FILE, lines] for _, lines in tests.values()]
    found = [[name, seconds, [at]] for at, (name, (seconds, _)) in enumerate(tests.items())]
    with gzip.open(path, "wt") as out:
        json.dump({"sets": sets, "tests": found}, out)
    return Reach(path)


def mutant(old: str) -> Mutant:
    return next(one for one in population.mutants(FILE) if one.old == old)


def test_the_tests_that_run_a_line_come_fastest_first(tmp_path: Path) -> None:
    one = mutant("self.refused += 1")
    reach = record(
        tmp_path,
        {
            f"{HERE}::{SLOW}": (9.0, [one.line]),
            f"{HERE}::{FAST}[a]": (0.3, [one.line]),
            f"{HERE}::{FAST}[b]": (0.2, [one.line]),
            f"{THERE}::{ELSEWHERE}": (0.4, [one.line, one.line + 1]),
            f"{THERE}::{ELSEWHERE}[other]": (0.1, [one.line + 2]),
            f"{THERE}::test_that_has_gone": (0.1, [one.line]),
        },
    )
    cases = [f"{HERE}::{FAST}[b]", f"{THERE}::{ELSEWHERE}", f"{HERE}::{FAST}[a]"]
    assert reach.tests(one) == [*cases, f"{HERE}::{SLOW}"]
    assert chosen(reach, one) == [*cases, f"{HERE}::{SLOW}"]


def test_a_test_that_a_table_makes_is_one(tmp_path: Path) -> None:
    table = "tests/tables/primitives/test_rwlock_replies.py::test_readers_in_memory[a_row]"
    assert table in record(tmp_path, {table: (0.1, [1])}).seconds


def test_what_runs_at_import_is_tested_by_those_who_import_it(tmp_path: Path) -> None:
    one = mutant('"lost"')
    tests = {f"{HERE}::{FAST}": (0.1, [one.line]), f"{THERE}::{ELSEWHERE}": (0.2, [])}
    assert record(tmp_path, tests).tests(one) == [f"{THERE}::{ELSEWHERE}"]


def test_without_a_record_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run `nox -s tests"):
        Reach(tmp_path / "none")
