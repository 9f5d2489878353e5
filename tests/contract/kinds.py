"""The kinds of lock whose holder excludes all others: each keeps the whole contract.

Each kind is tried on every deployment in every state. By day only the mutex is: the others run the
same code between their scripts and the nodes, so by day a few deployments are enough. A reader
excludes no other reader, and an election has other methods: both have tests of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asynclock
from tests.contract.matrix import ALL

FEW = (
    *("1-memory", "3-memory", "1-up", "3-dead"),
    *("acks1-tcp-up", "sentinel-tcp-up", "cluster-tcp-up"),
)
"""One deployment of each sort."""
FEWER = ("3-memory", "1-up", "3-dead", "cluster-tcp-up")
"""The deployments by day for all kinds but the mutex."""


@dataclass(frozen=True)
class Kind:
    """One kind of lock: called with a manager and settings, it makes the lock of a name."""

    name: str
    make: Callable[..., Any]
    hands_on: bool = True
    """Whether a process hands its lease to its own next waiter."""
    reentrant: bool = False
    rests: bool = False
    """Whether it takes `at_least`."""
    detaches: bool = False
    """Whether its leases can be detached."""
    inspect: Callable[..., Any] = lambda locks: locks.inspect("a")
    names: tuple[str, ...] = ("a",)
    """What errors may call the lock "a"."""

    def __call__(self, locks: asynclock.LockManager, name: str = "a", **settings: Any) -> Any:
        return self.make(locks, name, **settings)


def _several(locks: asynclock.LockManager, name: str, **settings: Any) -> asynclock.MultiLock:
    return locks.multi_lock(name, f"{name}{name}", **settings)


async def _look(lock: Any) -> asynclock.Inspection:
    """What is known of its first part that somebody holds: a name, a slot, or the writer."""
    seen: asynclock.Inspection = await lock.inspect()
    return next((part for part in seen.parts if part.owner), seen)


def _one(locks: asynclock.LockManager, name: str, **settings: Any) -> asynclock.Semaphore:
    return locks.semaphore(name, 1, **settings)


def _writer(locks: asynclock.LockManager, name: str, **settings: Any) -> asynclock.WriteLock:
    return locks.rwlock(name, **settings).write()


Locks = asynclock.LockManager
MUTEX = Kind("lock", Locks.lock, rests=True, detaches=True)
OTHERS = (
    Kind("reentrant_lock", Locks.reentrant_lock, reentrant=True, rests=True),
    Kind("semaphore", _one, inspect=lambda locks: _look(_one(locks, "a"))),
    Kind("writer", _writer, inspect=lambda locks: _look(locks.rwlock("a"))),
    # On a Cluster each name is locked and lost by itself.
    Kind(
        "multi_lock",
        _several,
        inspect=lambda locks: _look(_several(locks, "a")),
        names=("a, aa", "a", "aa"),
    ),
    Kind(
        "fair_lock",
        Locks.fair_lock,
        hands_on=False,
        rests=True,
        detaches=True,
        inspect=lambda locks: locks.fair_lock("a").inspect(),
    ),
)


def _cases() -> Iterator[tuple[str, tuple[str, Kind]]]:
    yield from ((face, (face, MUTEX)) for face in ALL)
    for kind in OTHERS:
        yield from ((f"{face}-{kind.name}", (face, kind)) for face in ALL)


CASES = dict(_cases())
"""The name of a face, and what each test runs on: a deployment and a kind of lock."""
