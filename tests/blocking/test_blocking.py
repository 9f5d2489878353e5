"""Locks for threads: the same exclusion, the same errors, the same end; no interruption."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

import asynclock
from asynclock import blocking
from asynclock.errors import ConfigurationError
from tests.blocking.conftest import SETTINGS, TTL
from tests.blocking.test_endings import take
from tests.blocking.threads import in_thread
from tests.waiting import until_in_thread as until

REQUEST: ContextVar[str] = ContextVar("request", default="none")


@pytest.fixture
def locks(urls: list[str]) -> Iterator[blocking.LockManager]:
    with blocking.connect(*urls, **SETTINGS) as locks:
        yield locks


def test_held_refused_free(locks: blocking.LockManager, others: blocking.LockManager) -> None:
    with locks.lock("a", timeout=2) as lease:
        assert lease.held
        assert (lease.name, lease.ttl, lease.lost_reason) == ("a", TTL, None)
        assert 0 < lease.remaining() <= TTL
        lease.extend()
        assert others.lock("a").try_acquire() is None
        with pytest.raises(asynclock.AcquireTimeoutError):
            others.lock("a").acquire(timeout=0.05)
        assert others.inspect("a").holder == locks.inspect("a").holder is not None
    assert not lease.held
    assert lease.release()  # the same answer again
    with others.lock("a").acquire(timeout=5) as later:
        assert later.fence > lease.fence
    with pytest.raises(asynclock.LeaseLostError, match="released"):
        later.__enter__()
    lock = locks.lock("a")
    lease = lock.__enter__()
    lock.__exit__(KeyError, KeyError(), None)
    assert not lease.held
    assert locks.statistics().held == 0
    assert [node.state for node in locks.nodes()] == ["up"] * 3


def test_a_thread_does_not_wait_for_itself(locks: blocking.LockManager) -> None:
    with locks.reentrant_lock("r") as outer, locks.reentrant_lock("r"):
        with ThreadPoolExecutor(1) as pool, pytest.raises(asynclock.AcquireTimeoutError):
            pool.submit(locks.reentrant_lock("r").acquire, timeout=0.05).result()
        assert outer.held
    assert locks.lock("r").acquire(timeout=5).release()
    with locks.lock("a"):
        with pytest.raises(asynclock.AlreadyHeldError, match="this task or thread already holds"):
            locks.lock("a").acquire(timeout=5)
        with ThreadPoolExecutor(1) as pool:  # another thread may wait
            waiting = pool.submit(locks.lock("a").acquire, timeout=0.05)
            with pytest.raises(asynclock.AcquireTimeoutError):
                waiting.result()


def test_run_says_what_it_needs(locks: blocking.LockManager) -> None:
    with pytest.raises(asynclock.ConfigurationError, match=r"an awaitable.* returned SharedEvent"):
        locks.run(lambda manager: manager.event("a"))  # type: ignore[arg-type, return-value]  # on purpose


def test_an_election_needs_run(locks: blocking.LockManager) -> None:
    with pytest.raises(AttributeError, match=r"'election': write locks\.run\(.*locks\.election\("):
        _ = locks.election  # type: ignore[attr-defined]  # on purpose
    for name in ("elections", "_engine"):
        with pytest.raises(AttributeError, match=f"have no '{name}'$"):
            getattr(locks, name)


# ---- loss ----------------------------------------------------------------------------------------
def test_a_lease_that_is_dropped_is_not_renewed_because_of_its_callback() -> None:
    with blocking.connect("memory://dropped-with-a-callback", ttl=4) as locks:
        for make in (locks.lock("a"), locks.multi_lock("a", "b"), locks.reentrant_lock("a")):
            lease = make.acquire()
            lease.on_lost(print)
            assert len(locks.leases()) == 1  # and the loop has begun to watch
            with pytest.warns(ResourceWarning, match="was dropped"):
                del lease
                until(lambda: not locks.leases())


def test_a_run_tells_of_a_request_and_of_its_loss() -> None:
    told: list[str] = []
    with blocking.connect("memory://") as locks:
        with pytest.raises(asynclock.LeaseLostError), locks.once("a") as run:
            run.on_wanted(lambda run: told.append(f"wanted {run.name}"))
            run.on_lost(lambda run: told.append(f"lost {run.name}"))
            assert locks.ask_back("a")
            until(lambda: told == ["wanted a"])
            locks.run(take)
            until(lambda: told[1:] == ["lost a"])
        for done in (False, True):
            with locks.once("b") as run:
                run.on_lost(lambda run: told.append(run.name))  # a result has nothing to lose
                assert (run.done, run.lease is None) == (done, done)
                if not run.done:
                    run.finish(1)

        @locks.once("{what}", lease="lease")
        def work(what: str, *, lease: Any = None) -> str:
            told.append(f"{what} {lease.held}")
            return what * 2

        assert [work(what) for what in "xyx"] == ["xx", "yy", "xx"]
        with pytest.raises(ConfigurationError, match=r"LockManager\.once$"):
            locks.once("d")(take)
    assert told[2:] == ["x True", "y True"]


@pytest.mark.parametrize("start", ["threading.Thread.start", "_thread.start_new_thread"])
def test_a_loop_that_can_not_start_keeps_no_descriptor(start: str) -> None:
    program = f"""
