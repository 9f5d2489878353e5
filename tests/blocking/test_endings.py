"""Cancellations, exits and losses end the call that they reach, and nothing else."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import asynclock
from asynclock import blocking
from asynclock.testing import lose
from tests.blocking.threads import PATIENCE, in_thread
from tests.waiting import until_in_thread as until


@pytest.fixture
def locks() -> Iterator[blocking.LockManager]:
    locks = blocking.connect("memory://", ttl=60, max_ttl=60)
    yield locks
    in_thread(locks.close)


async def take(manager: asynclock.LockManager) -> None:
    """Lose the first lease of a manager."""
    lose(manager.leases()[0])


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def lets_one_out(_: Any) -> None:
    raise asyncio.CancelledError


async def cancels_itself(_: Any) -> None:
    current().cancel()
    await asyncio.sleep(PATIENCE)


async def cancels_as_it_returns(_: Any) -> None:
    current().cancel()


async def is_cancelled_later(_: Any) -> None:
    asyncio.get_running_loop().call_soon(current().cancel)


@pytest.mark.parametrize(
    ("function", "raises"),
    [
        (lets_one_out, True),
        (cancels_itself, True),
        (cancels_as_it_returns, False),
        (is_cancelled_later, False),
    ],
)
def test_after_a_cancellation_the_thread_has_its_task_and_its_locks(
    locks: blocking.LockManager, function: Callable[[Any], Any], raises: bool
) -> None:
    async def cancellations(_: Any) -> int:
        return current().cancelling()

    def work() -> None:
        with locks.reentrant_lock("a"):
            if raises:
                with pytest.raises(asyncio.CancelledError):
                    locks.run(function)
            else:
                locks.run(function)
            assert locks.run(cancellations) == 0
            with locks.reentrant_lock("a", timeout=1) as again:
                assert again.depth == 2

    in_thread(work)


def test_a_loss_between_calls_is_told_where_the_lease_is_left(locks: blocking.LockManager) -> None:
    async def enter(locks: asynclock.LockManager) -> asynclock.Lease:
        return await locks.lock("a").acquire()

    async def take_later(manager: asynclock.LockManager) -> None:
        asyncio.get_running_loop().call_later(0.01, lose, manager.leases()[0])

    def work() -> None:
        lease = locks.run(enter)
        locks.run(lambda _: lease.__aenter__())
        locks.run(take_later)
        until(lambda: lease.lost_reason)
        with locks.lock("b", timeout=1):
            pass
        with pytest.raises(asynclock.LeaseLostError):
            locks.run(lambda _: lease.__aexit__(None, None, None))

    in_thread(work)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_in_run_is_the_callers(locks: blocking.LockManager, error: BaseException) -> None:
    async def fail(_: Any) -> None:
        raise error

    def work() -> None:
        with pytest.raises(type(error)) as raised:
            locks.run(fail)
        assert raised.value is error
        assert locks.lock("b").acquire(timeout=1).release()

    lease = in_thread(locks.lock("a").acquire)
    in_thread(work)
    assert in_thread(lease.release)


@pytest.mark.parametrize("fail", [lambda _: 1 / 0, lambda _: sys.exit(3)])
def test_a_callback_that_fails_or_exits_is_logged(
    locks: blocking.LockManager, caplog: pytest.LogCaptureFixture, fail: Callable[[Any], Any]
) -> None:
    lease, kept = in_thread(locks.lock("a").acquire), in_thread(locks.lock("b").acquire)
    lease.on_lost(fail)
    in_thread(lambda: locks.run(take))
    until(lambda: "a callback of 'a' failed" in caplog.text, timeout=PATIENCE)
    assert in_thread(kept.release)


def test_a_callback_that_the_exit_of_the_process_meets_has_not_failed() -> None:
    program = """
import threading, time
from asynclock import blocking
locks, begun = blocking.connect("memory://"), threading.Event()
def tell(lease):
    begun.set()
    while lease.held:
        time.sleep(0.01)
    time.sleep(0.3)  # meanwhile the event loop ends
lease = locks.lock("a").acquire()
lease.on_wanted(tell)
assert locks.ask_back("a") and begun.wait(20)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert "failed" not in ended.stderr


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_another_task_of_the_loop_is_logged(
    locks: blocking.LockManager, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    caplog.set_level(logging.ERROR)
    left = []

    async def fail() -> None:
        raise error

    async def leave_a_task(_: Any) -> None:
        left.append(asyncio.create_task(fail()))

    lease = in_thread(locks.lock("a").acquire)
    in_thread(lambda: locks.run(leave_a_task))
    until(lambda: "goes on after an exit" in caplog.text, timeout=PATIENCE)
    assert in_thread(lease.release)
    assert isinstance(left[0].exception(), error)
