"""The table of threats names tests; each of them exists."""

import re
from pathlib import Path

import pytest

from tests.docs import blocks

DOCS = Path(__file__).parents[2] / "docs"
NAMED = re.compile(r"`(tests/[\w/]+(?:\.py)?|…)(?:::(\w+))?`|(tests/[\w/]+\.py)\"? -k \"?(\w+)")


def named(page: str) -> list[str]:
    """Files and tests; `…` is the file of the row before. A word may name a row of a table."""
    found, last = [], ""
    for file, test, chosen, word in NAMED.findall((DOCS / page).read_text("utf-8")):
        last = file if file.startswith("tests/") else chosen or last
        if word:
            pattern = word.replace("_", "[_ ]")  # of a function, or of a row of a table
            assert re.search(pattern, Path(last).read_text("utf-8")), (last, word)
        found.append(f"{last}::{test}" if test else last)
    return found


@pytest.mark.parametrize("page", ["threats.md", "faults.md"])
def test_what_a_table_names_exists(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    names = named(page)
    assert len(names) > 10
    for name in names:
        assert blocks.exists(name) if "::" in name else Path(name).exists(), name
