"""Cancellations and exits end the call that they reach: neither its thread's task nor the loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio
import pytest

import asynclock
from asynclock import blocking
from asynclock.blocking import _calls, _loop
from asynclock.errors import ConfigurationError
from asynclock.testing import lose
from tests.waiting import until_in_thread as until

T = TypeVar("T")
PATIENCE = 15.0


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[_loop.BackgroundLoop]:
    """A loop that no other test needs."""
    background = _loop.BackgroundLoop()
    monkeypatch.setattr(_loop, "_current", background)
    yield background
    background.stop()


@pytest.fixture
def locks(background: _loop.BackgroundLoop) -> Iterator[blocking.LockManager]:
    locks = blocking.connect("memory://", ttl=60, max_ttl=60)
    yield locks
    in_thread(locks.close)


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


def test_a_loss_between_two_calls_is_reported_where_the_lease_is_left(
    locks: blocking.LockManager, background: _loop.BackgroundLoop
) -> None:
    async def enter(locks: asynclock.LockManager) -> asynclock.Lease:
        return await locks.lock("a").acquire()

    def work() -> None:
        lease = locks.run(enter)
        locks.run(lambda _: lease.__aenter__())
        background.loop.call_soon_threadsafe(lose, lease)
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


def test_an_exit_in_a_callback_is_logged_like_any_other_error(
    locks: blocking.LockManager, caplog: pytest.LogCaptureFixture
) -> None:
    lease, kept = in_thread(locks.lock("a").acquire), in_thread(locks.lock("b").acquire)
    lease.on_lost(lambda _: sys.exit(3))

    async def take(_: Any) -> None:
        lose(lease._lease)  # type: ignore[arg-type]

    in_thread(lambda: locks.run(take))
    until(lambda: "a callback failed" in caplog.text, timeout=PATIENCE)
    assert in_thread(kept.release)


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


def test_the_loop_outlives_a_function_that_cancels_every_task(
    background: _loop.BackgroundLoop,
) -> None:
    async def cancel_all() -> str:
        for task in asyncio.all_tasks():
            task.cancel()
        return "served"

    def work() -> list[str]:
        return [background.call(cancel_all) for _ in range(3)]

    assert in_thread(work) == in_thread(work) == ["served"] * 3
    background.stop()
    assert not background._thread.is_alive()


def test_a_loop_that_is_stopped_lets_no_call_wait(
    background: _loop.BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(PATIENCE)

    waits = started(lambda: background.call(wait))
    assert begun.wait(PATIENCE)
    stops = started(lambda: background.call(stop))
    for call in (stops, waits):
        with pytest.raises(ConfigurationError, match="has ended"):
            call.result(PATIENCE / 2)
    background._thread.join(PATIENCE)
    for later in (lambda: background.call(wait), lambda: background.start(wait)):
        with pytest.raises(ConfigurationError, match="has ended"):
            in_thread(later)
    assert len(told) == 1


def test_the_exit_of_a_process_ends_all_it_can_and_then_the_loop(
    background: _loop.BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0.1)
        served.append("served")

    async def fails() -> None:
        raise ValueError("wrong")

    monkeypatch.setattr(_loop, "_at_end", [fails, work])
    in_thread(_loop._end)
    assert served == ["served"]
    assert background.over
    assert not background._thread.is_alive()
    in_thread(_loop._end)  # nothing is left to end


def test_the_exit_releases_the_leases_of_every_manager(
    background: _loop.BackgroundLoop,
) -> None:
    managers = [blocking.connect("memory://"), blocking.connect("memory://other")]
    leases = [in_thread(locks.lock("a").acquire) for locks in managers]
    in_thread(_loop._end)
    assert [lease._lease.lost_reason for lease in leases] == ["the manager was closed"] * 2
    assert not background._thread.is_alive()
    for locks in managers:
        in_thread(locks.close)  # they are closed
        with pytest.raises(ConfigurationError, match="the process ends"):
            in_thread(locks.lock("a").acquire)


def test_a_loop_that_stands_still_does_not_keep_the_process(
    background: _loop.BackgroundLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with an observer that blocks."""
    monkeypatch.setattr(_loop, "EXIT_LIMIT", 0.2)
    goes_on = threading.Event()
    locks = blocking.connect("memory://")
    in_thread(locks.lock("a").acquire)

    async def blocks() -> None:
        goes_on.wait(PATIENCE)

    background.start(blocks)
    try:
        in_thread(_loop._end)
        assert not goes_on.is_set()
        assert "has not ended in 0.2 s" in caplog.text
    finally:
        goes_on.set()
    background._thread.join(PATIENCE)
    assert not background._thread.is_alive()


def test_the_exit_waits_for_what_is_being_released(background: _loop.BackgroundLoop) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.1)
            ended.set()

    background.start(work)
    assert begun.wait(PATIENCE)
    background.stop()
    assert ended.is_set()


def test_what_is_dropped_after_the_end_of_the_loop_says_nothing(
    background: _loop.BackgroundLoop,
) -> None:
    """The last leases and threads of a process are dropped in any order."""
    caller = _calls.Caller(background.loop)
    background.stop()
    assert background.loop.is_closed()
    caller.__del__()
    _loop.soon(lambda: None)


def test_a_body_that_raises_closes_its_manager(background: _loop.BackgroundLoop) -> None:
    def body() -> blocking.Lease:
        with blocking.connect("memory://") as locks:
            lease = locks.lock("a").acquire()
            leases.append(lease)
            raise KeyError("x")

    leases: list[blocking.Lease] = []
    with pytest.raises(KeyError):
        in_thread(body)
    assert leases[0]._lease.lost_reason == "the manager was closed"
