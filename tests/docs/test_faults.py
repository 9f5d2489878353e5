"""Each row of docs/faults.md names tests that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    line.strip("| ")
    for line in (ROOT / "docs" / "faults.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| symptom |")
]
NAMED = re.compile(r'(?P<path>tests/[\w/.]+|…)(?:::(?P<test>\w+)\S*|"? -k (?P<words>\w+|"[^"]+"))?')


def missing(row: str) -> Iterator[str]:
    """Return what a row's last column names and the tests don't have."""
    path = ROOT / "nowhere"
    for named in NAMED.finditer(row.rsplit(" | ", 1)[-1]):
        if named["path"] != "…":
            path = ROOT / named["path"]
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
        text = "".join(f"{file.name}\n{file.read_text('utf-8')}" for file in files).lower()
        if not text:
            yield f"no tests in {named['path']}"
        if named["test"] and not re.search(rf"def {named['test'].lower()}\b", text):
            yield f"no {named['test']} in {path.name}"
        words = re.findall(r"[\w:.]+", named["words"] or "")
        kept = [word for word in words if word not in ("and", "or", "not")]
        yield from (f"no {one} in {path.name}" for one in kept if one.lower() not in text)
    if not path.exists():
        yield "no test"


def test_each_fault_has_a_test() -> None:
    """A fault without a test is not fixed."""
    assert [(row[:60], lack) for row in ROWS for lack in missing(row)] == []


@pytest.mark.parametrize(
    "named",
    [
        "nothing",
        "`tests/nowhere.py`",
        "`tests/docs/test_faults.py::test_of_nothing`",
        "`tests/docs/test_faults.py`, `…::test_of_nothing`",
        '`tests/docs/test_faults.py -k "each_fault or some_' + 'fault"`',
    ],
)
def test_a_test_that_is_missing_is_found(named: str) -> None:
    assert list(missing(f"symptom | cause | {named}")) != []
