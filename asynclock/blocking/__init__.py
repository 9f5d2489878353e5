"""The same locks for code without asyncio: threads, scripts, Django, Celery.

    from asynclock import blocking

    locks = blocking.connect("redis://localhost:6379")

    with locks.lock("orders:42", timeout=2) as lease:
        orders.save(order, fence=lease.fence)

One event loop in a thread of this process does the work: it renews leases while your code runs.
The engine, the protocol and the guarantees are those of the asynchronous locks. Only a loss can't
interrupt your code, because nothing can interrupt a thread. So check `lease.held`, pass a callback
to `lease.on_lost`, and expect LeaseLostError from `extend` and at the end of `with`.
"""

# `nox -s generate` writes everything from the first class on: don't edit that part. Each method
# passes its arguments to the asynchronous object. What takes a longer way is inherited from
# `_faces.py`.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Literal, Never, TypedDict, TypeVar, Unpack, cast

import asynclock

from .. import _settings
from .._engine.engine import NodeHealth, Statistics
from .._engine.inspection import Inspection
from .._engine.spec import HandOff
from .._nodes.deployment import NodeAddress
from .._primitives import base
from .._primitives.base import UNSET, Timeout
from .._primitives.shared.register import DEFAULT_KEEP
from .._primitives.synchronized import P, R, decorator
from .._settings import RestartGuard
from ..events import Observer
from ..manager import connect as connect_asynchronously
from ._faces import Bridge, Enterable, Face, Holding, L
from ._words import describe

__all__ = [
    "Barrier",
    "FairLock",
    "Latch",
    "Lease",
    "Lock",
    "LockManager",
    "LockSettings",
    "MultiLease",
    "MultiLock",
    "Once",
    "ReadWriteLock",
    "ReentrantLease",
    "ReentrantLock",
    "Run",
    "Semaphore",
    "SemaphorePermits",
    "SharedEvent",
    "connect",
]

T = TypeVar("T")


async def answer(function: Callable[[], T]) -> T:
    """Return what a plain function returns, in the event loop."""
    return function()


async def listed(found: AsyncIterator[T]) -> list[T]:
    """Return everything that `found` yields."""
    return [one async for one in found]


def behind(lease: Any) -> Any:
    """Return the asynchronous lease behind `lease`; anything else as it is, to be refused."""
    return lease._inner if isinstance(lease, Holding) else lease


class HoldSettings(TypedDict, total=False):
    """How to keep a lease: these are the arguments of `LockManager.lock`; times in seconds."""

    ttl: float | None
    """Seconds that a lease lives without renewal (default: the manager's)."""
    renew: bool
    """Whether the lease is renewed while it is held (default: True)."""
    max_hold: float | None
    """Maximum seconds of renewal (default: no limit)."""


class WaitSettings(HoldSettings, total=False):
    """How to keep a lease, and how many seconds to wait while others have the lock."""

    timeout: float | None
    """Seconds to wait for the lock (default: no limit)."""


class LockSettings(WaitSettings, total=False):
    """How to keep a lease, how long to wait, and how waiters of this process take the lock over."""

    handoff: HandOff
    """How a released lock passes to a waiting thread of this process (default: True)."""


class MutexSettings(LockSettings, total=False):
    """The settings of a mutex that may also rest after its release."""

    at_least: float | None
    """Seconds from the acquire for which nobody else gets the name (default: no rest)."""


class Acquirable(Enterable[L]):
    """A name and settings that can be acquired. Any number of threads may share it."""

    def acquire(self, *, timeout: Timeout = UNSET, **unknown: Never) -> L:
        """Get the lease: use it with `with`, or call its `release`."""
        return self._obtain(lambda: self._inner.acquire(timeout=timeout, **unknown))

    def try_acquire(self, **unknown: Never) -> L | None:
        """Get the lease if the lock is free now, else None. Too few answers raise an error."""
        return self._obtain(lambda: self._inner.try_acquire(**unknown))


