"""Calls in threads of their own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 15.0


def started(work: Callable[[], T]) -> Future[T]:
    """Call `work` in a thread of its own, which no test waits for if it never ends."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def in_thread(work: Callable[[], T]) -> T:
    return started(work).result(PATIENCE)
