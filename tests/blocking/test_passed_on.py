"""What a thread passes to a blocking call reaches the asynchronous one; its result comes back."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import asynclock
from asynclock import blocking
from asynclock.errors import ConfigurationError
from tests.waiting import until_in_thread as until

PATIENCE = 30.0
"""Seconds; far longer than anything here takes, on any machine."""
NUMBERS = itertools.count()
NOT_FAIR: dict[str, Any] = {"ttl": 7.0, "timeout": 0.5, "renew": False, "max_hold": 50.0}
SETTINGS: dict[str, Any] = {**NOT_FAIR, "handoff": "strict"}


@pytest.fixture
def pair() -> Iterator[tuple[blocking.LockManager, blocking.LockManager]]:
    """Two managers, as of two processes."""
    address = f"memory://passed-on-{next(NUMBERS)}"
    locks, others = (blocking.connect(address, ttl=60, max_ttl=60) for _ in range(2))
    with locks, others:
        yield locks, others


@pytest.fixture
def locks(pair: tuple[blocking.LockManager, blocking.LockManager]) -> blocking.LockManager:
    return pair[0]


# ---- the table -----------------------------------------------------------------------------------
MAKERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    # A loss can't interrupt a thread: it must not interrupt the task that works for it.
    "lock": (("a",), {**SETTINGS, "at_least": 3.0, "interrupt": False}),
    "reentrant_lock": (("a",), {**SETTINGS, "at_least": 3.0, "interrupt": False}),
    "multi_lock": (("b", "a"), {**SETTINGS, "interrupt": False}),
    "rwlock": (("a",), {**SETTINGS, "interrupt": False}),
    "fair_lock": (("a",), {**NOT_FAIR, "at_least": 3.0, "interrupt": False}),
    "semaphore": (("a", 2), {**SETTINGS, "interrupt": False}),
    "event": (("a",), {"keep": 70.0}),
    "latch": (("a", 2), {"keep": 70.0}),
    "once": (("a",), {**SETTINGS, "keep": 70.0, "lease": None, "interrupt": False}),
    "barrier": (("a", 2), {"ttl": 7.0, "keep": 70.0}),
}


def note_calls(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the arguments of all calls of a method from now on; it does what it did before."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    method: Callable[..., Any] = getattr(owner, name)

    def noted(made: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return method(made, *args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
    return calls


@pytest.mark.parametrize("kind", MAKERS)
def test_every_setting_of_a_primitive_reaches_it(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    args, settings = MAKERS[kind]
    calls = note_calls(monkeypatch, asynclock.LockManager, kind)
    given = {name: value for name, value in settings.items() if name != "interrupt"}
    getattr(locks, kind)(*args, **given)
    assert calls
    for call in calls:
        assert call == (args, settings)


TIME = {"timeout": 0.25}
NOT_GIVEN = inspect.signature(asynclock.Lock.acquire).parameters["timeout"].default
CALLS: list[tuple[str, str, type, tuple[Any, ...], dict[str, Any]]] = [
    ("lock", "acquire", asynclock.Lock, (), TIME),
    ("lock", "try_acquire", asynclock.Lock, (), {}),
    ("multi_lock", "inspect", asynclock.MultiLock, (), {}),
    ("fair_lock", "inspect", asynclock.FairLock, (), {}),
    ("semaphore", "inspect", asynclock.Semaphore, (), {}),
    ("rwlock", "inspect", asynclock.ReadWriteLock, (), {}),
    ("event", "set", asynclock.SharedEvent, (), TIME),
    ("event", "clear", asynclock.SharedEvent, (), TIME),
    ("event", "is_set", asynclock.SharedEvent, (), TIME),
    ("event", "wait", asynclock.SharedEvent, (), TIME),
    ("event", "inspect", asynclock.SharedEvent, (), {}),
    ("latch", "count_down", asynclock.Latch, (2,), TIME),
    ("latch", "remaining", asynclock.Latch, (), TIME),
    ("latch", "wait", asynclock.Latch, (), TIME),
    ("latch", "inspect", asynclock.Latch, (), {}),
    ("barrier", "wait", asynclock.Barrier, (), TIME),
    ("barrier", "waiting", asynclock.Barrier, (), TIME),
    ("barrier", "abort", asynclock.Barrier, (), TIME),
    ("barrier", "reset", asynclock.Barrier, (), TIME),
    ("barrier", "broken", asynclock.Barrier, (), TIME),
    ("barrier", "inspect", asynclock.Barrier, (), {}),
    ("", "inspect", asynclock.LockManager, ("a",), {}),
    ("", "nodes", asynclock.LockManager, (), {}),
    ("", "statistics", asynclock.LockManager, (), {}),
    ("", "waiters", asynclock.LockManager, (), {}),
    ("", "waits", asynclock.LockManager, (), {}),
    ("", "ready", asynclock.LockManager, (), {"voting": True, "timeout": 20}),
    ("", "ready", asynclock.LockManager, (), {"voting": False, "timeout": None}),
    ("lease", "extend", asynclock.Lease, (50,), {}),
    ("lease", "extend", asynclock.Lease, (None,), {}),
    ("lease", "check", asynclock.Lease, (), {}),
    ("lease", "release", asynclock.Lease, (), {}),
    ("lease", "detach", asynclock.Lease, (), {}),
]
"""What is made, which of its calls, the class that gets it, and with what."""
NO_RESULT = ("set", "clear", "abort", "reset", "ready", "extend")


@pytest.mark.parametrize(("made", "call", "kind", "args", "given"), CALLS)
def test_a_call_reaches_the_asynchronous_one_and_its_result_comes_back(
    locks: blocking.LockManager,
    monkeypatch: pytest.MonkeyPatch,
    made: str,
    call: str,
    kind: type,
    args: tuple[Any, ...],
    given: dict[str, Any],
) -> None:
    target: Any = locks
    if made == "lease":
        target = locks.lock("a").acquire()
    elif made:
        target = getattr(locks, made)(*MAKERS[made][0])
    result = None if call.endswith("acquire") else f"result of {call}"
    seen = []

    def answer(_made: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return result

    async def answer_later(*args: Any, **kwargs: Any) -> Any:
        return answer(*args, **kwargs)

    with monkeypatch.context() as patch:
        plain = call in ("nodes", "statistics", "waiters", "waits")
        patch.setattr(kind, call, answer if plain else answer_later)
        found = getattr(target, call)(*args, **given)
    assert seen == [(args, given)]
    assert found == (None if call in NO_RESULT else result)


@pytest.mark.parametrize("kind", ["lock", "upgrade"])
@pytest.mark.parametrize("timeout", [None, 0, 0.25])
def test_a_timeout_of_a_call_wins_over_that_of_the_lock(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, kind: str, timeout: float | None
) -> None:
    """Also None and 0: without a limit, and at once."""
    if kind == "lock":
        made = locks.asynchronous().lock("a")
        calls = note_calls(monkeypatch, type(made), "acquire")
        locks.lock("a", timeout=9).acquire(timeout=timeout).release()
        locks.lock("a", timeout=9).acquire().release()
    else:
        both = locks.rwlock("a", timeout=9)
        calls = note_calls(monkeypatch, asynclock.ReadWriteLock, "upgrade")
        with both.read() as reading:
            both.upgrade(reading, timeout=timeout).release()
            both.upgrade(reading).release()
    assert [kwargs for _, kwargs in calls] == [{"timeout": timeout}, {"timeout": NOT_GIVEN}]


# ---- what is made of the results -----------------------------------------------------------------
Pair = tuple[blocking.LockManager, blocking.LockManager]


def test_sides_are_changed(pair: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in pair)
    with here.read() as reading:
        with here.upgrade(reading, timeout=PATIENCE) as writing:
            assert writing.fence > reading.fence
            assert (writing.part, reading.part) == ("write", "read")
            assert there.read().try_acquire() is None
        with there.read(), pytest.raises(asynclock.AcquireTimeoutError):
            here.upgrade(reading, timeout=0.05)
        assert reading.check()
    writing = here.write().acquire(timeout=PATIENCE)
    with here.downgrade(writing):
        assert not writing.held
        assert there.write().try_acquire() is None
        with there.read().acquire(timeout=PATIENCE):
            pass
    with pytest.raises(asynclock.LeaseLostError):
        here.downgrade(writing)


def test_only_a_lease_of_the_lock_changes_sides(locks: blocking.LockManager) -> None:
    here = locks.rwlock("a")
    with locks.rwlock("b").read() as foreign, here.read() as reading:
        for change, wrong in (("upgrade", foreign), ("downgrade", reading)):
            for given in (wrong, None):
                with pytest.raises(ConfigurationError, match="this needs a lease"):
                    getattr(here, change)(given)
    assert here.inspect().owner is None


def test_several_names_permits_and_holds(pair: Pair) -> None:
    here, there = pair
    both = here.multi_lock("b", "a")
    assert both.names == ("a", "b")
    with both as lease:
        assert set(lease.fences) == {"a", "b"}
        assert [one.fence for one in lease.leases] == [lease.fence]
        assert there.lock("b").try_acquire() is None
        assert [part.name for part in there.multi_lock("a", "b").inspect().parts] == ["a", "b"]
    permits, other = (locks.semaphore("s", 4) for locks in pair)
    several = permits.several(3)
    assert (permits.permits, several.permits, several.name) == (4, 3, "s")
    with permits:
        assert permits.permits == 4, "all of them, while one is taken"
    with several as three:
        assert len(three.fences) == 3
        assert other.several(2).try_acquire() is None
        assert len([part for part in other.inspect().parts if part.owner]) >= 3
        with other.acquire(timeout=PATIENCE) as last:
            assert last.part not in three.fences
    with pytest.raises(ConfigurationError):
        permits.several(5)
    with here.reentrant_lock("r") as outer, here.reentrant_lock("r") as inner:
        assert (outer.depth, inner.fence) == (2, outer.fence)


def test_threads_wait_for_each_other(pair: Pair) -> None:
    event, bell = (locks.event("e") for locks in pair)
    latch, other = (locks.latch("l", 5) for locks in pair)
    barrier, gate = (locks.barrier("b", 2) for locks in pair)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(event.wait, timeout=PATIENCE)
        bell.set()
        assert waiting.result(PATIENCE)
        arriving = pool.submit(barrier.wait, timeout=PATIENCE)
        assert sorted([gate.wait(timeout=PATIENCE), arriving.result(PATIENCE)]) == [0, 1]
    event.clear()
    assert not bell.wait(timeout=0.01)
    assert (barrier.name, barrier.parties, latch.count) == ("b", 2, 5)
    assert [latch.count_down(2), other.count_down(), latch.remaining()] == [3, 2, 2]
    assert not other.wait(timeout=0.01)
    assert latch.count_down(2) == 0
    assert other.wait(timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        barrier.wait(timeout=0.5)
    gate.abort()
    with pytest.raises(asynclock.BrokenBarrierError):
        barrier.wait(timeout=PATIENCE)


def test_a_manager_lists_leases_that_can_be_used(pair: Pair) -> None:
    here, there = pair
    with here.lock("a") as lease, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(there.lock("a").acquire, timeout=PATIENCE)
        until(lambda: there.waiters() == {"a": 1})
        assert [found.name for found in there.inspect_all()] == ["a"]
        (same,) = here.leases()
        assert (same.name, same.owner, same.fence) == ("a", lease.owner, lease.fence)
        assert same.release()
        assert not lease.held
        assert waiting.result(PATIENCE).release()


def test_what_a_lease_is(locks: blocking.LockManager) -> None:
    with locks.lock("a", ttl=5) as lease:
        assert lease.owner == locks.inspect("a").owner
        assert lease.part == ""
        lease.extend(50)
        assert lease.ttl == 50
        assert 5 < lease.remaining() <= 50
        with pytest.raises(RuntimeError, match="entered already"):
            lease.__enter__()
        assert lease.held


# ---- functions and observers ---------------------------------------------------------------------
def test_a_decorated_function_is_called_like_the_plain_one(pair: Pair) -> None:
    """With its defaults, its name and, without the lease, its signature."""
    locks, others = pair

    @locks.synchronized("{kind}:{order}", ttl=20, timeout=0.01, lease="lease")
    def ship(order: int, kind: str = "orders", *, lease: blocking.Lease) -> tuple[str, float]:
        """Send it."""
        assert others.lock(lease.name).try_acquire() is None
        return lease.name, lease.ttl

    @locks.synchronized("orders:{order}", timeout=0.01)
    def plain(order: int) -> bool:
        return others.lock(f"orders:{order}").try_acquire() is not None

    assert ship(7) == ("orders:7", 20)  # type: ignore[call-arg]  # the decorator gives the lease
    assert ship(kind="parcels", order=8) == ("parcels:8", 20)  # type: ignore[call-arg]
    assert not plain(7)
    assert (ship.__name__, ship.__doc__) == ("ship", "Send it.")
    assert list(inspect.signature(ship).parameters) == ["order", "kind"]
    with others.lock("orders:7", timeout=PATIENCE), pytest.raises(asynclock.AcquireTimeoutError):
        plain(7)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lease'"):
        ship(7, lease=None)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigurationError, match="takes a template"):
        locks.synchronized(ship)  # type: ignore[arg-type]  # a decorator that was not called
    with pytest.raises(ConfigurationError, match="not a parameter"):
        locks.synchronized("{orders}")(ship)
    with pytest.raises(ConfigurationError, match="is async"):

        @locks.synchronized("a")
        async def wrong() -> None: ...

    with pytest.raises(ConfigurationError, match="is a generator, which would run after"):

        @locks.synchronized("a")
        def late() -> Iterator[None]:
            yield


def test_an_observer_that_was_removed_hears_nothing(locks: blocking.LockManager) -> None:
    seen: list[Any] = []
    for heard in (True, False):
        (locks.observe if heard else locks.unobserve)(seen.append)
        seen.clear()
        with locks.lock("a"):
            pass
        assert bool(seen) is heard
