"""The event loop behind the threads: interrupted calls, what stays, how it starts and ends."""

import asyncio
import copy
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from asynclock import blocking
from asynclock.blocking import _faces, _loop
from asynclock.errors import ConfigurationError
from tests.blocking.threads import in_thread, started
from tests.waiting import until_in_thread as until

PATIENCE = 15.0


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[_loop.BackgroundLoop]:
    """A loop that no other test needs."""
    background = _loop.BackgroundLoop()
    monkeypatch.setattr(_loop, "current", background)
    yield background
    background.stop()


@pytest.fixture
def locks(background: _loop.BackgroundLoop) -> Iterator[blocking.LockManager]:
    locks = blocking.connect("memory://", ttl=60, max_ttl=60)
    yield locks
    in_thread(locks.close)


# ---- interrupted calls ---------------------------------------------------------------------------
def interrupt_after(wait: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next call once `wait` has ended, a function of the call."""

    def interrupted(call: _loop.Call[Any]) -> Any:
        monkeypatch.undo()
        wait(call)
        raise KeyboardInterrupt

    monkeypatch.setattr(_loop.Call, "result", interrupted)


def test_interrupted_before_the_loop_saw_it_no_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    background, go, begun = _loop.background(), threading.Event(), []
    soon = background.soon

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
        monkeypatch.setattr(background, "soon", abandoned)
        raise KeyboardInterrupt

    assert background.call(nothing) == "served"
    monkeypatch.setattr(background, "soon", interrupted)
    with pytest.MonkeyPatch.context() as limits, pytest.raises(KeyboardInterrupt):
        limits.setattr(_loop, "EXIT_LIMIT", PATIENCE)
        began = time.monotonic()
        background.call(work)
    assert time.monotonic() - began < PATIENCE, "it waited for a call that never begins"
    assert background.call(nothing) == "served"
    assert not begun


def test_a_result_in_spite_of_the_interruption_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_ends_something_is_done_once_though_it_is_interrupted(
    background: _loop.BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), []

    async def end() -> None:
        begun.set()
        await asyncio.sleep(0.1)
        ended.append("ended")

    interrupt_after(lambda _: begun.wait(PATIENCE), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        background.call(end, ends=True)
    background.call(lambda: asyncio.sleep(0))  # after all earlier calls of this thread
    assert ended == ["ended"]


def test_an_end_is_waited_for_except_in_the_loops_thread(background: _loop.BackgroundLoop) -> None:
    ended: list[str] = []

    async def end() -> None:
        await asyncio.sleep(0.1)
        ended.append("ended")

    async def collected() -> None:
        background.finish(end)

    began = time.monotonic()
    in_thread(lambda: background.call(collected))
    in_thread(lambda: background.finish(end))
    assert ended == ["ended"] * 2
    assert time.monotonic() - began < _loop.EXIT_LIMIT


def test_an_interrupted_exit_of_a_process_ends_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_exit_right_after_the_start_ends_what_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that has started the loop may end it before the loop waits for that."""
    served, ending = [], threading.Event()
    succeed, join = _loop.Call.end, threading.Thread.join

    async def work() -> None:
        served.append("served")

    def succeed_slowly(call: Any, result: Any) -> None:
        succeed(call, result)
        assert ending.wait(PATIENCE)

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        ending.set()
        join(thread, timeout)

    monkeypatch.setattr(_loop.Call, "end", succeed_slowly)
    monkeypatch.setattr(threading.Thread, "join", noted)
    _loop.BackgroundLoop().stop([work])
    assert served


# ---- what stays ----------------------------------------------------------------------------------
@pytest.mark.parametrize("quick", [True, False])
def test_a_dropped_lease_ends_in_the_loop(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, *, quick: bool
) -> None:
    """Its end changes objects that belong to the loop, however quick the loop is."""
    ended, lease, background = list[str](), locks.lock("a").acquire(), _loop.background()
    soon = background.soon
    gc.collect()  # the loop itself may find what other tests left, and must not wait for itself

    def wait_for(work: Callable[..., object], *args: Any) -> bool:
        done = threading.Event()
        soon(work, *args)
        soon(done.set)
        return done.wait(5)

    if quick:
        monkeypatch.setattr(background, "soon", wait_for)
    weakref.finalize(lease._inner, lambda: ended.append(threading.current_thread().name))
    del lease
    gc.collect()
    until(lambda: ended == ["asynclock"])


def test_a_lease_that_has_ended_may_be_dropped_by_any_thread(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the loop nothing: only what has not ended is dropped there."""
    told = Mock(wraps=_loop.background().soon)
    monkeypatch.setattr(_loop.background(), "soon", told)
    with locks.lock("a").acquire():
        pass
    locks.lock("a").acquire().release()
    assert "clear" not in repr(told.call_args_list)


def test_the_copy_of_another_threads_end_ends_nothing_in_a_forked_child() -> None:
    background = _loop.background()

    async def noted(caller: list[Any]) -> bool:
        """Drop the only reference, and return whether a call that it has is made."""
        call = _loop.Call(partial(asyncio.sleep, 0))
        caller[0].put(call)
        caller.clear()
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        return call.done

    ours, inherited = _loop.Caller(background), _loop.Caller(copy.copy(background))
    inherited._background.pid = -1
    left = [ours], [inherited]
    del ours, inherited
    assert [background.call(partial(noted, one)) for one in left] == [True, False]


# ---- how it starts and ends ----------------------------------------------------------------------
def test_a_signal_handler_in_the_first_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __init__(self) -> None:
            _loop.background()

    monkeypatch.setattr(_loop, "current", None)
    monkeypatch.setattr(_loop, "BackgroundLoop", Interrupted)
    for _ in range(2):  # the failure of the first is not the state of the second
        with pytest.raises(ConfigurationError, match="interrupts the very first call"):
            _loop.background()
    assert not _loop._starting


def test_two_threads_that_come_first_get_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two loops would not know of each other's holds."""
    inside, made = threading.Event(), list[Any]()

    class Slow:
        def __init__(self) -> None:
            made.append(self)
            inside.set()
            time.sleep(0.05)

    monkeypatch.setattr(_loop, "current", None)
    monkeypatch.setattr(_loop, "BackgroundLoop", Slow)
    first = started(_loop.background)
    assert inside.wait(PATIENCE)
    assert [in_thread(_loop.background), first.result(PATIENCE)] == made * 2
    monkeypatch.undo()


def test_a_loop_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(**_: Any) -> None:
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
        def _serve(self, _: Any) -> None:
            self.ends = ends
            self._started.end(None)
            raise error

    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_value))
    Broken()._thread.join(PATIENCE)
    assert seen == [error] * told


