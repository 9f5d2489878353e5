"""All kinds of primitives: the scripts that every connection loads, and what a key belongs to."""

from __future__ import annotations

from typing import NamedTuple

from .._engine.inspection import Inspection
from .._engine.spec import LockSpec
from .._keys import lock_key, split
from .._nodes.wire import Command
from . import lock, multi, readwrite, semaphore
from .base import Held, Kind, Part
from .shared import election, once, states

KINDS = (
    lock.KIND,
    multi.KIND,
    semaphore.KIND,
    readwrite.KIND,
    lock.FAIR_KIND,
    election.KIND,
    states.EVENT,
    states.LATCH,
    states.BARRIER,
    once.KIND,
)
SCRIPTS = tuple(dict.fromkeys(script for kind in KINDS for script in kind.scripts))
"""All scripts; each connection loads them at once, because an unknown script loses a wake-up."""
PARTS: dict[str, tuple[Kind, Part]] = {
    end: (kind, part) for kind in KINDS for part in kind.parts for end in part.ends
}
"""The end of a key -> what it stands for."""
PLACES = {suffix: place for place, suffix in enumerate(PARTS)}
"""The end of a key -> its place among the declarations."""


class KeyRef(NamedTuple):
    """A key of a name; a tuple, because a survey uses thousands of them as keys of a dict."""

    name: str
    suffix: str = ""
    """The end of the key, after the lock's own key; "" for a mutex."""

    @classmethod
    def parse(cls, prefix: str, key: bytes) -> KeyRef | None:
        """Return what `key` stands for; None for a foreign key or a mere detail of a lock."""
        try:
            found = split(prefix, key.decode())
        except UnicodeDecodeError:
            return None  # names are UTF-8
        match found:
            case name, ():
                return cls(name)
            case name, (suffix,) if suffix in PARTS:
                return cls(name, suffix)
        return None

    @property
    def part(self) -> Part:
        """The declaration of the key."""
        return PARTS[self.suffix][1]

    @property
    def kind(self) -> str:
        """The kind of primitive."""
        return PARTS[self.suffix][0].name

    @property
    def shown(self) -> str:
        """The part as users know it."""
        return self.part.named(self.suffix)

    def inspection(self, prefix: str) -> Command:
        """Return the command that reads the key."""
        return self.part.inspect(self.part.keys(lock_key(prefix, self.name), self.suffix))


def spec_of(prefix: str, lease: Inspection) -> LockSpec:
    """Return the spec of a lease that a survey has found."""
    part, end = next(
        (part, end)
        for end, (kind, part) in PARTS.items()
        if isinstance(part, Held) and (kind.name, part.named(end)) == (lease.kind, lease.part)
    )
    return part.spec(lease.name, lock_key(prefix, lease.name), end)


def keys_of(prefix: str, name: str) -> set[bytes]:
    """Return the keys of a name that a survey reads."""
    whole = lock_key(prefix, name)
    return {part.keys(whole, end)[0].encode() for end, (_, part) in PARTS.items()}
