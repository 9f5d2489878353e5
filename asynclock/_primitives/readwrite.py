"""The read-write lock: any number of readers, or one writer."""

from __future__ import annotations

from typing import Any

from .._engine.engine import Engine
from .._engine.inspection import Inspection, NodeView, ask_all, inspect, whole
from .._engine.lease import Terms
from .._engine.recipe import Recipe
from .._nodes.link import Failure
from .._nodes.script import Script
from .._settings import COUNTER, PART
from .base import PRELUDE, Lockable
from .lock import lock_key

READ = Script.load(__package__, PRELUDE, "read.lua")
WRITE = Script.load(__package__, PRELUDE, "write.lua", "lock.lua")

PATIENCE = 1.0
"""Seconds for which a writer that waits keeps new readers out; it says so again in half of them.

Longer, and the readers wait for a writer that has crashed; shorter, and a writer asks more often.
"""


class ReadLock(Lockable):
    """One reader's side: shared with other readers, excludes writers."""

    __slots__ = ()


class WriteLock(Lockable):
    """The writer's side: excludes everybody."""

    __slots__ = ()


class ReadWriteLock:
    """Any number of readers or one writer hold its name, whatever fails, on every deployment.

    Each reader has a lease of its own, with its own renewal. Writers come first: while one waits,
    no new reader is let in, so the longest reader bounds a writer's wait; readers wait as long as
    writers keep coming. A task that reads must release before it writes: AlreadyHeldError, once
    it waits for nobody but itself.

    Fences: a writer's is above those of all readers and writers before it, and a reader's above
    those of all writers before it. Readers who overlap may share one.
    """

    __slots__ = ("_engine", "_read", "_terms", "_timeout", "_write")

    def __init__(
        self, engine: Engine, prefix: str, name: str, terms: Terms, timeout: float | None
    ) -> None:
        key = lock_key(prefix, name) + PART
        lock, counter = f"{key}write", f"{key}write{COUNTER}"
        readers, intent = f"{key}readers", f"{key}intent"
        self._engine = engine
        self._terms = terms
        self._timeout = timeout
        self._write = Recipe(
            name,
            WRITE,
            (lock, counter),
            line=lock,
            watched=(lock, readers),
            part="write",
            neighbours=(readers, intent),
            patience=PATIENCE,
        )
        self._read = Recipe(
            name,
            READ,
            (readers, counter),
            watched=(lock, intent),
            wakes=(readers,),
            part="read",
            neighbours=(lock, intent),
        )

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r} ttl={self._terms.ttl:g}>"

    @property
    def name(self) -> str:
        """The name it locks."""
        return self._read.name

    def read(self) -> ReadLock:
        """The shared side."""
        return ReadLock(self._engine, self._read, self._terms, self._timeout)

    def write(self) -> WriteLock:
        """The exclusive side."""
        return WriteLock(self._engine, self._write, self._terms, self._timeout)

    async def inspect(self) -> Inspection:
        """The writer and every reader, node by node (`parts`)."""
        writer = await inspect(self._engine, self._write, "rwlock")
        nodes = self._engine.multiplexer.nodes
        replies = await ask_all(self._engine, self._read.inspect())
        found = {node.address: _readers(replies[i]) for i, node in enumerate(nodes)}
        owners = sorted({owner for readers in found.values() for owner in readers})
        parts = [writer]
        for owner in owners:
            views = tuple(
                NodeView(
                    view.node,
                    owner if owner in found[view.node] else None,
                    found[view.node].get(owner),
                    view.fence,
                    view.error,
                )
                for view in writer.nodes
            )
            parts.append(Inspection(self.name, views, writer.quorum, "rwlock", "read"))
        return whole(self.name, "rwlock", parts)


def _readers(reply: Any) -> dict[str, float]:
    # Who reads on one node, and for how many seconds.
    if isinstance(reply, Failure):
        return {}
    pairs, now = reply[0], reply[2] / 1_000_000
    return {
        owner.decode("utf-8", "replace"): float(expiry) / 1000 - now
        for owner, expiry in zip(pairs[::2], pairs[1::2], strict=True)
    }