class Lease(Holding):
    """One holding of a lock by one thread: `acquire` returns it and `with` enters it."""

    __slots__ = ()
    _inner: asynclock.AnyLease

    @property
    def owner(self) -> str:
        """The random id stored in Redis, with the label of this process."""
        return self._inner.owner

    @property
    def fence(self) -> int:
        """Fencing token; rises with every lease on this name. A store must reject lower ones."""
        return self._inner.fence

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        return self._inner.ttl

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""
        return self._inner.held

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""
        return self._inner.lost_reason

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once it has ended."""
        return self._inner.remaining()

    def extend(self, ttl: float | None = None, **unknown: Never) -> None:
        """Renew the lease now for `ttl` seconds (default: its present ttl), and keep that ttl."""
        self._manager.call(lambda: self._inner.extend(ttl, **unknown))

    def check(self) -> bool:
        """Return whether the nodes still keep the lease for us, without renewing it."""
        return self._manager.call(self._inner.check)

    def detach(self) -> bytes:
        """Hand the lease out of this process: return a detached ticket, which `resume` takes."""
        return self._manager.call(self._inner.detach, undo=self._manager.reclaim)

    def publish(self, text: str) -> bool:
        """Publish a message for people, such as "reindexing 40 %"; return whether it is stored now."""
        return self._manager.call(lambda: self._inner.publish(text))


class MultiLease(Lease):
    """The hold on several names, or on several permits of a semaphore: a `Lease` on all of them."""

    __slots__ = ()
    _inner: asynclock.MultiLease

    @property
    def fences(self) -> dict[str, int]:
        """The fence for each name, or for each slot of a semaphore."""
        return self._inner.fences

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease on all names; on Cluster one lease per name, of a semaphore one per permit."""
        return tuple(Lease(self._manager, inner=one) for one in self._inner.leases)


class ReentrantLease(Lease):
    """One of possibly several nested holds on one lease, used like a `Lease`."""

    __slots__ = ()
    _inner: asynclock.ReentrantLease

    @property
    def depth(self) -> int:
        """The number of holds on the lease at this moment."""
        return self._inner.depth


@_settings.made_by("connect(...).lock(name)")
class Lock(Acquirable[Lease]):
    """A mutex: at most one lease at a time for its name, whatever fails."""

    _lease = Lease


@_settings.made_by("connect(...).fair_lock(name)")
class FairLock(Lock):
    """A mutex that goes to the thread that has waited longest, in any process."""

    _inner: asynclock.FairLock

    def inspect(self) -> Inspection:
        """Return which owner has the lock, node by node; takes at most one node timeout."""
        return self._manager.call(self._inner.inspect)


@_settings.made_by("connect(...).reentrant_lock(name)")
class ReentrantLock(Acquirable[ReentrantLease]):
    """A mutex that the thread which holds it may acquire again; the same mutex as `lock(name)`."""

    _lease = ReentrantLease


@_settings.made_by("connect(...).multi_lock(*names)")
class MultiLock(Acquirable[MultiLease]):
    """Locks all of several names or none; each name is the mutex of `lock(name)`."""

    _inner: asynclock.MultiLock
    _lease = MultiLease

    @property
    def names(self) -> tuple[str, ...]:
        """The names, sorted and without duplicates."""
        return self._inner.names

    def inspect(self) -> Inspection:
        """Return which owner has each name, node by node (`parts`)."""
        return self._manager.call(self._inner.inspect)


@_settings.made_by("connect(...).semaphore(name, permits)")
class Semaphore(Lock):
    """At most `permits` leases at a time for its name, whatever fails; each has its own slot."""

    _inner: asynclock.Semaphore

    @property
    def permits(self) -> int:
        """Maximum number of leases at a time."""
        return self._inner.permits

    def several(self, permits: int) -> SemaphorePermits:
        """Return a lock on `permits` of the permits at once, all or none, used like any lock."""
        return SemaphorePermits(self._manager, inner=self._inner.several(permits))

    def inspect(self) -> Inspection:
        """Return the owner of each slot, node by node (`parts`); takes at most one node timeout."""
        return self._manager.call(self._inner.inspect)


@_settings.made_by("connect(...).semaphore(name, permits).several(permits)")
class SemaphorePermits(Acquirable[MultiLease]):
    """Several permits of one semaphore at once: all of them, or none."""

    _inner: asynclock.SemaphorePermits
    _lease = MultiLease

    @property
    def permits(self) -> int:
        """The number of permits that a lease holds."""
        return self._inner.permits


class Run(Holding):
    """One use of a `Once`: the result that is kept already, or the lock under which to make it."""

    _inner: asynclock.Run

    @property
    def done(self) -> bool:
        """Whether a result is kept. If it is on entry, there is nothing to do but to return it."""
        return self._inner.done

    @property
    def result(self) -> Any:
        """The result that is kept, the same for everybody; None without one."""
        return self._inner.result

    @property
    def fence(self) -> int:
        """The fence of this run; if a result is kept, that of the run that made it."""
        return self._inner.fence

    @property
    def lease(self) -> Lease | None:
        """The lease of this run; None if a result was kept before."""
        return None if self._inner.lease is None else Lease(self._manager, inner=self._inner.lease)

    @property
    def held(self) -> bool:
        """Whether this run has the lock at this moment, by our own clock."""
        return self._inner.held

    def finish(self, value: object) -> None:
        """Say that the work is done, with this result. The end of the block keeps it."""
        self._inner.finish(value)


