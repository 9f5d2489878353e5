"""The page about the architecture names files and functions that exist, and comes first."""

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

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


def test_the_way_has_eight_steps() -> None:
    way = PAGE.partition("## The way of an acquire")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d)\. ", way, re.MULTILINE) == [str(n) for n in range(1, 9)]
    assert len(PLACES) > 25


async def test_as_many_files_and_functions_run_as_the_page_says() -> None:
    """And none of those that are needed where others want it."""
    way = PAGE.partition("## The way of an acquire")[2].partition("\n1. ")[0]
    first, others = (re.findall(r"`([\w/]+\.py)`", half) for half in way.split("Where others want"))
    acquire, _ = await measure(1)
    assert re.findall(r"\d+", way.split("runs")[1])[:2] == [
        str(acquire.total()),
        str(len(acquire.files)),
    ]
    assert set(first) <= acquire.files
    assert others
    assert not acquire.files.intersection(others)


def test_the_engine_has_as_many_files_and_floors_as_the_page_says() -> None:
    below: dict[str, set[str]] = {}
    for path in (ROOT / "asynclock" / "_engine").glob("[a-z]*.py"):
        found = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if _beside(n)]
        below[path.stem] = {n.module or one.name for n in found for one in n.names}

    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name]), default=0)

    files, floors = len(below), max(map(floor, below))
    assert f"The engine has {files} files on {floors} floors" in PAGE


def _beside(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.level == 1


def test_newcomers_are_sent_there_first() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page.partition("## Reading order")[2])
    assert links[0] == "docs/architecture.md"
