"""The table of deliberate changes fits the code, and the pure rules' tests catch theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import unmeasured
from tests.mutation import report
from tests.mutation.runner import CAUGHT, SURVIVED, Outcome
from tests.mutation.table import ROOT, Change, areas, irreversible, load

FAULTS = ROOT / "docs" / "faults.md"
FLOOR = "0.95"


@pytest.mark.parametrize("area", areas())
def test_each_old_text_occurs_once(area: str) -> None:
    """Every change still fits the source; one that doesn't would never be caught."""
    assert [f"{one}: {fault}" for one in load(area) for fault in one.faults()] == []


def test_a_table_that_does_not_fit_is_an_error() -> None:
    fits = load("rules")[0]
    lost = Change(fits.area, fits.file, "no such text", "", "nothing", fits.tests)
    assert "0 times" in next(lost.faults())
    for test in ("tests/rules/nowhere.py", "tests/test_mutation_table.py::test_" + "nothing"):
        untested = Change(fits.area, fits.file, fits.old, fits.new, "nothing", (test,))
        assert f"there is no {test}" in untested.faults()
    for area in ("rules", "scripts"):
        fits = load(area)[0]
        unreadable = Change(fits.area, fits.file, fits.old, "(", "the syntax", fits.tests)
        assert "nothing can read" in next(unreadable.faults())


def test_the_fix_of_each_fault_is_taken_back() -> None:
    """A fault whose fix nobody misses in the tests is not fixed."""
    rows = [line for line in FAULTS.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
    fixed = {one.fault for one in load()} | set(irreversible())
    assert [row for row in rows if row.rsplit(" | ", 1)[1].strip(" |") not in fixed] == []


def test_a_run_of_one_area_keeps_what_the_page_says_of_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    ours, other = load("rules")[0], load("scripts")[0]
    outcomes = [Outcome(one, SURVIVED, 1.0, "") for one in (ours, other)]
    report.write(str(page), outcomes, "1111111")
    report.write(str(page), [Outcome(ours, CAUGHT, 1.0, "")], "2222222")
    text = page.read_text("utf-8")
    assert (ours.breaks in text, other.breaks in text) == (False, True)
    assert text.count("| scripts | 1 | 0 | 1 | 0 | 0.0% | `1111111` |") == 1
    assert text.count("| rules | 1 | 1 | 0 | 0 | 100.0% | `2222222` |") == 1


@pytest.mark.timeout(600)
def test_the_rules_tests_catch_what_is_changed() -> None:
    options = ["--quick", "--skip-baseline", "--floor", FLOOR, "--jobs", "2"]
    run = [sys.executable, "-m", "tests.mutation", *options]
    alone = unmeasured.environment()
    ended = subprocess.run(run, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