import _thread, os, threading
from asynclock import blocking
def refuse(*args, **settings):
    raise RuntimeError("can't start new thread")
{start} = refuse
locks, before = blocking.connect("memory://"), len(os.listdir("/dev/fd"))
for _ in range(3):
    try:
        locks.ready()
    except RuntimeError as error:
        assert "can't start" in str(error)
    else:
        raise AssertionError
assert len(os.listdir("/dev/fd")) == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_a_holder_publishes_a_message_and_hears_that_its_lock_is_wanted() -> None:
    told: list[str] = []
    with blocking.connect("memory://") as locks:
        with locks.lock("a") as lease:
            assert lease.publish("half done")
            assert locks.inspect("a").message == "half done"
            with pytest.raises(asynclock.ConfigurationError, match="function"):
                lease.on_wanted(None)  # type: ignore[arg-type]
            lease.on_wanted(lambda lease: told.append(lease.name))
            assert locks.ask_back("a")
            until(lambda: told)
            assert told == ["a"]
            assert lease.held
        assert not locks.ask_back("a")
        with pytest.raises(asynclock.LeaseLostError), locks.lock("a") as lease:
            assert not locks.release_held("a", owner="f" * 32)
            assert locks.release_held("a", owner=lease.owner)
            assert not lease.check()


def test_a_loss_is_seen_told_and_raised() -> None:
    told: list[tuple[str, str | None, str]] = []

    def tell(lease: blocking.Lease) -> None:
        assert not lease.release()  # it may call: its thread is not that of the loop
        told.append((lease.name, lease.lost_reason, REQUEST.get()))

    def register(lease: blocking.Lease) -> None:
        REQUEST.set("mine")
        lease.on_lost(tell)

    with blocking.connect("memory://") as locks:
        with locks.lock("b") as released:
            released.on_lost(tell)
        with pytest.raises(asynclock.LeaseLostError) as end, locks.lock("a") as lease:
            copy_context().run(register, lease)
            locks.run(take)
            until(lambda: not lease.held)
            with pytest.raises(asynclock.LeaseLostError):
                lease.extend()
        assert (end.value.name, end.value.fence) == ("a", lease.fence)
        until(lambda: told)
        assert told == [("a", lease.lost_reason, "mine")], "with the variables of its registration"
        lease.on_lost(tell)
        until(lambda: len(told) == 2)
        # An error of the body is not replaced.
        with pytest.raises(KeyError), locks.lock("a"):
            locks.run(take)
            raise KeyError("mine")
    assert {name for name, *_ in told} == {"a"}, "a release is no loss"


def test_an_observer_must_not_block() -> None:
    seen: list[Exception] = []

    def observe(event: Any) -> None:
        try:
            locks.statistics()
        except ConfigurationError as error:
            seen.append(error)

    with blocking.connect("memory://", observers=[observe]) as locks, locks.lock("a"):
        pass
    assert "no call may block" in str(seen[0])


