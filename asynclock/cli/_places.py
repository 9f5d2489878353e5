"""Which keys stand for which holdings and states: how primitives lay out a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .._engine.inspection import NodeView
from .._nodes.script import Command, Script
from .._primitives.lock import SCRIPT as LOCK
from .._primitives.lock import lock_key
from .._primitives.readwrite import READ
from .._primitives.register import SCRIPT as REGISTER
from .._settings import COUNTER, HASH_TAG, PART

KINDS = {"": "lock", "write": "rwlock", "readers": "rwlock", "leader": "election", "fair": "fair"}
"""Part → what the name is; a part that is a number is a slot of a semaphore."""
WAITING = frozenset({"intent", "waiters"})
"""Parts that tell of waiters: the writer's intent, and the queue of a fair lock."""

STATES = frozenset({"event", "latch", "barrier"})
"""Parts that nobody holds: a register with a state, named by its kind."""


class Place(NamedTuple):
    """A key that tells something of a name; a tuple, since thousands of them are keys of a dict."""

    name: str
    part: str = ""

    @classmethod
    def of(cls, prefix: str, key: bytes) -> Place | None:
        """Which place a key stands for; None: none of ours, or a mere detail."""
        begin = prefix.encode()
        if not key.startswith(begin):
            return None
        try:
            rest = key[len(begin) :].decode()
        except UnicodeDecodeError:
            return None  # names are UTF-8
        name, _, part = rest.partition(PART)
        if rest.endswith(COUNTER):
            return None
        if prefix.endswith(HASH_TAG):
            name = name.removesuffix("}")
        known = part in KINDS or part in WAITING or part in STATES or part.isdigit()
        return cls(name, part) if name and known else None

    @classmethod
    def shown_as(cls, name: str, kind: str, part: str) -> Place:
        """The place that is shown as this."""
        parts = {"election": "leader", "fair": "fair"}
        return cls(name, parts.get(kind, "readers" if part == "read" else part))

    @property
    def kind(self) -> str:
        """What the name is."""
        return "semaphore" if self.part.isdigit() else KINDS.get(self.part, "")

    @property
    def shown(self) -> str:
        """The part as people know it."""
        return {"readers": "read", "leader": "", "fair": ""}.get(self.part, self.part)

    def keys(self, prefix: str) -> tuple[Script, tuple[str, ...]]:
        """The script that understands it, and its keys."""
        whole = lock_key(prefix, self.name)
        key = f"{whole}{PART}{self.part}" if self.part else whole
        if self.part == "readers":
            return READ, (key, f"{whole}{PART}write{COUNTER}")
        return (REGISTER, (key,)) if self.part in STATES else (LOCK, (key, key + COUNTER))

    def question(self, prefix: str) -> Command:
        """Ask who holds it, or for its state; of waiters, how many there are."""
        script, keys = self.keys(prefix)
        if self.part == "waiters":
            return Command.plain("ZCARD", keys[0])
        return Command(script, keys, ("inspect",))

    def release(self, prefix: str, owner: str) -> Command:
        """Take it from `owner`."""
        script, keys = self.keys(prefix)
        return Command(script, keys, ("release", owner))

    def views(self, node: str, reply: Any) -> Iterator[NodeView]:
        """Who holds it, by the answer of `node`: nobody, one, or many readers."""
        if self.part == "readers":
            pairs, fence, now = reply
            for owner, expiry in zip(pairs[::2], pairs[1::2], strict=True):
                left = float(expiry) / 1000 - now / 1_000_000
                yield NodeView(node, owner.decode("utf-8", "replace"), left, fence)
            return
        owner, pttl, fence = reply[:3]
        if owner is not None:
            left = pttl / 1000 if pttl >= 0 else None
            yield NodeView(node, owner.decode("utf-8", "replace"), left, fence)
