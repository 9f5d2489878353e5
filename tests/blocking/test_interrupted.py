"""A thread that is interrupted anywhere in a call, and the event loop behind it: nothing stays."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from asynclock import blocking
from asynclock.blocking import _calls, _locks, _loop
from asynclock.errors import ConfigurationError
from tests.waiting import until_in_thread as until

PATIENCE = 30.0


@pytest.fixture
def locks() -> Iterator[blocking.LockManager]:
    with blocking.connect("memory://", ttl=60, max_ttl=60) as locks:
        yield locks


@pytest.fixture
def others() -> Iterator[blocking.LockManager]:
    with blocking.connect("memory://", ttl=60, max_ttl=60) as locks:
        yield locks


def interrupt_after(wait: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next call once `wait` has ended, a function of the call's outcome."""

    def interrupted(outcome: _calls.Outcome[Any]) -> Any:
        monkeypatch.undo()
        wait(outcome)
        raise KeyboardInterrupt

    monkeypatch.setattr(_calls.Outcome, "result", interrupted)


class Cut(list[Any]):
    """A list whose user is interrupted right after an append."""

    def append(self, one: Any) -> None:
        super().append(one)
        raise KeyboardInterrupt


def test_an_unknown_argument_is_named(locks: blocking.LockManager) -> None:
    with pytest.raises(TypeError, match=r"write try_acquire\(\)"):
        locks.lock("a").acquire(blocking=False)  # type: ignore[arg-type]  # on purpose


def test_interrupted_with_the_result_in_hand_nothing_is_held(
    locks: blocking.LockManager, others: blocking.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    lock = locks.lock("a")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_locks, "wrapped", interrupted)
        lock.acquire()
    assert others.lock("a").acquire(timeout=PATIENCE).release()
    lock._entered = Cut()
    with pytest.raises(KeyboardInterrupt), lock:
        raise AssertionError("the body began")
    assert not lock._entered, "no later `with` may leave this lease"
    assert others.lock("a").acquire(timeout=PATIENCE).release()


