"""The page about the architecture names files and functions that exist, and comes first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from benchmarks.calls import measure
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PLACES = re.findall(r"`([\w/]+\.(?:py|lua|toml))(?:: ([\w.]+))?`", PAGE.replace("\n", " "))


def names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Functions, classes and constants of a module, methods with their class."""
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + one.id for one in targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{node.name}.")


@pytest.mark.parametrize(("file", "name"), sorted(set(PLACES)))
def test_it_exists(file: str, name: str) -> None:
    path = ROOT / "asynclock" / file
    assert path.is_file()
    assert not name or name in set(names(ast.parse(path.read_text("utf-8")).body))


def test_eight_steps_in_five_files() -> None:
    way = PAGE.partition("## The way of an acquire")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d)\. ", way, re.MULTILINE) == [str(n) for n in range(1, 9)]
    assert len(PLACES) > 25


async def test_the_five_files_run_where_nobody_else_wants_the_name() -> None:
    """And those that are needed where others want it do nothing there but begin the call."""
    way = PAGE.partition("## The way of an acquire")[2].partition("\n1. ")[0]
    five, others = (re.findall(r"`([\w/]+\.py)`", half) for half in way.split("Where others want"))
    acquire, _ = await measure(1)
    assert len(five) == 5
    assert set(five) <= acquire.files
    ran = {name for name in acquire.calls if name.partition(":")[0] in others}
    assert ran <= {
        "_engine/local_acquire.py:LocalAcquire.__init__",
        "_engine/local_acquire.py:LocalAcquire._queue",
    }


def test_newcomers_are_sent_there_first() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page.partition("## Reading order")[2])
    assert links[0] == "docs/architecture.md"
