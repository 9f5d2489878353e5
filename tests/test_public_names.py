"""A test knows what a user knows; what knows more lives in tests/tables.

A redesign may rewrite the tables; everything else must pass as it is.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
KNOW_MORE = ("tables", "mutation", "simulation", "test_layers.py")
"""What may know the inside: tables, sabotages and mutants, and the list of layers."""
PRIVATE = re.compile(
    r"\basynclock\.(?:\w+\.)*_(?!rules\b|_)\w+|^tests\.tables\.(?!inside\b)(?!\w+$)\w+"
    r"|\basynclock\.cli\.(?!main\b)\w+|\bcontrib\.dashboard\.(?!dashboard\b)\w+"
)
"""The name of something private; decisions (`_rules`) are pure functions with a contract."""


def inside(path: Path) -> Iterator[str]:
    """What a test names that no user may name, with its line."""
    tree = ast.parse(path.read_text("utf-8"))
    own = {name for node in ast.walk(tree) for name in _defined(node)}
    for node in ast.walk(tree):
        for name in _named(node):
            if PRIVATE.search(name):
                yield f"{path}:{node.lineno}: {name}"  # type: ignore[attr-defined]
        if (
            isinstance(node, ast.Attribute)
            and re.match("_[^_]", node.attr)
            and node.attr not in own
            and ast.unparse(node) != "os._exit"
        ):
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def _defined(node: ast.AST) -> Iterator[str]:
    """Private names that a test makes itself."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value  # a program may be a test's data


FILES = [
    path
    for path in sorted(TESTS.rglob("*.py"))
    if path.relative_to(TESTS).parts[0] not in (*KNOW_MORE, Path(__file__).name)
]


def test_tests_name_only_what_a_user_may_name() -> None:
    """And of tests/tables what inside.py gives them, which a redesign keeps."""
    assert len(FILES) > 200
    assert [line for path in FILES for line in inside(path)] == []


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("from asynclock import connect, _clock", ["asynclock._clock"]),
        ("import asynclock._engine.lease", ["asynclock._engine.lease"]),
        ("from asynclock.cli.child import Child", ["asynclock.cli.child.Child"]),
        ("from tests.tables.nodes.links import Peer", ["tests.tables.nodes.links.Peer"]),
        ("patch.setattr('asynclock._nodes.link.LATE', 1)", ["asynclock._nodes.link.LATE"]),
        ("locks._engine.close()", ["locks._engine"]),
        ("from asynclock._rules import pacing", []),
        ("from tests.tables.inside import now", []),
        ("class Fake:\n  def __init__(self): self._seen = 0\nFake()._seen", []),
        ("os._exit(3)", []),
    ],
)
def test_the_rule(tmp_path: Path, program: str, named: list[str]) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(program)
    assert [line.split(": ")[1] for line in inside(file)] == named
