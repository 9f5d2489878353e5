"""The semaphore: a limited number of holders, as numbered slots that are ordinary mutexes.

To count holders per node and take a simple majority admits too many (docs/decisions/0016).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from .. import _clock, _settings
from .._engine.acquire import Acquire
from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import Lease
from .._engine.spec import LeaseOptions, LockSpec
from .._keys import derived, lock_key
from .base import Acquirable, Held, Kind, Lockable, Queue, use
from .lock import SCRIPT
from .multi import MultiLease, Try, obtain, obtain_at_once, obtain_behind

MOST_PERMITS = 256
"""Maximum number of permits: four windows, so that an attempt and its hops see every slot."""
WAITERS = Queue(SCRIPT, "slots")
COLLECTORS = Queue(SCRIPT, "collectors")
SLOT = Held(SCRIPT, numbered=MOST_PERMITS, queue=WAITERS.suffix)
SEVERAL = Held(SCRIPT, "several", "several", queue=COLLECTORS.suffix)
PARTS = (SLOT, WAITERS, SEVERAL, COLLECTORS)
KIND = Kind("semaphore", (SCRIPT,), lambda on, name, *how: use(Semaphore(on, name, 1, *how)), PARTS)

WINDOW = 64
"""Number of slots that a refusal reports on; a larger one would make every request longer."""


@lru_cache(maxsize=1024)
def gate(key: str, name: str) -> LockSpec:
    """Return the spec of the gate before the permits: one caller collects at a time."""
    return SEVERAL.spec(name, key)


@lru_cache(maxsize=1024)
def lone_slot(key: str, name: str, permits: int, number: int) -> LockSpec:
    """Return the spec of one slot for a caller that a refusal sends to no other slot."""
    return SLOT.spec(name, key, str(number), queue_key=(key, permits), permits=permits)


@lru_cache(maxsize=1024)
def slot(key: str, name: str, permits: int, number: int, windows: int | None = None) -> LockSpec:
    """Return the spec of one slot; a refused caller looks at `windows` more (None: at all)."""
    left = (permits - 1) // WINDOW if windows is None else windows
    others = [(number + i) % permits for i in range(1, min(permits, WINDOW))]
    neighbours = tuple(derived(key, str(other)) for other in others)

    def choose(slot_votes: Sequence[bytes], spare: int, random: float) -> LockSpec | None:
        taken = [sum(votes[i : i + 1] == b"1" for votes in slot_votes) for i in range(len(others))]
        least = min(taken, default=spare + 1)
        if least <= spare:
            best = [other for other, votes in zip(others, taken, strict=True) if votes == least]
            return slot(key, name, permits, best[int(random * len(best))], left)
        if left:
            return slot(key, name, permits, (number + WINDOW) % permits, left - 1)
        return None

    return SLOT.spec(
        name,
        key,
        str(number),
        queue_key=(key, permits),
        permits=permits,
        watched=(derived(key, str(number)), *neighbours),
        neighbours=neighbours,
        choose_slot=choose,
    )


@_settings.made_by("connect(...).semaphore(name, permits)")
class Semaphore(Lockable):
    """At most `permits` leases at a time for its name, whatever fails; each has its own slot.

    Every slot is a mutex of its own (`lease.part` is its number). Fences rise per slot, so a store
    that checks fences must tell slots apart. Works on every deployment, with a minority of nodes
    dead. A refusal reports the free slots, so one or two attempts find a free one. Processes that
    ask at the same moment get them one after the other.

    All users of a name should use the same `permits`. While they differ, as during a rollout, at
    most the largest number is admitted. A user with a smaller number takes none of the higher
    slots; a lease on a higher slot lasts until it is released or lost. All wait in one queue: while
    such a user is the first, those behind it wait as well, even for a higher slot that is free.
    """

    __slots__ = ("_key", "permits")

    def __init__(
        self, engine: Engine, name: str, permits: int, options: LeaseOptions, timeout: float | None
    ) -> None:
        self.permits: int = _settings.count(permits, "permits", MOST_PERMITS)
        """Maximum number of leases at a time."""
        self._key = lock_key(engine.settings.prefix, _settings.name(name, "a semaphore's name"))
        super().__init__(engine, slot(self._key, name, permits, 0), options, timeout)

    def __repr__(self) -> str:
        ttl = self._options.ttl
        return f"<{type(self).__name__} {self.name!r} permits={self.permits} ttl={ttl:g}>"

    def several(self, permits: int) -> SemaphorePermits:
        """Return a lock on `permits` of the permits at once, all or none, used like any lock.

        Raises ConfigurationError.

        Args:
            permits: number of permits, from 1 to all.
        """
        checked = _settings.count(permits, "several", self.permits)
        return SemaphorePermits(self, checked, gate(self._key, self.name))

    def _call(
        self,
        timeout: float | None,
        *,
        once: bool = False,
        since: float | None = None,
        into: Lease | None = None,
    ) -> Acquire:
        (number,) = self._free_slots(1)
        spec = slot(self._key, self.name, self.permits, number)
        return Acquire(self._engine, spec, self._options, timeout, once, since, into)

    def _free_slots(self, most: int) -> list[int]:
        """Return at most `most` slots that this process doesn't hold, or any if it holds all.

        They begin with a random one: rivals that start apart seldom collide.
        """
        queue = self._engine.queues.get(self._spec.queue_key or "")
        free: Sequence[int] = range(self.permits)
        if queue is not None and queue.grants and not queue.full:
            ours = {grant.spec.part for grant in queue.grants}
            free = [number for number in free if str(number) not in ours]
        size = len(free)
        start = int(self._engine.random() * size)
        return [free[i % size] for i in range(start, start + min(most, size))]

    async def inspect(self) -> Inspection:
        """Return the owner of each slot, node by node (`parts`); takes at most one node timeout."""
        one = partial(slot, self._key, self.name, self.permits)
        slots = [one(number) for number in range(self.permits)]
        return await inspect_parts(self._engine, KIND.name, slots, KIND.queues(self._key))


@_settings.made_by("connect(...).semaphore(name, permits).several(permits)")
class SemaphorePermits(Acquirable[MultiLease]):
    """Several permits of one semaphore at once: all of them, or none.

    `lease.fences` has the fence of each slot. A call that may wait first asks for all its permits
    at once. If they aren't all free, it takes them one by one as they become free and keeps them
    until there are enough, so small requests can't starve a large one: it competes for each permit
    that is released. While it waits, the permits that it has already are idle. Of several large
    requests, in all processes, only one collects at a time, so two of them never wait for each
    other's permits. A task that holds some of the permits and asks for more than are left waits
    for itself until its timeout: only if it holds all of them it gets AlreadyHeldError.
    """

    __slots__ = ("_gate", "_semaphore", "permits")

    def __init__(self, semaphore: Semaphore, permits: int, gate: LockSpec) -> None:
        super().__init__(semaphore._engine, semaphore._spec, semaphore._options, semaphore._timeout)
        self.permits: int = permits
        """The number of permits that a lease holds."""
        self._semaphore = semaphore
        self._gate = gate

    def __repr__(self) -> str:
        counts = f"permits={self.permits} of {self._semaphore.permits}"
        return f"<{type(self).__name__} {self.name!r} {counts} ttl={self._options.ttl:g}>"

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> MultiLease:
        lease = None
        collecting = self._engine.queues.get(self._gate.queue_key or "")
        collects = collecting is not None and collecting.used  # by a task of this process
        late = timeout is not None and _clock.now() >= since + timeout
        # Of rivals that try at once, the one that gets the gate wins.
        if not (once or late or collects):
            semaphore = self._semaphore
            free = semaphore._free_slots(self.permits)
            if len(free) == self.permits:
                of = semaphore._key, self.name, semaphore.permits
                whole = MultiLease(self._engine, self.name)
                specs = (lone_slot(*of, number) for number in free)
                tries = [
                    Try(self._engine, one, self._options, None, once=True, into=whole)
                    for one in specs
                ]
                lease = await obtain_at_once(whole, tries)
        if lease is None:
            options = LeaseOptions(self._options.ttl)
            gate = partial(Acquire, self._engine, self._gate, options, timeout, once, since)
            lease = await obtain_behind(gate, partial(self._collect, timeout, once, since))
        return lease

    async def _collect(self, timeout: float | None, once: bool, since: float) -> MultiLease:
        lease = MultiLease(self._engine, self.name)
        call = partial(self._semaphore._call, timeout, once=once, since=since, into=lease)
        return await obtain(lease, [call] * self.permits)
