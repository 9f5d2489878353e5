"""The locks of a name by their kinds, and the calls that acquire them."""

from collections.abc import Callable
from typing import Any

from asynclock import LockManager

Make = Callable[[LockManager], Any]
LOCKS: dict[str, Make] = {
    "lock": lambda locks: locks.lock("a"),
    "strict": lambda locks: locks.lock("a", handoff="strict"),
    "reentrant_lock": lambda locks: locks.reentrant_lock("a"),
    "fair_lock": lambda locks: locks.fair_lock("a"),
    "multi_lock": lambda locks: locks.multi_lock("a", "b"),
    "semaphore": lambda locks: locks.semaphore("a", 1),
    "one of two": lambda locks: locks.semaphore("a", 2),
    "several": lambda locks: locks.semaphore("a", 3).several(2),
    "read": lambda locks: locks.rwlock("a").read(),
    "write": lambda locks: locks.rwlock("a").write(),
}


def kinds(*left_out: str, **more: Make) -> dict[str, Make]:
    """Return all locks but some, and others."""
    return {kind: make for kind, make in LOCKS.items() if kind not in left_out} | more


def calls(*left_out: str) -> dict[str, Make]:
    """Return the calls that acquire all locks but some, and that of an election."""

    def acquire(make: Make) -> Make:
        return lambda locks: make(locks).acquire()

    made = {kind: acquire(make) for kind, make in kinds(*left_out).items()}
    return {**made, "election": lambda locks: locks.election("a").campaign()}
