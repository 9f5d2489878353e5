"""A test knows what a user knows; what knows more lives in tests/tables.

A redesign may rewrite the tables; everything else must pass as it is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
KNOW_MORE = ("tables", "mutation", "simulation", "__pycache__", "test_layers.py", "public_names.py")
"""Who may know the inside: tables, what breaks the library on purpose, and the list of layers."""
PRIVATE = re.compile(r"\basynclock\.(?:\w+\.)*_(?!rules\b|_)\w+")
"""The name of something private; decisions (`_rules`) are pure functions with a contract."""


def inside(path: Path) -> Iterator[str]:
    """What a test names that no user may name, with its line."""
    tree = ast.parse(path.read_text("utf-8"))
    own = {name for node in ast.walk(tree) for name in _defined(node)}
    for node in ast.walk(tree):
        for name in _named(node):
            if PRIVATE.search(name):
                yield f"{path.relative_to(TESTS.parent)}:{node.lineno}: {name}"  # type: ignore[attr-defined]
        if (
            isinstance(node, ast.Attribute)
            and re.match("_[^_]", node.attr)
            and node.attr not in own
            and ast.unparse(node) != "os._exit"
        ):
            yield f"{path.relative_to(TESTS.parent)}:{node.lineno}: {ast.unparse(node)}"


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
        yield from node.value.splitlines()[:1]  # a program may be a test's data


def files(*places: str) -> Iterator[Path]:
    """The files that the rule is for, in some folders of tests or in all."""
    for path in sorted(TESTS.rglob("*.py")):
        place = path.relative_to(TESTS).parts[0]
        if place not in KNOW_MORE and (not places or place in places):
            yield path


if __name__ == "__main__":
    found = [line for path in files(*sys.argv[1:]) for line in inside(path)]
    print(*found, f"{len(found)} names", sep="\n")
