"""What a primitive keeps on the nodes, declared beside its script.

The survey, `inspect`, `top`, the dashboard and `release` iterate over these declarations, so a new
primitive changes none of them. The only kind that they name is "lock", which is shown by its name
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from .._engine.inspection import NodeView, question
from .._engine.replies import holder
from .._engine.spec import LockSpec
from .._keys import counter, derived, message
from .._nodes.wire import Command, Failure, Script

NUMBER: Final = "0"
"""Declares all keys of a name that end with a number."""


@dataclass(frozen=True, slots=True)
class Part:
    """One sort of key that belongs to a name."""

    script: Script
    """The script that reads the key."""
    suffix: str = ""
    """The end of the key, after the lock's own key; "" for the lock's own key."""
    shown: str = ""
    """The part as users know it; unused for NUMBER, which shows the number."""
    single: ClassVar[bool] = False
    """Whether a read gets what lock.lua gets, so that one command can read many of these keys."""

    def keys(self, whole: str, suffix: str | None = None) -> tuple[str, ...]:
        """Return the keys that the script takes; a number replaces the suffix NUMBER."""
        suffix = self.suffix if suffix is None else suffix
        key = derived(whole, suffix) if suffix else whole
        return key, counter(key)

    def inspect(self, keys: tuple[str, ...]) -> Command:
        """Return the command that reads the key."""
        return Command(self.script, keys, ("inspect",))


@dataclass(frozen=True, slots=True)
class Held(Part):
    """A key that names the owner of a lease."""

    single: ClassVar[bool] = True
    kind: str = ""
    """The method of the manager that makes the lock, if its leases can be detached; else ""."""
    queue: str = ""
    """The end of the key of the queue whose first waiter a release wakes; "" for none."""
    beside: tuple[str, ...] = ()
    """The ends of the keys of the other side, with which this one takes turns."""

    def spec(self, name: str, whole: str, suffix: str | None = None, **more: Any) -> LockSpec:
        """Return the spec of a lock on `name`; `more` replaces fields of the usual spec.

        Usually tasks of one process form a queue, and the lock's own key is watched.
        """
        keys = self.keys(whole, suffix)
        usual = {"queue_key": keys[0], "watched": keys[:1], "part": suffix or self.shown}
        usual |= {"kind": self.kind, "queue": self.queue and derived(whole, self.queue)}
        usual |= {"neighbours": tuple(derived(whole, end) for end in self.beside)}
        return LockSpec(name, self.script, keys, phased=bool(self.beside), **(usual | more))

    def views(self, node: str, reply: Any) -> list[NodeView] | Failure:
        """Return the owner that `node` names in its reply, if there is one."""
        parsed = holder(reply)
        if isinstance(parsed, Failure):
            return parsed
        return (
            []
            if parsed.owner is None
            else [NodeView(node, parsed.owner, parsed.left, parsed.fence)]
        )


@dataclass(frozen=True, slots=True)
class Queue(Part):
    """The tickets of those who wait, in order (queue.lua)."""

    def inspect(self, keys: tuple[str, ...]) -> Command:
        return question(keys[0])


@dataclass(frozen=True, slots=True)
class Kind:
    """What tools must know of one kind of primitive."""

    name: str
    """What inspections and JSON call it."""
    scripts: tuple[Script, ...]
    parts: tuple[Part, ...] = ()
    """The keys that a survey reads."""

    def keys(self, whole: str) -> set[str]:
        """Return all keys of the primitive whose lock's own key is `whole`; of slots the first."""
        keys = {key for part in self.parts for key in part.keys(whole)}
        return keys | {message(part.keys(whole)[0]) for part in self.parts if part.single}

    def queues(self, whole: str) -> tuple[Command, ...]:
        """Return what reads the queues of the primitive whose lock's own key is `whole`."""
        queues = (part for part in self.parts if isinstance(part, Queue))
        return tuple(part.inspect(part.keys(whole)) for part in queues)
