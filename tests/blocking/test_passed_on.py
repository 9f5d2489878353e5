"""What a thread passes to a blocking call reaches the asynchronous one, and a result comes back."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import asynclock
from asynclock import blocking

NUMBERS = itertools.count()
SETTINGS: dict[str, Any] = {
    "ttl": 7.0,
    "timeout": 0.5,
    "renew": False,
    "max_hold": 50.0,
    "handoff": "strict",
}
NO_SETTING = ("fair_lock", "handoff")
KINDS: dict[str, tuple[Any, ...]] = {
    "lock": ("a",),
    "reentrant_lock": ("a",),
    "multi_lock": ("a", "b"),
    "rwlock": ("a",),
    "fair_lock": ("a",),
    "semaphore": ("a", 2),
}
KEPT: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "event": (("a",), {"keep": 70.0}),
    "latch": (("a", 2), {"keep": 70.0}),
    "barrier": (("a", 2), {"ttl": 7.0, "keep": 70.0}),
}


@pytest.fixture
def locks() -> Iterator[blocking.LockManager]:
    address = f"memory://passed-on-{next(NUMBERS)}"
    with blocking.connect(address, ttl=60, max_ttl=60) as locks:
        yield locks


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_lock_reaches_it(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given = {name: one for name, one in SETTINGS.items() if (kind, name) != NO_SETTING}
    calls = note_calls(monkeypatch, asynclock.LockManager, kind)
    getattr(locks, kind)(*KINDS[kind], **given)
    assert calls
    for args, kwargs in calls:
        # A loss can't interrupt a thread: it must not interrupt the task that works for it.
        assert (args, kwargs) == (KINDS[kind], {**given, "interrupt": False})


@pytest.mark.parametrize("kind", KEPT)
def test_how_long_a_shared_state_is_kept_reaches_it(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    args, settings = KEPT[kind]
    calls = note_calls(monkeypatch, asynclock.LockManager, kind)
    getattr(locks, kind)(*args, **settings)
    assert calls == [(args, settings)]


def shared_calls() -> Iterator[tuple[str, str]]:
    for kind in (blocking.SharedEvent, blocking.Latch, blocking.Barrier):
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and "timeout" in inspect.signature(method).parameters:
                yield kind.__name__, name


@pytest.mark.parametrize(("kind", "method"), list(shared_calls()))
def test_a_timeout_reaches_every_call_and_its_result_comes_back(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, kind: str, method: str
) -> None:
    timeouts: list[Any] = []

    async def answer(_made: Any, *_args: Any, timeout: float | None = None) -> str:
        timeouts.append(timeout)
        return "result"

    monkeypatch.setattr(getattr(asynclock, kind), method, answer)
    make = {"SharedEvent": "event"}.get(kind, kind.lower())
    made = getattr(locks, make)(*KEPT[make][0])
    results = {getattr(made, method)(timeout=timeout) for timeout in (0.25, None)}
    assert timeouts == [0.25, None]
    assert results == {None if method in ("set", "clear", "abort", "reset") else "result"}


def test_a_latch_is_counted_down_by_several_at_once(locks: blocking.LockManager) -> None:
    latch = locks.latch("a", 5)
    assert [latch.count_down(2), latch.count_down(), latch.count_down(2)] == [3, 2, 0]


def test_readiness_has_the_callers_terms(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = note_calls(monkeypatch, asynclock.LockManager, "ready")
    locks.ready(voting=True, timeout=20)
    locks.ready()
    wanted = [{"voting": True, "timeout": 20}, {"voting": False, "timeout": None}]
    assert [kwargs for _, kwargs in calls] == wanted


def test_a_lease_is_extended_by_what_the_caller_says(locks: blocking.LockManager) -> None:
    with locks.lock("a", ttl=5) as lease:
        lease.extend(50)
        assert lease.ttl == 50
        assert 5 < lease.remaining() <= 50
        lease.extend()
        assert lease.ttl == 50


@pytest.mark.parametrize("kind", ["lock", "upgrade"])
@pytest.mark.parametrize("timeout", [None, 0, 0.25])
def test_a_timeout_of_a_call_wins_over_that_of_the_lock(
    locks: blocking.LockManager, monkeypatch: pytest.MonkeyPatch, kind: str, timeout: float | None
) -> None:
    """Also None and 0: without a limit, and at once."""
    if kind == "lock":
        calls = note_calls(monkeypatch, type(_made(locks)), "acquire")
        locks.lock("a", timeout=9).acquire(timeout=timeout).release()
        locks.lock("a", timeout=9).acquire().release()
    else:
        both = locks.rwlock("a", timeout=9)
        calls = note_calls(monkeypatch, asynclock.ReadWriteLock, "upgrade")
        with both.read() as reading:
            both.upgrade(reading, timeout=timeout).release()
            both.upgrade(reading).release()
    assert [kwargs for _, kwargs in calls] == [{"timeout": timeout}, {}]


def _made(locks: blocking.LockManager) -> asynclock.Lock:
    return locks.asynchronous().lock("a")


def test_a_decorated_function_is_called_like_the_plain_one(locks: blocking.LockManager) -> None:
    """With its defaults, its name and, without the lease, its signature."""

    @locks.synchronized("{kind}:{order}", ttl=20, timeout=0.01, lease="lease")
    def ship(order: int, kind: str = "orders", *, lease: blocking.Lease) -> tuple[str, float]:
        """Send it."""
        return lease.name, lease.ttl

    assert ship(7) == ("orders:7", 20)  # type: ignore[call-arg]  # the decorator gives the lease
    assert ship(kind="parcels", order=8) == ("parcels:8", 20)  # type: ignore[call-arg]
    assert (ship.__name__, ship.__doc__) == ("ship", "Send it.")
    assert list(inspect.signature(ship).parameters) == ["order", "kind"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'lease'"):
        ship(7, lease=None)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(asynclock.ConfigurationError, match="takes a template"):
        locks.synchronized(ship)  # type: ignore[arg-type]  # a decorator that was not called
    with pytest.raises(asynclock.ConfigurationError, match="not a parameter"):
        locks.synchronized("{orders}")(ship)


def test_a_decorated_function_waits_as_long_as_it_says(locks: blocking.LockManager) -> None:
    @locks.synchronized("a", timeout=0.01)
    def work() -> None:
        raise AssertionError("it is not free")

    with ThreadPoolExecutor(1) as pool, locks.lock("a"):
        with pytest.raises(asynclock.AcquireTimeoutError):
            pool.submit(work).result(30)


def test_an_observer_that_was_removed_hears_nothing(locks: blocking.LockManager) -> None:
    seen: list[Any] = []
    locks.observe(seen.append)
    with locks.lock("a"):
        pass
    assert seen
    locks.unobserve(seen.append)
    heard = len(seen)
    with locks.lock("a"):
        pass
    assert len(seen) == heard
