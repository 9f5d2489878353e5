"""Blocking locks where processes fork, are interrupted and end."""

import subprocess
import sys
import textwrap
import time

import pytest

from asynclock import blocking
from asynclock.testing import LocalServer
from tests.blocking.conftest import SETTINGS, TTL

PREPARE = f"""
import os, signal, sys, threading, time, traceback, warnings
from asynclock import blocking
from asynclock.errors import *
from tests.blocking.threads import in_thread, started

def connect():
    return blocking.connect(*sys.argv[1:], **{SETTINGS!r})

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"

locks = connect()
warnings.filterwarnings("ignore", "This process")  # has threads and forks, as workers do
"""


def run(text: str, urls: list[str], *, quiet: bool = False) -> str:
    """What a program prints that begins with PREPARE; with `quiet`, it says nothing else."""
    command = [sys.executable, "-W", "error", "-c", PREPARE + textwrap.dedent(text), *urls]
    found = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert found.returncode == 0, found.stderr
    assert not quiet or found.stderr == ""
    return found.stdout


def test_a_manager_that_was_used_stays_behind(urls: list[str]) -> None:
    text = """
    def work():
        for call in (lambda: locks.lock("b"), *calls):
            try:
                call()
            except ConfigurationError as error:
                assert "worker_process_init" in str(error)
            else:
                raise AssertionError("no error")
        with connect() as own:  # with a loop of its own
            assert own.lock("a").try_acquire() is None
            with own.lock("b", timeout=20) as mine:
                assert mine.held
        locks.close()  # does nothing
    with locks.lock("a") as lease:
        calls = lease.extend, lease.release, locks.statistics, lambda: lease.on_lost(print)
        in_child(work)
        lease.extend()
        assert lease.held
    in_child(lambda: connect().lock("a").acquire(timeout=20).release() or 1 / 0)
    """
    run(text, urls)


def test_a_child_that_leaves_its_parents_block_ends_as_it_wanted(urls: list[str]) -> None:
    text = """
    with locks.lock("a") as lease:
        def leave(code):
            try:
                with locks.lock("b"):
                    pid = os.fork()
                    if pid == 0 and code:
                        sys.exit(code)
                if pid == 0:
                    os._exit(0)
            except BaseException as error:
                os._exit(error.code if type(error) is SystemExit else 1)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert [leave(7), leave(0)] == [7, 1], "one that does not want to end is refused"
        assert lease.held
    print("done")
    """
    assert run(text, urls) == "done\n"


def test_a_fork_while_threads_work(urls: list[str]) -> None:
    """No lock of the module is left taken in the child."""
    text = """
    go_on = True
    def busy():
        while go_on:
            with locks.lock("busy"):
                pass
    threads = [started(busy) for _ in range(3)]
    def work():
        with connect() as own, own.lock("b", timeout=20):
            pass
    for _ in range(3):
        in_child(work)
    go_on = False
    for thread in threads:
        thread.result(20)
    """
    run(text, urls)


def test_the_loop_imports_nothing_once_it_has_started(urls: list[str]) -> None:
    """A child that is forked during an import never ends that import, nor what needs it."""
    text = """
    locks.statistics()  # starts the loop
    before = set(sys.modules)
    with locks.lock("a", timeout=20):
        pass
    print(sorted(set(sys.modules) - before))
    """
    assert run(text, urls) == "[]\n"
    assert run(text, [url.replace("127.0.0.1", "localhost") for url in urls]) == "[]\n"


def test_a_fork_waits_while_the_loop_of_locks_starts(urls: list[str]) -> None:
    """A child must not get a half-made loop, and its parent goes on afterwards."""
    text = """
    from asynclock.blocking import _loop
    begun, ready = threading.Event(), threading.Event()
    make = _loop.BackgroundLoop
    def slowly():
        begun.set()
        time.sleep(0.3)
        found = make()
        ready.set()
        return found
    _loop.BackgroundLoop = slowly
    first = started(locks.statistics)
    begun.wait(20)
    def use():
        with connect() as own, own.lock("b", timeout=20):
            pass
    def work():
        assert ready.is_set()
        in_thread(use)  # any thread of the child
    in_child(work)
    first.result(20)
    in_thread(lambda: locks.lock("a").acquire(timeout=20).release())
    """
    run(text, urls)


