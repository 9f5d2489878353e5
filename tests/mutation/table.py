"""The table of deliberate changes, one file per area in `changes/`.

A change replaces one text of the library, which must occur exactly once, by another that breaks
something. The tests named with it must then fail. A change that makes no difference says why.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lupa.lua51 import LuaRuntime, LuaSyntaxError

ROOT = Path(__file__).resolve().parents[2]
CHANGES = Path(__file__).with_name("changes")
RULES = "asynclock/_rules/"
READERS: dict[str, Callable[[str], object]] = {
    ".py": ast.parse,
    ".lua": LuaRuntime().compile,
}
"""What reads a file of each kind; others are pages and what is shown on them."""


@dataclass(frozen=True)
class Change:
    """One deliberate change."""

    area: str
    file: str
    old: str
    new: str
    breaks: str
    """What is wrong after it, in one line."""
    tests: tuple[str, ...]
    """What pytest runs: at least one of these must fail."""
    harmless: str = ""
    """Why no test can fail, if none can."""
    fault: str = ""
    """The test of the row of docs/faults.md whose fix this takes back, as it is written there."""

    @property
    def quick(self) -> bool:
        """Whether it is one of the pure rules', whose tests run in milliseconds."""
        return self.file.startswith(RULES)

    @cached_property
    def found(self) -> int:
        """How often the old text occurs in the file."""
        path = ROOT / self.file
        return path.read_text("utf-8").count(self.old) if path.exists() else 0

    def faults(self) -> Iterator[str]:
        """What is wrong with this entry of the table."""
        if self.found != 1:
            yield f"its old text occurs {self.found} times, not once"
        if self.old == self.new:
            yield "it changes nothing"
        yield from (f"there is no {test}" for test in self.tests if not _exists(test))
        if self.found == 1:
            changed = (ROOT / self.file).read_text("utf-8").replace(self.old, self.new)
            try:
                READERS.get(Path(self.file).suffix, str)(changed)
            except (SyntaxError, LuaSyntaxError) as error:
                yield f"it leaves a file that nothing can read: {error}"

    def __str__(self) -> str:
        return f"{self.file}: {self.breaks}"


def _exists(test: str) -> bool:
    path, *names = test.split("::")
    file = ROOT / path
    if not names:
        return file.exists()
    text = file.read_text("utf-8") if file.exists() else ""
    return all(name.partition("[")[0] in text for name in names)


def areas() -> list[str]:
    """The names of all areas."""
    return sorted(path.stem for path in CHANGES.glob("*.toml"))


def load(area: str = "") -> list[Change]:
    """Return the changes of one area, or all."""
    return [one for name in areas() if area in ("", name) for one in _load(name)]


def irreversible() -> dict[str, str]:
    """Why no change takes back the fix of a fault: a reason for each such row's test."""
    found = (tomllib.loads(path.read_text("utf-8")) for path in CHANGES.glob("*.toml"))
    return {test: why for one in found for test, why in one.get("irreversible", {}).items()}


def _load(area: str) -> Iterator[Change]:
    found = tomllib.loads((CHANGES / f"{area}.toml").read_text("utf-8"))
    usual = {"file": found.get("file", ""), "tests": found.get("tests", [])}
    for entry in found["change"]:
        merged = {**usual, **entry}
        yield Change(**{**merged, "area": area, "tests": tuple(merged["tests"])})