@_settings.made_by("connect(...).once(key)")
class Once(Acquirable[Run]):
    """Do something once, and give everybody the result, for `keep` seconds."""

    _inner: asynclock.Once
    _lease = Run

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function; see `LockManager.once`."""

        def run(key: str, call: Callable[[Any], R]) -> R:
            with Once(self._manager, inner=self._inner._for_key(key)) as found:
                if not found.done:
                    found.finish(call(found.lease))
            return cast("R", found.result)

        return decorator(run, "once", self.name, self._inner._lease)(function)


@_settings.made_by("connect(...).rwlock(name)")
class ReadWriteLock(Face):
    """Any number of readers or one writer may hold the name, whatever fails, on every deployment."""

    _inner: asynclock.ReadWriteLock

    def read(self, *, timeout: Timeout = UNSET, **unknown: Never) -> Lock:
        """Return the shared side, to be used like any lock."""
        return Lock(self._manager, inner=self._inner.read(timeout=timeout, **unknown))

    def write(self, *, timeout: Timeout = UNSET, **unknown: Never) -> Lock:
        """Return the exclusive side, to be used like any lock."""
        return Lock(self._manager, inner=self._inner.write(timeout=timeout, **unknown))

    def upgrade(self, lease: Lease, *, timeout: Timeout = UNSET) -> Lease:
        """Get a write lease beside the read lease `lease`, which stays."""
        return self.write()._obtain(lambda: self._inner.upgrade(behind(lease), timeout=timeout))

    def downgrade(self, lease: Lease) -> Lease:
        """Return a read lease in place of the write lease `lease`, which ends."""
        return self.read()._obtain(lambda: self._inner.downgrade(behind(lease)))

    def inspect(self) -> Inspection:
        """Return the writer and every reader, node by node (`parts`)."""
        return self._manager.call(self._inner.inspect)


@_settings.made_by("connect(...).event(name)")
class SharedEvent(Face):
    """A `threading.Event` that all processes share: threads set it, clear it and wait for it."""

    _inner: asynclock.SharedEvent

    def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return self._manager.call(self._inner.inspect)

    def set(self, *, timeout: float | None = None) -> None:
        """Set the event: all threads that wait for it go on, and later ones don't wait."""
        self._manager.call(lambda: self._inner.set(timeout=timeout))

    def clear(self, *, timeout: float | None = None) -> None:
        """Clear the event: threads that come later wait. Raises the same errors as `set`."""
        self._manager.call(lambda: self._inner.clear(timeout=timeout))

    def is_set(self, *, timeout: float | None = None) -> bool:
        """Return whether the event is set now. Raises the same errors as `set`."""
        return self._manager.call(lambda: self._inner.is_set(timeout=timeout))

    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until the event is set. Return True, or False after `timeout` seconds."""
        return self._manager.call(lambda: self._inner.wait(timeout=timeout))


@_settings.made_by("connect(...).latch(name, count)")
class Latch(Face):
    """Counts down once from `count` to 0 and then lets all waiting threads go on; it never resets."""

    _inner: asynclock.Latch

    def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return self._manager.call(self._inner.inspect)

    @property
    def count(self) -> int:
        """The number that the latch starts from."""
        return self._inner.count

    def count_down(self, by: int = 1, *, timeout: float | None = None) -> int:
        """Count down by `by`, at most to 0, and return what remains."""
        return self._manager.call(lambda: self._inner.count_down(by, timeout=timeout))

    def remaining(self, *, timeout: float | None = None) -> int:
        """Return the number of counts that remain. Raises the same errors as `count_down`."""
        return self._manager.call(lambda: self._inner.remaining(timeout=timeout))

    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until nothing remains. Return True, or False after `timeout` seconds."""
        return self._manager.call(lambda: self._inner.wait(timeout=timeout))


