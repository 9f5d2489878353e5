"""What each key of a name stands for: a lock, waiters, or shared state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .._engine.inspection import NodeView
from .._keys import counter, derived, lock_key, split
from .._nodes.script import Command, Script
from .._primitives.lock import SCRIPT as LOCK
from .._primitives.readwrite import READ
from .._primitives.register import SCRIPT as REGISTER

READERS = "readers"
WAITERS = "waiters"
LOCKS = {
    "": ("lock", ""),
    "write": ("rwlock", "write"),
    READERS: ("rwlock", "read"),
    "leader": ("election", ""),
    "fair": ("fair", ""),
}
"""Part of a key -> kind of the lock, and the part as users know it; a number is a slot."""
WAITING = frozenset({"intent", WAITERS})
"""Parts that tell of waiters: a writer's intent, and the queue of a fair lock."""
STATES = frozenset({"event", "latch", "barrier"})
"""Parts that no owner holds: registers, named by their kind."""

_NAMED = WAITING | STATES | (LOCKS.keys() - {""})


class KeyRef(NamedTuple):
    """A key of a name; a tuple, because a survey uses thousands of them as keys of a dict."""

    name: str
    part: str = ""
    """The part of the key after the name; "" for a mutex."""

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
            case name, (part,) if _is_slot(part) or part in _NAMED:
                return cls(name, part)
        return None

    @classmethod
    def shown_as(cls, name: str, kind: str, part: str) -> KeyRef:
        """Return the key of a lock by its kind and part as `kind` and `shown` gave them."""
        known = {shown: key_part for key_part, shown in LOCKS.items()}
        return cls(name, known.get((kind, part), part))

    @property
    def is_single(self) -> bool:
        """Whether the key has at most one owner, which lock.lua can tell."""
        return self.part not in STATES and self.part not in (READERS, WAITERS)

    @property
    def kind(self) -> str:
        """The kind of lock, "" for waiters and states."""
        return "semaphore" if _is_slot(self.part) else LOCKS.get(self.part, ("", ""))[0]

    @property
    def shown(self) -> str:
        """The part as users know it."""
        return LOCKS.get(self.part, ("", self.part))[1]

    def _script(self, prefix: str) -> tuple[Script, tuple[str, ...]]:
        whole = lock_key(prefix, self.name)
        key = derived(whole, self.part) if self.part else whole
        if self.part == READERS:
            return READ, (key, counter(derived(whole, "write")))
        return (REGISTER, (key,)) if self.part in STATES else (LOCK, (key, counter(key)))

    def inspection(self, prefix: str) -> Command:
        """Return the command that reads the owner or the state; for waiters, their number."""
        script, keys = self._script(prefix)
        if self.part == WAITERS:
            return Command.plain("ZCARD", keys[0])
        return Command(script, keys, ("inspect",))

    def release(self, prefix: str, owner: str) -> Command:
        """Return the command that releases the key if `owner` holds it."""
        script, keys = self._script(prefix)
        return Command(script, keys, ("release", owner))

    def views(self, node: str, reply: Any) -> Iterator[NodeView]:
        """Yield an owner for each that `node` named in its reply: none, one, or many readers."""
        if self.part == READERS:
            pairs, fence, now = reply
            for owner, expiry in zip(pairs[::2], pairs[1::2], strict=True):
                left = float(expiry) / 1000 - now / 1_000_000
                yield NodeView(node, owner.decode("utf-8", "replace"), left, fence)
            return
        owner, pttl, fence = reply[:3]
        if owner is not None:
            left = pttl / 1000 if pttl >= 0 else None
            yield NodeView(node, owner.decode("utf-8", "replace"), left, fence)


def _is_slot(part: str) -> bool:
    return part.isascii() and part.isdigit()