# ---- event loops and context variables -----------------------------------------------------------
def test_in_a_running_event_loop_it_is_refused_at_once(locks: blocking.LockManager) -> None:
    async def coroutine() -> None:
        for call in (
            locks.lock("a").__enter__,
            locks.lock("a").acquire,
            locks.lock("a").try_acquire,
            locks.multi_lock("a", "b").acquire,
            locks.__enter__,
            lambda: locks.inspect("a"),
            lambda: locks.run(lambda locks: locks.event("e").set()),
        ):
            with pytest.raises(
                ConfigurationError, match=r"block the event loop.*asynclock\.connect"
            ):
                call()
        lease = await asyncio.to_thread(locks.lock("a").acquire)
        with pytest.raises(ConfigurationError, match="block the event loop"):
            lease.extend()
        assert lease.release()  # what frees a name is never refused
        entered = locks.lock("b")
        lease = await asyncio.to_thread(entered.__enter__)
        entered.__exit__(None, None, None)
        assert not lease.held
        locks.close()

    asyncio.run(coroutine())


def test_a_call_sees_the_context_variables_of_its_thread() -> None:
    seen: list[tuple[str, str]] = []

    def observe(event: Any) -> None:
        seen.append((type(event).__name__, REQUEST.get()))

    async def look(_: Any) -> str:
        request = REQUEST.get()
        REQUEST.set("changed")
        return request

    def serve(request: str) -> str:
        REQUEST.set(request)
        with locks.lock(request):
            found = locks.run(look)
        assert REQUEST.get() == request  # changes stay where they were made
        return found

    with blocking.connect("memory://", observers=[observe]) as locks, ThreadPoolExecutor(1) as pool:
        for request in ("one", "two"):
            assert pool.submit(copy_context().run, serve, request).result() == request
        assert pool.submit(locks.run, look).result() == "none"
    told = [(kind, request) for kind, request in seen if kind in ("Acquired", "Released")]
    assert told == [(kind, r) for r in ("one", "two") for kind in ("Acquired", "Released")]


# ---- generators ----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["lock", "reentrant_lock"])
def test_a_generator_that_is_left_in_another_thread_frees_the_lock(
    locks: blocking.LockManager, others: blocking.LockManager, kind: str
) -> None:
    """As a framework runs the parts of a dependency in the threads of a pool."""
    lock = getattr(locks, kind)("a", timeout=20)

    def dependency() -> Iterator[blocking.Lease]:
        with lock as lease:
            yield lease

    generator = dependency()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        lease = one.submit(next, generator).result()
        assert lease.held
        assert two.submit(next, generator, None).result() is None
        assert not lease.held
        assert others.lock("a").acquire(timeout=20).release()
    with pytest.raises(RuntimeError, match="not entered"):
        lock.__exit__(None, None, None)


def test_each_thread_leaves_what_it_entered(locks: blocking.LockManager) -> None:
    permits = locks.semaphore("s", 2, timeout=20)
    both = threading.Barrier(2, timeout=20)

    def work(first: bool) -> bool:
        with permits as lease:
            both.wait()
            if first:
                both.wait()
                return lease.held
        both.wait()
        return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(work, [True, False])) == [False, True]


# ---- closing -------------------------------------------------------------------------------------
def test_close_gives_back_and_says_so(urls: list[str], others: blocking.LockManager) -> None:
    locks = blocking.connect(*urls, **SETTINGS)
    lease = locks.lock("a").acquire()
    waiting = ThreadPoolExecutor(1).submit(others.lock("a").acquire, timeout=30)
    locks.close()
    locks.close()
    assert waiting.result().release()
    assert not lease.held
    with pytest.raises(ConfigurationError, match="closed"):
        locks.lock("a").try_acquire()
    with locks, locks.lock("a", timeout=5):  # entered, it opens again
        pass


def test_the_task_of_a_thread_ends_with_it(locks: blocking.LockManager) -> None:
    async def tasks(_: Any) -> int:
        return sum("_serve" in repr(task.get_coro()) for task in asyncio.all_tasks())

    before = locks.run(tasks)
    for _ in range(20):
        in_thread(lambda: locks.lock("a", timeout=30).acquire().release())
    until(lambda: locks.run(tasks) <= before)
