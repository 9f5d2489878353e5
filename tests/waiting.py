"""How tests wait: for a condition that can be seen, never for time that should be enough."""

import asyncio
import contextlib
import functools
import inspect
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asynclock import AsyncLockError, LockManager, QuorumUnavailableError
from asynclock.testing import run_virtual

PATIENCE = 30.0
"""Seconds for anything that must happen: the machine may be busy."""
HOUR = 3600.0
"""Seconds of virtual time that a test may take."""


async def until(
    condition: Callable[[], Any], what: str = "", *, timeout: float = PATIENCE, every: float = 0.005
) -> Any:
    """Look until `condition` holds, a function or a coroutine function, and return its result.

    Raises TimeoutError, saying what never happened.
    """
    found = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(every)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout:g} s: {what or condition}") from None


async def becomes(
    read: Callable[[], Any], wanted: object, *, timeout: float = PATIENCE, every: float = 0.005
) -> None:
    """Look until `read`, a function or a coroutine function, returns `wanted`.

    Raises TimeoutError, saying what it returned instead.
    """
    found = None

    async def same() -> bool:
        nonlocal found
        found = read()
        if inspect.isawaitable(found):
            found = await found
        return bool(found == wanted)

    try:
        await until(same, timeout=timeout, every=every)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout:g} s: {found!r} is not {wanted!r}") from None


def until_in_thread(condition: Callable[[], object], *, timeout: float = PATIENCE) -> None:
    """Look until `condition` holds, as `until` does, in a test without an event loop."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


async def call_off(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def cancellations() -> int:
    """Return how often this task was asked to end."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def comes_to_say(locks: LockManager, words: str) -> None:
    """Ask for a lock until its error matches: the first ones may know less."""

    async def says() -> bool:
        with pytest.raises(AsyncLockError) as caught:
            await locks.lock("a").try_acquire()
        return re.search(words, str(caught.value)) is not None

    await until(says, f"the error says {words!r}", every=0.01)


async def go_through(lock: Any) -> None:
    """Enter a lock, or what else can be entered, and leave it at once."""
    async with lock:
        pass


async def refused(wanted: Any) -> bool:
    """Return whether others have it; asks until the nodes answer.

    On a busy machine a primary may be unconfirmed for a moment, so that nothing can be decided.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(QuorumUnavailableError):
                return await wanted.try_acquire() is None
            await asyncio.sleep(0.05)


async def waits(locks: LockManager, tasks: int = 1) -> None:
    """Look until this many tasks wait for locks of a manager, and one of them was refused.

    The others wait for it: one task of a process asks for all that want the same name.
    """
    await until(
        lambda: locks.statistics().waiting >= tasks and locks.statistics().refused,
        f"{tasks} tasks wait and one was refused",
    )


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test with nodes in memory one that no busy machine makes late.

    The test makes its nodes itself, because a fixture would read another clock. What never happens
    ends the test after an hour of that clock, which is soon over.
    """

    async def within_an_hour(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(HOUR):
            await test(*args, **kwargs)

    @functools.wraps(test)
    def play(*args: Any, **kwargs: Any) -> None:
        run_virtual(within_an_hour(*args, **kwargs))

    return play
