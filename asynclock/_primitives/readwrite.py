"""The read-write lock: any number of readers, or one writer; and the changes of side.

An upgrade takes the write lock beside the reader's own entry, which a node then overlooks. Two
readers that both upgrade would wait for each other, so an upgrade first needs a mutex of its own,
the gate, and the second reader is refused there. A downgrade enters the reader beside the writer's
own key, and then releases that key: at no moment is the name without either (docs/decisions/0023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Never

from .. import _settings
from .._engine.acquire import Acquire, AcquireContext, LazyAcquire
from .._engine.engine import Engine
from .._engine.inspection import Inspection, NodeView, ask_all, inspect, question, whole
from .._engine.lease import Lease, give_back, grants_of, let_go, loss_error
from .._engine.spec import LeaseOptions, LockSpec, readers
from .._keys import MARKER, derived, lock_key
from .._nodes.wire import Command, Failure, Script
from ..errors import AcquireTimeoutError, ConfigurationError, NotAcquiredError
from .base import BATCH, PRELUDE, UNSET, Held, Kind, Lockable, Named, Queue, Timeout, limited, use
from .lock import SCRIPT as LOCK
from .multi import obtain_behind

PHASES = (*PRELUDE, BATCH, "queue.lua", "phases.lua")
READ = Script.load(__package__, *PHASES, "read.lua", "holding.lua")
WRITE = Script.load(__package__, *PHASES, "quiet.lua", "write.lua", "holding.lua")


@dataclass(frozen=True, slots=True)
class _Readers(Held):
    """The sorted set of readers, by the time at which each expires."""

    single: ClassVar[bool] = False

    def keys(self, whole: str, end: str = "") -> tuple[str, ...]:
        return derived(whole, end or self.suffix), WRITER.keys(whole)[1]

    def views(self, node: str, reply: Any) -> list[NodeView] | Failure:
        parsed = readers(reply)
        if isinstance(parsed, Failure):
            return parsed
        return [NodeView(node, one.owner, one.left, one.fence, shared=True) for one in parsed]


@dataclass(frozen=True, slots=True)
class _Phases(Queue):
    """The queue of both sides. Which side goes first depends on whether there is a writer."""

    def inspect(self, keys: tuple[str, ...]) -> Command:
        writer = WRITER.keys(keys[0].partition(MARKER)[0])[0]
        return question(keys[0], writer)


WAITERS = _Phases(WRITE, "phases")
WRITER = Held(WRITE, "write", "write", queue=WAITERS.suffix, beside=("readers",))
READERS = _Readers(READ, "readers", "read", queue=WAITERS.suffix, beside=("write",))
UPGRADERS = Queue(LOCK, "upgraders")
UPGRADE = Held(LOCK, "upgrade", "upgrade", queue=UPGRADERS.suffix)


async def _trial(on: Engine, name: str, options: LeaseOptions, wait: float) -> None:
    lock = ReadWriteLock(on, name, options, wait)
    await use(lock.read(), lock.write())


KIND = Kind("rwlock", (READ, WRITE), _trial, (WRITER, READERS, WAITERS, UPGRADE, UPGRADERS))


@lru_cache(maxsize=1024)
def specs(prefix: str, name: str) -> tuple[str, LockSpec, LockSpec, LockSpec]:
    """Return the key of a read-write lock, and the specs of a reader, a writer and an upgrade."""
    key = lock_key(prefix, name)
    read = READERS.spec(name, key, queue_key=None, watched=())
    write = WRITER.spec(name, key, shared=read.keys[0], watched=())
    return key, read, write, UPGRADE.spec(name, key, queue_key=None)


@_settings.made_by("connect(...).rwlock(name).read()")
class ReadLock(Lockable):
    """The side of a reader: shared with other readers, excludes writers."""

    __slots__ = ()


@_settings.made_by("connect(...).rwlock(name).write()")
class WriteLock(Lockable):
    """The side of a writer: excludes readers and other writers."""

    __slots__ = ()


@_settings.made_by("connect(...).rwlock(name)")
class ReadWriteLock(Named):
    """Any number of readers or one writer may hold the name, whatever fails, on every deployment.

    Each reader has its own lease with its own renewal. Readers and writers take turns: while a
    writer waits, no new reader gets in, and after a writer all readers that waited go before the
    next one. So neither side starves: a reader waits for one writer at most, and a writer for the
    writers before it and one round of readers for each (docs/primitives.md). A task that reads must
    release before it writes, and the other way round: inside an `async with` of one side, waiting
    for the other side raises AlreadyHeldError.

    A writer's fence is above the fences of all earlier readers and writers. A reader's fence is
    above those of all earlier writers; readers at the same time may share a fence.

    A reader that must write calls `upgrade`, and a writer that only reads from now on `downgrade`.
    """

    __slots__ = ("_gate", "_key", "_read", "_write")

    def __init__(
        self, engine: Engine, name: str, options: LeaseOptions, timeout: float | None
    ) -> None:
        found = specs(engine.settings.prefix, _settings.name(name))
        self._key, self._read, self._write, self._gate = found
        super().__init__(engine, self._read, options, timeout)

    def read(self, *, timeout: Timeout = UNSET, **unknown: Never) -> ReadLock:
        """Return the shared side, to be used like any lock.

        Args:
            timeout: seconds to wait (None: no limit; default: the lock's own timeout).
            unknown: a setting that does not exist, which raises TypeError.
        """
        return ReadLock(self._engine, self._read, self._options, self._limit(timeout, unknown))

    def write(self, *, timeout: Timeout = UNSET, **unknown: Never) -> WriteLock:
        """Return the exclusive side, to be used like any lock.

        Args:
            timeout: seconds to wait (None: no limit; default: the lock's own timeout).
            unknown: a setting that does not exist, which raises TypeError.
        """
        return WriteLock(self._engine, self._write, self._options, self._limit(timeout, unknown))

    def _limit(self, timeout: Timeout, unknown: dict[str, Never]) -> float | None:
        if unknown:
            raise _settings.unknown(unknown)
        return limited(timeout, self._timeout)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __aenter__ = __aexit__ = _settings.instead(
            "`async with rwlock.read()` or `async with rwlock.write()`"
        )

    def upgrade(self, lease: Lease, *, timeout: Timeout = UNSET) -> AcquireContext[Lease]:
        """Get a write lease beside the read lease `lease`: `await` it, or use `async with`.

        It is granted once all other readers have left, and ahead of waiting writers; new readers
        wait. The read lease stays: after the write lease has ended, the task reads again, and no
        other writer was there in between. Use the write lease's fence for what you write.

        If another reader is being upgraded, this raises NotAcquiredError at once, because the two
        would wait for each other: release the read lease and lock to write. Apart from that, raises
        the errors of `acquire`, LeaseLostError if the read lease is lost, and ConfigurationError if
        `lease` is no read lease of this lock. After an error the read lease is as it was.

        Args:
            lease: a lease of `read()`, which is held.
            timeout: seconds to wait (None: no limit; default: the lock's own timeout).
        """
        limit = limited(timeout, self._timeout)
        self._check(lease, self._read)
        return LazyAcquire(self.name, partial(self._upgrade, lease, limit))

    async def _upgrade(self, reader: Lease, timeout: float | None, since: float) -> Lease:
        # No local queue: its first waiter would wait for this reader, and this call behind it.
        beside = replace(self._write, queue_key=None, exempt=(reader.owner,))
        options = LeaseOptions(self._options.ttl)
        gate = partial(Acquire, self._engine, self._gate, options, timeout, once=True, since=since)
        call = partial(Acquire, self._engine, beside, self._options, timeout, since=since)
        try:
            writer = await obtain_behind(gate, call)
        except NotAcquiredError as error:
            if not isinstance(error, AcquireTimeoutError):  # the gate doesn't wait
                text = (
                    f"another reader of {self.name!r} ({error.holder!r}) is being upgraded and "
                    "waits for this one: release the read lease and lock to write"
                )
                error.args = (text,)
            raise
        if not reader.held:
            let_go(writer)
            raise loss_error(reader)
        return writer

    async def downgrade(self, lease: Lease) -> Lease:
        """Return a read lease in place of the write lease `lease`, which ends.

        There is no gap: no other writer gets the lock before the new lease is released. Waiting
        writers go on waiting. Raises LeaseLostError if the write lease was lost,
        AcquireTimeoutError or QuorumUnavailableError if the nodes grant nothing before the write
        lease would end, and ConfigurationError if `lease` is no write lease of this lock. If this
        call fails or is cancelled, nothing but the write lease can be left, and that only if its
        `held` is True.

        Args:
            lease: a lease of `write()` or `upgrade()`, which is held.
        """
        self._check(lease, self._write)
        beside = replace(self._read, exempt=(lease.owner,))
        reader = await Acquire(self._engine, beside, self._options, lease.remaining())
        try:
            # A waiting task of this process must not take the writer's key over: a reader is in.
            for grant in grants_of(lease):
                grant.keep_here()
            for release in let_go(lease, hold=True):
                await release.done()
        except BaseException:
            give_back(reader)
            raise
        if lease.lost_reason is not None:
            let_go(reader)
            raise loss_error(lease)
        return reader

    def _check(self, lease: Lease, side: LockSpec) -> None:
        """Raise an error unless `lease` is held and belongs to this side of this lock."""
        ours = isinstance(lease, Lease) and lease._engine is self._engine
        if not ours or (lease.name, lease.part) != (side.name, side.part):
            needs = f"a lease that {side.part}() of this manager's rwlock({side.name!r}) gave"
            raise ConfigurationError(f"this needs {needs}, not {lease!r}")
        if not lease.held:
            raise loss_error(lease)
        if any(grant.spec.keys != side.keys for grant in grants_of(lease)):
            raise ConfigurationError(f"{lease!r} is a lease on another lock")

    async def inspect(self) -> Inspection:
        """Return the writer and every reader, node by node (`parts`)."""
        writer = await inspect(self._engine, self._write, KIND.name, KIND.queues(self._key))
        replies = await ask_all(self._engine, self._read.inspect())
        readers = [_readers(view.node, replies[i]) for i, view in enumerate(writer.nodes)]
        parts = [writer]
        for owner in sorted({owner for found in readers for owner in found}):
            views = tuple(
                found.get(owner) or replace(view, owner=None, remaining=None)
                for view, found in zip(writer.nodes, readers, strict=True)
            )
            parts.append(replace(writer, part=READERS.shown, nodes=views))
        return whole(self.name, KIND.name, parts)


def _readers(node: str, reply: Any) -> dict[str, NodeView]:
    views = READERS.views(node, reply)
    return {} if isinstance(views, Failure) else {view.owner or "": view for view in views}