@_settings.made_by("connect(...).barrier(name, parties)")
class Barrier(Face):
    """Lets `parties` callers of `wait` go on together, again and again."""

    _inner: asynclock.Barrier

    def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return self._manager.call(self._inner.inspect)

    @property
    def parties(self) -> int:
        """The number of parties that go on together."""
        return self._inner.parties

    def wait(self, *, timeout: float | None = None) -> int:
        """Wait until all parties wait; return this party's place in the order of arrival, from 0."""
        return self._manager.call(lambda: self._inner.wait(timeout=timeout))

    def waiting(self, *, timeout: float | None = None) -> int:
        """Return the number of parties that wait now. Raises the same errors as `wait`."""
        return self._manager.call(lambda: self._inner.waiting(timeout=timeout))

    def abort(self, *, timeout: float | None = None) -> None:
        """Break the barrier: all parties that wait, and all later ones, get BrokenBarrierError."""
        self._manager.call(lambda: self._inner.abort(timeout=timeout))

    def reset(self, *, timeout: float | None = None) -> None:
        """Make the barrier usable again, and empty: all parties that wait get BrokenBarrierError."""
        self._manager.call(lambda: self._inner.reset(timeout=timeout))

    def broken(self, *, timeout: float | None = None) -> bool:
        """Return whether the barrier is broken. Raises the same errors as `abort`."""
        return self._manager.call(lambda: self._inner.broken(timeout=timeout))


