"""Raises at each point where Python runs signal handlers, and prints where a lock stayed held.

These points are the beginning of each Python function and the return from each C function. The test
runs this in a process of its own, because exceptions of a profiler disturb the interpreter.
"""

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from types import FrameType
from typing import Any

from asynclock import blocking
from tests.waiting import until_in_thread as until


class HandlerError(RuntimeError):
    """What a handler raises. Nothing takes it for a RuntimeError of the library."""


class Handler:
    """Raises at one point of this thread, after a number of them."""

    def __init__(self, points: int) -> None:
        self._left = points
        self.raised_in = ""

    def start(self) -> None:
        sys.setprofile(self._at)

    def _at(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in {"call", "c_return"}:
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.raised_in = f"{event} {frame.f_code.co_qualname}"
            raise HandlerError


def connect(name: str = "") -> blocking.LockManager:
    return blocking.connect(f"memory://{name}", ttl=60, max_ttl=60)


# ---- what ends -----------------------------------------------------------------------------------
def leave(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with locks.lock("a"):
        start()


def leave_by_an_error(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with suppress(KeyError), locks.lock("a"):
        start()
        raise KeyError


def leave_a_lease(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with locks.multi_lock("a", "b").acquire():
        start()


def leave_several(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with locks.reentrant_lock("a"), locks.reentrant_lock("a"), locks.semaphore("s", permits=1):
        start()


def leave_a_stack(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with ExitStack() as stack:
        stack.enter_context(locks.lock("a"))
        start()


def leave_a_stack_with_a_lease(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with ExitStack() as stack:
        stack.enter_context(locks.lock("a").acquire())
        start()


def leave_a_manager(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with locks:
        locks.lock("a").acquire()
        start()


def release(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lease = locks.fair_lock("a").acquire()
    start()
    lease.release()


def close(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    locks.lock("a").acquire()
    start()
    locks.close()


def enter(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lock = locks.lock("a")
    start()
    with lock:
        pass


def enter_a_lease(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lease = locks.lock("a").acquire()
    start()
    with lease:
        pass


def acquire(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lock = locks.lock("a")
    start()
    lock.acquire().release()


def try_acquire(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lock = locks.lock("a")
    start()
    lease = lock.try_acquire()
    assert lease
    lease.release()


def upgrade(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lock = locks.rwlock("a")
    with lock.read() as reader:
        start()
        with lock.upgrade(reader):
            pass


def change_sides(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    lock = locks.rwlock("a")
    with lock.write() as writer:
        start()
        with lock.downgrade(writer):
            pass


def detach(locks: blocking.LockManager, start: Callable[[], None]) -> None:
    with locks.lock("a") as lease:
        start()
        ticket = lease.detach()
        sys.setprofile(None)  # from here on the program has the ticket
    locks.resume(ticket).release()


EARLY: dict[Any, str] = {
    enter_a_lease: "c_return Handler.start|.* Exit.__get__|call Holding.__enter__",
    upgrade: ".* Exit.__get__|call Holding.__enter__",
    **dict.fromkeys((acquire, try_acquire), "call Holding.release"),
    release: "c_return Handler.start|call Holding.release",
    close: "c_return Handler.start|call Bridge.close",
    change_sides: ".* Exit.__get__|call Holding.__enter__",
    leave_a_stack: ".*ExitStack|call Enterable.__exit__",
    leave_a_stack_with_a_lease: ".*ExitStack|call Holding.__exit__",
}
"""Points where the ending has not begun, or a lease is between two calls of the program."""


def main(work: Callable[..., None]) -> None:
    """Print where a lock stayed held, and then how often it was interrupted."""
    kept = []
    with connect() as others:
        for point in count():
            locks, handler = connect(), Handler(point)
            try:
                work(locks, handler.start)
            except HandlerError as error:
                kept.append(error)  # as a log or the result of a task does, with all its frames
            except TypeError as error:
                # If a profiler raises in a `with`, Python 3.11 at times calls a traceback.
                if sys.version_info >= (3, 12) or "'traceback' object" not in str(error):
                    raise
                locks.close()
                continue
            finally:
                sys.setprofile(None)
            if not handler.raised_in:
                break
            if not re.match(EARLY.get(work, "nowhere"), handler.raised_in):
                try:
                    until(lambda: not others.inspect_all(), timeout=2)
                except AssertionError:
                    print(work.__name__, handler.raised_in)
            locks.close()
    print(work.__name__, len(kept))


if __name__ == "__main__":
    sys.unraisablehook = lambda _: None  # Python only reports what is raised in a finalizer
    for name in sys.argv[1:]:
        main(globals()[name])