def test_a_call_while_the_loop_works_begins_before_it_sleeps(
    background: _loop.BackgroundLoop,
) -> None:
    """Nothing wakes a loop that is awake."""
    begun, come = threading.Event(), threading.Event()

    def works() -> None:
        begun.set()
        assert come.wait(PATIENCE)

    async def nothing() -> str:
        return "served"

    background.soon(lambda: asyncio.get_running_loop().call_soon(works))
    assert begun.wait(PATIENCE)
    call = started(lambda: background.call(nothing))
    until(lambda: len(background._todo) > 0)
    come.set()
    assert call.result(PATIENCE) == "served"


def test_a_loop_that_sleeps_is_woken_once(
    background: _loop.BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wake-up costs a call of the system, and many threads come before the loop runs."""
    written, done = list[bytes](), threading.Event()
    until(lambda: background._selector.asleep)
    waker = background._waker
    with monkeypatch.context() as slow:
        slow.setattr(background, "_waker", SimpleNamespace(write=written.append))
        background.soon(int)
        background.soon(done.set)
    waker.write(written[0])
    assert done.wait(PATIENCE)
    assert len(written) == 1


def test_a_loop_that_is_busy_reads_from_its_sockets(background: _loop.BackgroundLoop) -> None:
    async def read() -> bool:
        loop, seen = asyncio.get_running_loop(), asyncio.Event()
        ours, other = socket.socketpair()
        with ours, other:
            loop.add_reader(ours, seen.set)
            other.send(b"1")
            for _ in range(5):
                await asyncio.sleep(0)
            loop.remove_reader(ours)
        return seen.is_set()

    assert in_thread(lambda: background.call(read))


def test_a_loop_that_a_function_stops_goes_on(background: _loop.BackgroundLoop) -> None:
    async def stop() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "served"

    assert in_thread(lambda: background.call(stop)) == "served"


def test_a_loop_that_is_broken_lets_no_call_wait(
    background: _loop.BackgroundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    begun, late = threading.Event(), list[Any]()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:  # the loop ends its tasks
            with pytest.raises(ConfigurationError, match="has ended"):
                background.start(wait)
            late.append(started(lambda: background.call(wait)))
            late[0].exception(PATIENCE)
            background.soon(late.append, "nothing more begins")

    async def destroy() -> None:
        selector: Any = background._selector

        def fail(_: float | None) -> None:
            del selector.select
            raise ZeroDivisionError

        selector.select = fail
        await asyncio.sleep(PATIENCE)

    waits = started(lambda: background.call(wait))
    assert begun.wait(PATIENCE)
    broken = started(lambda: background.call(destroy))
    for call in (broken, waits):
        with pytest.raises(ConfigurationError, match="has ended"):
            call.result(PATIENCE / 2)
    background._thread.join(PATIENCE)
    for later in (lambda: background.call(wait), lambda: background.start(wait), late[0].result):
        with pytest.raises(ConfigurationError, match="has ended"):
            in_thread(later)
    assert len(told) == len(late) == 1


def test_the_exit_releases_the_leases_of_every_manager(background: _loop.BackgroundLoop) -> None:
    managers = [blocking.connect("memory://"), blocking.connect("memory://other")]
    leases = [in_thread(locks.lock("a").acquire) for locks in managers]
    in_thread(_faces._end)
    assert [lease.lost_reason for lease in leases] == ["the manager was closed"] * 2
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
        in_thread(lambda: background.finish(blocks))
        in_thread(_faces._end)
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
    background: _loop.BackgroundLoop, locks: blocking.LockManager
) -> None:
    """The last leases and threads of a process are dropped in any order."""
    caller = _loop.Caller(background)
    lease = in_thread(locks.lock("a").acquire)
    background.stop([locks.asynchronous().aclose])
    for _ in range(2):
        assert not background.soon(print)
    background.finish(lambda: asyncio.sleep(0))
    del caller, lease
