"""The read-write lock: any number of readers, or one writer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .._engine.engine import Engine
from .._engine.inspection import Inspection, NodeView, ask_all, inspect, whole
from .._engine.options import LeaseOptions
from .._engine.spec import LockSpec
from .._keys import derived, lock_key
from .._nodes.replies import Failure
from .._nodes.script import Script
from .base import PRELUDE, Lockable
from .kind import Held, Kind, Waiting

READ = Script.load(__package__, PRELUDE, "read.lua")
WRITE = Script.load(__package__, PRELUDE, "write.lua", "lock.lua")


@dataclass(frozen=True, slots=True)
class _Readers(Held):
    """The sorted set of readers, by the time at which each expires."""

    single: ClassVar[bool] = False

    def keys(self, whole: str, suffix: str | None = None) -> tuple[str, ...]:
        return derived(whole, suffix or self.suffix), WRITER.keys(whole)[1]

    def views(self, node: str, reply: Any) -> Iterator[NodeView]:
        pairs, fence, now = reply
        for owner, expiry in zip(pairs[::2], pairs[1::2], strict=True):
            left = float(expiry) / 1000 - now / 1_000_000
            yield NodeView(node, owner.decode("utf-8", "replace"), left, fence)


WRITER = Held(WRITE, "write", "write")
READERS = _Readers(READ, "readers", "read")
INTENT = Waiting(WRITE, "intent")
KIND = Kind("rwlock", (READ, WRITE), (WRITER, READERS, INTENT))

PATIENCE = 1.0
"""Seconds a waiting writer keeps new readers out; it repeats its request within half of that.

If this were longer, readers would wait longer for a crashed writer; if it were shorter, a waiting
writer would send more requests.
"""


class ReadLock(Lockable):
    """The side of a reader: shared with other readers, excludes writers."""

    __slots__ = ()


class WriteLock(Lockable):
    """The side of a writer: excludes readers and other writers."""

    __slots__ = ()


class ReadWriteLock:
    """Any number of readers or one writer may hold the name, whatever fails, on every deployment.

    Each reader has its own lease with its own renewal. Writers come first: while a writer waits, no
    new reader gets in. So a writer waits at most for the longest reader, and readers wait as long
    as writers keep coming. A task that reads must release before it writes, and the other way
    round: inside an `async with` of one side, waiting for the other side raises AlreadyHeldError.

    A writer's fence is above the fences of all earlier readers and writers. A reader's fence is
    above those of all earlier writers; readers at the same time may share a fence.
    """

    __slots__ = ("_engine", "_options", "_read", "_timeout", "_write")

    def __init__(
        self, engine: Engine, prefix: str, name: str, options: LeaseOptions, timeout: float | None
    ) -> None:
        key = lock_key(prefix, name)
        lock, readers, intent = (part.keys(key)[0] for part in KIND.parts)
        self._engine = engine
        self._options = options
        self._timeout = timeout
        self._write = LockSpec(
            name,
            WRITE,
            WRITER.keys(key),
            queue_key=lock,
            watched=(lock, readers),
            part=WRITER.shown,
            neighbours=(readers, intent),
            ticket_ttl=PATIENCE,
            shared=readers,
        )
        self._read = LockSpec(
            name,
            READ,
            READERS.keys(key),
            watched=(lock, intent),
            freed_by_release=(readers,),
            part=READERS.shown,
            neighbours=(lock, intent),
        )

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r} ttl={self._options.ttl:g}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._read.name

    def read(self) -> ReadLock:
        """Return the shared side, to be used like any lock."""
        return ReadLock(self._engine, self._read, self._options, self._timeout)

    def write(self) -> WriteLock:
        """Return the exclusive side, to be used like any lock."""
        return WriteLock(self._engine, self._write, self._options, self._timeout)

    async def inspect(self) -> Inspection:
        """Return the writer and every reader, node by node (`parts`)."""
        writer = await inspect(self._engine, self._write, KIND.name)
        replies = await ask_all(self._engine, self._read.inspect())
        readers = [_readers(view.node, replies[i]) for i, view in enumerate(writer.nodes)]
        parts = [writer]
        for owner in sorted({owner for found in readers for owner in found}):
            views = tuple(
                found.get(owner) or replace(view, owner=None, remaining=None)
                for view, found in zip(writer.nodes, readers, strict=True)
            )
            shown = READERS.shown
            parts.append(Inspection(self.name, views, writer.quorum, KIND.name, shown))
        return whole(self.name, KIND.name, parts)


def _readers(node: str, reply: Any) -> dict[str, NodeView]:
    if isinstance(reply, Failure):
        return {}
    return {view.owner or "": view for view in READERS.views(node, reply)}