@_settings.made_by("connect(...)")
class LockManager(Bridge):
    """Makes locks on one set of nodes. `connect` makes it; `close` or `with` closes it."""

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        max_hold: float | None = None,
        handoff: HandOff = True,
        at_least: float | None = None,
        **unknown: Never,
    ) -> Lock:
        """Make a mutex on `name`. Raises ConfigurationError."""
        return Lock(
            self,
            inner=self._locks.lock(
                name,
                ttl=ttl,
                timeout=timeout,
                renew=renew,
                max_hold=max_hold,
                handoff=handoff,
                at_least=at_least,
                **unknown,
                interrupt=False,
            ),
        )

    def reentrant_lock(self, name: str, **settings: Unpack[MutexSettings]) -> ReentrantLock:
        """Make a mutex on `name` that its holder may acquire again. Raises ConfigurationError."""
        return ReentrantLock(
            self, inner=self._locks.reentrant_lock(name, **settings, interrupt=False)
        )

    def multi_lock(self, *names: str, **settings: Unpack[LockSettings]) -> MultiLock:
        """Make a lock on all of `names` at once; each is the mutex of `lock(name)`."""
        return MultiLock(self, inner=self._locks.multi_lock(*names, **settings, interrupt=False))

    def synchronized(
        self, template: str, *, lease: str | None = None, **settings: Unpack[MutexSettings]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function: each call holds the mutex that `template` names."""
        return synchronized(partial(self.lock, **settings), template, lease)

    def once(
        self,
        key: str,
        *,
        keep: float = DEFAULT_KEEP,
        lease: str | None = None,
        **settings: Unpack[LockSettings],
    ) -> Once:
        """Make a `Once`: work that is done once per `key`. Raises ConfigurationError."""
        return Once(
            self, inner=self._locks.once(key, keep=keep, lease=lease, **settings, interrupt=False)
        )

    def rwlock(self, name: str, **settings: Unpack[LockSettings]) -> ReadWriteLock:
        """Make a read-write lock on `name`: `.read()` is shared, `.write()` is exclusive."""
        return ReadWriteLock(self, inner=self._locks.rwlock(name, **settings, interrupt=False))

    def fair_lock(
        self, name: str, *, at_least: float | None = None, **settings: Unpack[WaitSettings]
    ) -> FairLock:
        """Make a mutex on `name` that goes to the longest waiter. Raises ConfigurationError."""
        return FairLock(
            self, inner=self._locks.fair_lock(name, at_least=at_least, **settings, interrupt=False)
        )

    def event(self, name: str, *, keep: float = DEFAULT_KEEP) -> SharedEvent:
        """Make an event on `name`: a flag that every process sees. Raises ConfigurationError."""
        return SharedEvent(self, inner=self._locks.event(name, keep=keep))

    def latch(self, name: str, count: int, *, keep: float = DEFAULT_KEEP) -> Latch:
        """Make a latch on `name` that opens after `count` counts. Raises ConfigurationError."""
        return Latch(self, inner=self._locks.latch(name, count, keep=keep))

    def barrier(
        self, name: str, parties: int, *, ttl: float | None = None, keep: float = DEFAULT_KEEP
    ) -> Barrier:
        """Make a barrier on `name` for `parties` at a time. Raises ConfigurationError."""
        return Barrier(self, inner=self._locks.barrier(name, parties, ttl=ttl, keep=keep))

    def semaphore(self, name: str, permits: int, **settings: Unpack[LockSettings]) -> Semaphore:
        """Make a semaphore on `name` with `permits` permits. Raises ConfigurationError."""
        return Semaphore(
            self, inner=self._locks.semaphore(name, permits, **settings, interrupt=False)
        )

    def inspect(self, name: str) -> Inspection:
        """Return which owner has the mutex `name`, node by node; takes at most one node timeout."""
        return self.call(lambda: self._locks.inspect(name))

    def inspect_all(self) -> list[Inspection]:
        """Find everything that is held on the nodes, by whatever process, sorted by name and part."""
        return self.call(lambda: listed(self._locks.inspect_all()))

    def resume(self, ticket: bytes, **settings: Unpack[HoldSettings]) -> Lease:
        """Take over a lease that `Lease.detach` handed out of a process; return it as a new lease."""
        return Lock(self, inner=self._locks)._obtain(
            lambda: self._locks.resume(ticket, **settings, interrupt=False)
        )

    def release_held(self, name: str, *, owner: str | None = None, force: bool = False) -> bool:
        """Release `name` for its holder, in whatever process; return whether a node did."""
        return self.call(lambda: self._locks.release_held(name, owner=owner, force=force))

    def ask_back(self, name: str) -> bool:
        """Ask the holder of `name` to give it back; return whether somebody was asked."""
        return self.call(lambda: self._locks.ask_back(name))

    def nodes(self) -> tuple[NodeHealth, ...]:
        """Return the health of each node, without asking the nodes."""
        return self.call(lambda: answer(self._locks.nodes))

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are held through this manager, oldest first."""
        return tuple(
            Lease(self, inner=one) for one in self.call(lambda: answer(self._locks.leases))
        )

    def waiters(self) -> dict[str, int]:
        """Return the number of this manager's threads that wait for each name that is held now."""
        return self.call(lambda: answer(self._locks.waiters))

    def waits(self) -> dict[str, list[float]]:
        """Return the seconds that each of these threads has waited so far, by name, longest first."""
        return self.call(lambda: answer(self._locks.waits))

    def statistics(self) -> Statistics:
        """Return the manager's counts, without asking the nodes."""
        return self.call(lambda: answer(self._locks.statistics))

    def observe(self, observer: Observer) -> None:
        """Call `observer` with every event from now on, in the thread of the event loop."""
        self.call(lambda: answer(lambda: self._locks.observe(observer)))

    def unobserve(self, observer: Observer) -> None:
        """Undo one `observe` of `observer`; does nothing if it isn't an observer."""
        self.call(lambda: answer(lambda: self._locks.unobserve(observer)))

    def ready(self, *, voting: bool = False, timeout: float | None = None) -> None:
        """Wait until each node is connected or has failed or, with `voting`, until a quorum votes."""
        self.call(lambda: self._locks.ready(voting=voting, timeout=timeout))


def synchronized(
    lock: Callable[[str], Lock], template: str, lease: str | None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: see `LockManager.synchronized`."""

    def run(name: str, call: Callable[[Any], R]) -> R:
        with lock(name) as held:
            return call(held)

    return decorator(run, "synchronized", template, lease)


def connect(
    *nodes: NodeAddress,
    ttl: float = 10.0,
    max_ttl: float | None = None,
    node_timeout: float = 0.25,
    turn: float = 0.01,
    ticket_ttl: float | None = None,
    fence_retention: float | None = None,
    acks: int | Literal["majority", "all"] = 0,
    durable: bool = False,
    prefix: str = "asynclock:",
    label: str | None = None,
    restart_guard: RestartGuard = True,
    clock_guard: bool = True,
    set_guard: bool = True,
    strict: bool = False,
    observers: Sequence[Observer] = (),
    **unknown: Never,
) -> LockManager:
    """Make a manager for locks on `nodes`: URLs, or `redis.asyncio.Redis` clients (for settings)."""
    return LockManager(
        locks=connect_asynchronously(
            *nodes,
            ttl=ttl,
            max_ttl=max_ttl,
            node_timeout=node_timeout,
            turn=turn,
            ticket_ttl=ticket_ttl,
            fence_retention=fence_retention,
            acks=acks,
            durable=durable,
            prefix=prefix,
            label=label,
            restart_guard=restart_guard,
            clock_guard=clock_guard,
            set_guard=set_guard,
            strict=strict,
            observers=observers,
            **unknown,
        )
    )


for _name in set(__all__) - {"LockSettings"}:
    describe(globals()[_name], getattr(asynclock, _name))
describe(Acquirable, base.Acquirable)
describe(Holding.release, asynclock.Lease.release)