def test_an_interrupted_try_that_got_nothing_has_nothing_to_undo(
    locks: blocking.LockManager,
    others: blocking.LockManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    with others.lock("a") as lease:
        locks.statistics()
        interrupt_after(lambda outcome: outcome.wait(PATIENCE), monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            locks.lock("a").try_acquire()
        assert locks.lock("a").try_acquire() is None
        assert lease.held
    assert not caplog.records


def test_an_interrupted_question_and_release_take_place(
    locks: blocking.LockManager, others: blocking.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = locks.lock("a").acquire()
    for call in (locks.statistics, lease.release):
        interrupt_after(lambda outcome: outcome.wait(PATIENCE), monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            call()
    assert others.lock("a").acquire(timeout=PATIENCE).release()


def test_interrupted_before_the_loop_has_seen_the_call_it_never_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, go, begun = _loop.background(), threading.Event(), []
    soon = background.loop.call_soon_threadsafe

    async def work() -> None:
        begun.append(1)

    async def nothing() -> str:
        return "served"

    def abandoned(*args: Any) -> Any:
        monkeypatch.undo()
        handle = soon(*args)
        go.set()
        return handle

    def interrupted(*args: Any) -> Any:
        soon(go.wait, PATIENCE)  # the loop has other things to do
        soon(*args)
        monkeypatch.setattr(background.loop, "call_soon_threadsafe", abandoned)
        raise KeyboardInterrupt

    assert background.call(nothing) == "served"
    monkeypatch.setattr(background.loop, "call_soon_threadsafe", interrupted)
    with pytest.MonkeyPatch.context() as limits, pytest.raises(KeyboardInterrupt):
        limits.setattr(_loop, "EXIT_LIMIT", PATIENCE)
        began = time.monotonic()
        background.call(work)
    assert time.monotonic() - began < PATIENCE, "it waited for a call that never begins"
    assert background.call(nothing) == "served"
    assert not begun


def test_a_result_that_comes_in_spite_of_the_interruption_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, begun, undone = _loop.background(), threading.Event(), []

    async def nothing() -> None:
        pass

    async def work() -> str:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "it was too late"
        raise AssertionError("it was not cancelled")

    async def undo(result: str) -> None:
        await asyncio.sleep(0)
        undone.append(result)

    background.call(nothing)
    interrupt_after(lambda _: begun.wait(PATIENCE), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        background.call(work, undo)
    assert undone == ["it was too late"]


@pytest.mark.parametrize("change", ["upgrade", "downgrade"])
def test_an_interrupted_change_of_sides_leaves_no_writer(
    locks: blocking.LockManager,
    others: blocking.LockManager,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    here, there = locks.rwlock("a"), others.rwlock("a")
    before = here.read().acquire() if change == "upgrade" else here.write().acquire()
    interrupt_after(lambda outcome: outcome.wait(PATIENCE), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        getattr(here, change)(before)
    if change == "upgrade":
        assert before.check()
        assert there.read().acquire(timeout=PATIENCE).release()
        before.release()
    assert there.write().acquire(timeout=PATIENCE).release()


def test_an_interrupted_exit_of_the_process_ends_what_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, served = _loop.BackgroundLoop(), []
    join = threading.Thread.join

    async def work() -> None:
        await asyncio.sleep(0.2)
        served.append("served")

    def interrupted(*_: Any) -> None:
        monkeypatch.setattr(threading.Thread, "join", join)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.stop([work])
    assert served


# ---- what stays ----------------------------------------------------------------------------------


def test_nothing_keeps_the_result_of_a_call() -> None:
    """A lease that its thread drops must be free to end."""

    class Result:
        pass

    background = _loop.background()

    async def work() -> Result:
        return Result()

    found = background.call(work)
    left = weakref.ref(found)
    del found
    until(lambda: gc.collect() >= 0 and left() is None)
    assert not background._waiting


@pytest.mark.parametrize("quick", [True, False])
def test_a_dropped_lease_ends_in_the_loop(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, *, quick: bool
) -> None:
    """Its end changes objects that belong to the loop, however quick the loop is."""
    ended: list[str] = []
    soon = _loop.soon

    def wait_for(work: Callable[[], object]) -> None:
        done = threading.Event()
        soon(work)
        soon(done.set)
        assert done.wait(5)

    if quick:
        monkeypatch.setattr(_loop, "soon", wait_for)
    lease = locks.lock("a").acquire()
    weakref.finalize(lease._lease, lambda: ended.append(threading.current_thread().name))
    del lease
    gc.collect()
    until(lambda: bool(ended))
    assert ended == ["asynclock"]


# ---- the loop ------------------------------------------------------------------------------------


def test_the_copy_of_another_threads_end_ends_nothing_in_a_forked_child() -> None:
    background = _loop.background()

    async def noted(caller: list[Any]) -> int:
        """Drop the only reference, and return how much it put into its queue."""
        calls = caller[0].calls
        caller.clear()
        gc.collect()
        await asyncio.sleep(0)
        return int(calls.qsize())

    ours, inherited = (_calls.Caller(background.loop) for _ in range(2))
    inherited._pid = -1
    left = [ours], [inherited]
    del ours, inherited
    assert [background.call(partial(noted, one)) for one in left] == [1, 0]


def test_a_signal_handler_in_the_very_first_call_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted:
        def __init__(self) -> None:
            _loop.background()

    monkeypatch.setattr(_loop, "_current", None)
    monkeypatch.setattr(_loop, "BackgroundLoop", Interrupted)
    for _ in range(2):  # the failure of the first is not the state of the second
        with pytest.raises(ConfigurationError, match="interrupts the very first call"):
            _loop.background()
    assert not _loop._starting


def test_two_threads_that_come_first_get_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loops would not know of each other's holds."""
    inside, made = threading.Event(), []

    class Slow:
        def __init__(self) -> None:
            made.append(self)
            inside.set()
            time.sleep(0.05)

    monkeypatch.setattr(_loop, "_current", None)
    monkeypatch.setattr(_loop, "BackgroundLoop", Slow)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(_loop.background())) for _ in range(2)]
    threads[0].start()
    assert inside.wait(PATIENCE)
    threads[1].start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == made * 2
    monkeypatch.undo()


def test_without_a_loop_a_finalizer_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loop, "_current", None)
    called: list[int] = []
    _loop.soon(lambda: called.append(1))
    assert not called


def test_a_loop_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(*_: Any) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(_loop.asyncio, "Runner", no_loop)
    with pytest.raises(OSError, match="too many open files"):
        _loop.BackgroundLoop()


@pytest.mark.parametrize(
    ("ends", "error", "told"),
    [
        (True, RuntimeError("can't start new thread at shutdown"), False),
        (True, ValueError("wrong"), True),
        (False, RuntimeError("wrong"), True),
    ],
)
def test_a_loop_that_breaks_is_told_of_except_at_the_exit(
    monkeypatch: pytest.MonkeyPatch, ends: bool, error: Exception, told: bool
) -> None:
    seen: list[Any] = []

    class Broken(_loop.BackgroundLoop):
        async def _serve(self) -> None:
            self.ends = ends
            self._started.succeed(None)
            raise error

    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_value))
    Broken()._thread.join(PATIENCE)
    assert seen == [error] * told
