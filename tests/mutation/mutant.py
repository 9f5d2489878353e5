"""A mutant: one small change of one file, made from the file's text."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = ("condition", "comparison", "boolean", "constant", "statement", "part")


@dataclass(frozen=True)
class Place:
    """Where in a file a change is made."""

    function: str
    """The qualified name of what it is in; empty outside of functions and classes."""
    lines: range
    """The lines of its statement: tests that run one of these can notice it."""
    runs_at_import: bool
    """Whether tests only use what the statement made: a constant, a default, a script."""


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from `start` to `end` of the file become `new`."""

    file: str
    operator: str
    start: int
    end: int
    old: str
    new: str
    line: int
    place: Place

    @property
    def name(self) -> str:
        """What plays it again, as long as the file stays as it is."""
        return f"{self.file}:{self.line}:{self.operator}:{self.start}:{self.new.strip()}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed file; all of its other text stays."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        where = f" in {self.place.function}" if self.place.function else ""
        shown = " ".join(self.old.split())[:70]
        return f"{self.file}:{self.line}{where}: {self.operator} `{shown}` → `{self.new.strip()}`"