def test_an_interrupted_wait_leaves_nothing(urls: list[str], others: blocking.LockManager) -> None:
    """Ctrl-C in a script that waits: it ends, and does not get the lock later."""
    text = """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    def interrupt():
        while locks.statistics().waiting == 0:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        locks.lock("a").acquire()
    except KeyboardInterrupt:
        print("interrupted", locks.statistics().waiting)
    with locks.lock("b", timeout=5):
        pass
    print("went on")
    """
    with others.lock("a"):
        assert run(text, urls) == "interrupted 0\nwent on\n"
    assert others.lock("a", timeout=5).acquire().release()


@pytest.mark.timeout(60)  # for a handler that waits as long as its thread
def test_a_signal_handler_can_release_and_close_while_its_thread_waits(
    urls: list[str], others: blocking.LockManager
) -> None:
    text = """
    def end(*_):
        for _ in range(2):  # also after a call that is allowed
            try:
                locks.lock("c").acquire()
            except ConfigurationError as error:
                assert "signal handler" in str(error)
                print("refused")
            assert lease.release()
        locks.close()
    signal.signal(signal.SIGTERM, end)
    def terminate():
        while locks.statistics().waiting == 0:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
    lease = locks.lock("b").acquire()
    threading.Thread(target=terminate).start()
    try:
        locks.lock("a").acquire(timeout=20)
    except ConfigurationError as error:
        assert "closed" in str(error)
        print("closed")
    """
    with others.lock("a"):
        assert run(text, urls) == "refused\nrefused\nclosed\n"


def test_the_end_of_a_process_frees_its_locks(
    urls: list[str], others: blocking.LockManager
) -> None:
    text = """
    lease = locks.lock("a").acquire()
    threading.Thread(target=lambda: locks.lock("b").acquire()).start()
    more = [connect() for _ in range(3)]
    leases = [one.lock(name).acquire() for one, name in zip(more, "cde")]
    """
    began = time.monotonic()
    run(text, urls)
    for name in "abcde":
        assert others.lock(name).acquire(timeout=5).release()
    assert time.monotonic() - began < TTL / 2


def test_the_end_of_a_process_says_nothing(asynclock_nodes: list[LocalServer]) -> None:
    """Also if the event loop has threads, because a node has a name and not only a number."""
    text = """
    if sys.version_info < (3, 12):  # which still starts threads at the end of a process
        import asyncio
        async def refuse(loop):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        asyncio.BaseEventLoop.shutdown_default_executor = refuse
    with locks.lock("a", timeout=20) as lease:
        print(lease.fence)
    """
    urls = [f"redis://localhost:{node.port}" for node in asynclock_nodes]
    assert int(run(text, urls, quiet=True)) > 0


def test_a_manager_that_is_closed_before_its_first_use_is_closed(urls: list[str]) -> None:
    """Also by a finalizer in the thread of a loop that is being started."""
    text = """
    import gc, weakref
    cycle = type("Cycle", (), {})  # a class refers to itself
    weakref.finalize(cycle, lambda: print(threading.current_thread().name, connect().close()))
    gc.disable()
    del cycle
    threading.setprofile(lambda *_: (sys.setprofile(None), gc.collect()))
    for loops in (0, 1):  # the refused call starts the event loop of the process
        (unused := connect()).close()
        assert threading.active_count() == 1 + loops
        try:
            unused.lock("a").acquire()
        except ConfigurationError as error:
            print(error)
        with unused, unused.lock("a", timeout=20):
            pass
    """
    found = run(text, urls)
    assert found.startswith("asynclock None\n")
    assert found.count("this manager is closed: ") == 2


def test_the_first_call_waits_while_another_thread_closes_the_manager(urls: list[str]) -> None:
    text = """
    found = []
    def use(frame, event, _):
        found.extend([frame] if event == "call" else [])
        if len(found) == 2:  # `close` has found no loop
            sys.setprofile(None)
            found.append(started(locks.lock("a", timeout=20).acquire))
            time.sleep(0.3)
    sys.setprofile(use)
    locks.close()
    print(found[2].exception(20))
    """
    assert "this manager is closed: " in run(text, urls)


@pytest.mark.parametrize("end", ["", "locks.close()"])
def test_a_party_of_a_process_that_ends_no_longer_counts(
    urls: list[str], others: blocking.LockManager, end: str
) -> None:
    text = """
    barrier = locks.barrier("a", 2)
    started(barrier.wait)
    while not barrier.waiting():
        time.sleep(0.01)
    """
    run(f"{textwrap.dedent(text)}\n{end}", urls)
    assert others.barrier("a", 2).waiting() == 0
