"""What the kinds of locks can do besides being acquired, for threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import asynclock
from asynclock import blocking
from asynclock.errors import ConfigurationError
from asynclock.events import Acquired, Event
from asynclock.testing import lose
from tests.waiting import until_in_thread as until

PATIENCE = 30.0
"""Seconds; far longer than anything here takes, on any machine."""
SETTINGS: dict[str, Any] = {"ttl": 60, "max_ttl": 60, "node_timeout": 5.0, "restart_guard": False}
NUMBERS = itertools.count()


@pytest.fixture
def managers() -> Iterator[tuple[blocking.LockManager, blocking.LockManager]]:
    """Two managers, as of two processes."""
    address = f"memory://blocking-kinds-{next(NUMBERS)}"
    with blocking.connect(address, **SETTINGS) as here, blocking.connect(address, **SETTINGS) as it:
        yield here, it


Pair = tuple[blocking.LockManager, blocking.LockManager]


def test_a_reader_is_upgraded_and_reads_again(managers: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in managers)
    with here.read() as reading:
        with here.upgrade(reading, timeout=PATIENCE) as writing:
            assert writing.fence > reading.fence
            assert (writing.part, reading.part) == ("write", "read")
            assert there.read().try_acquire() is None
        assert there.write().try_acquire() is None
        assert reading.check()
        with there.read(), pytest.raises(asynclock.AcquireTimeoutError):
            here.upgrade(reading, timeout=0.05)
        assert reading.check()
    with there.write().acquire(timeout=PATIENCE):
        pass


def test_the_second_upgrade_is_refused(managers: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in managers)
    mine, other = here.read().acquire(), there.read().acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.upgrade, mine, timeout=PATIENCE)
        until(lambda: managers[0].statistics().refused)
        with pytest.raises(asynclock.NotAcquiredError, match="is being upgraded"):
            there.upgrade(other)
        other.release()
        waiting.result(PATIENCE).release()
    mine.release()


def test_a_writer_is_downgraded(managers: Pair) -> None:
    here, there = (locks.rwlock("a") for locks in managers)
    writing = here.write().acquire()
    reading = here.downgrade(writing)
    assert not writing.held
    with reading:
        assert there.write().try_acquire() is None
        with there.read().acquire(timeout=PATIENCE):
            pass
    with pytest.raises(asynclock.LeaseLostError):
        here.downgrade(writing)


def test_only_a_lease_of_the_lock_is_taken(managers: Pair) -> None:
    here = managers[0].rwlock("a")
    with managers[0].rwlock("b").read() as foreign, here.read() as reading:
        for wrong in (foreign, None):
            with pytest.raises(ConfigurationError, match="no lease"):
                here.upgrade(wrong)  # type: ignore[arg-type]  # what a user might pass
        for wrong in (reading, None):
            with pytest.raises(ConfigurationError, match="no lease"):
                here.downgrade(wrong)  # type: ignore[arg-type]  # what a user might pass
    assert here.inspect().owner is None


def test_several_permits(managers: Pair) -> None:
    here, there = (locks.semaphore("a", 4) for locks in managers)
    several = here.several(3)
    assert (here.permits, several.permits, several.name) == (4, 3, "a")
    with here:
        assert here.permits == 4, "whoever is inside"
    with several as lease:
        assert len(lease.fences) == 3
        assert there.several(2).try_acquire() is None
        assert len([part for part in there.inspect().parts if part.owner]) >= 3
        with there.acquire(timeout=PATIENCE) as last:
            assert last.part not in lease.fences
    with there.several(4).acquire(timeout=PATIENCE) as everything:
        assert len(everything.fences) == 4
    with pytest.raises(ConfigurationError):
        here.several(5)


def test_a_barrier_lets_all_parties_go_on(managers: Pair) -> None:
    here, there = (locks.barrier("a", 2) for locks in managers)
    assert (here.name, here.parties, here.waiting()) == ("a", 2, 0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.wait, timeout=PATIENCE)
        assert sorted([there.wait(timeout=PATIENCE), waiting.result(PATIENCE)]) == [0, 1]
    with pytest.raises(TimeoutError):
        here.wait(timeout=0.05)


def test_a_barrier_is_aborted_and_reset(managers: Pair) -> None:
    here, there = (locks.barrier("a", 2) for locks in managers)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.wait, timeout=PATIENCE)
        until(lambda: there.waiting() == 1)
        there.abort(timeout=PATIENCE)
        with pytest.raises(asynclock.BrokenBarrierError):
            waiting.result(PATIENCE)
        assert here.broken()
        with pytest.raises(asynclock.BrokenBarrierError):
            here.wait(timeout=PATIENCE)
        here.reset(timeout=PATIENCE)
        assert not there.broken()
        assert there.inspect().kind == "barrier"


def test_an_event_and_a_latch(managers: Pair) -> None:
    here, there = (locks.event("a") for locks in managers)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.wait, timeout=PATIENCE)
        there.set()
        assert waiting.result(PATIENCE)
    assert here.is_set()
    here.clear()
    assert not there.wait(timeout=0.01)
    opening, other = (locks.latch("b", 2) for locks in managers)
    assert (opening.count, opening.count_down(), other.remaining()) == (2, 1, 1)
    assert not other.wait(timeout=0.01)
    assert other.count_down() == 0
    assert opening.wait(timeout=PATIENCE)
    assert (opening.count, opening.remaining()) == (2, 0), "counts that open it, not what remains"


def test_a_manager_says_what_it_does(managers: Pair) -> None:
    here, there = managers
    seen: list[Event] = []
    here.ready(voting=True, timeout=PATIENCE)
    here.observe(seen.append)
    with here.lock("a") as lease, ThreadPoolExecutor(1) as pool:
        assert lease.check()
        assert [one.name for one in here.leases()] == ["a"]
        waiting = pool.submit(there.lock("a").acquire, timeout=PATIENCE)
        until(lambda: there.waiters() == {"a": 1})
        assert [found.name for found in there.inspect_all()] == ["a"]
        (same,) = here.leases()
        assert same.release()
        assert not lease.held
        assert waiting.result(PATIENCE).release()
    here.unobserve(seen.append)
    assert [event for event in seen if isinstance(event, Acquired)]


def test_a_lease_that_the_nodes_dropped_is_not_ours(managers: Pair) -> None:
    with pytest.raises(asynclock.LeaseLostError), managers[0].lock("a") as lease:

        async def take(_locks: asynclock.LockManager) -> None:
            lose(lease._lease)  # type: ignore[arg-type]

        managers[0].run(take)
        assert not lease.check()


def test_several_names_and_several_holds(managers: Pair) -> None:
    here, there = managers
    both = here.multi_lock("b", "a")
    assert both.names == ("a", "b")
    with both as lease:
        assert [part.name for part in there.multi_lock("a", "b").inspect().parts] == ["a", "b"]
        assert [one.fence for one in lease.leases] == [lease.fence]
    lock = here.reentrant_lock("a")
    with lock as outer, lock:
        assert outer.depth == 2


def test_fair_locks_are_inspected(managers: Pair) -> None:
    here, there = (locks.fair_lock("a") for locks in managers)
    with here as lease:
        assert there.inspect().owner == lease.owner


def test_a_decorated_function_needs_no_parameter_for_the_lease(
    managers: tuple[blocking.LockManager, blocking.LockManager],
) -> None:
    here, there = managers

    @here.synchronized("orders:{order}")
    def free(order: int) -> bool:
        lease = there.lock(f"orders:{order}").try_acquire()
        return lease is not None

    assert not free(7)
    assert there.lock("orders:7").acquire(timeout=PATIENCE).release()


def test_what_is_entered_last_is_left_first(managers: Pair) -> None:
    """By the same thread; with one object, as with several."""
    permits = managers[0].semaphore("a", 2)
    with permits as outer:
        with permits as inner:
            assert outer.part != inner.part
        assert outer.held
        assert not inner.held
    assert not outer.held


def test_a_lease_can_be_entered_once_and_stays_held_then(managers: Pair) -> None:
    with managers[0].lock("a") as lease:
        with pytest.raises(RuntimeError, match="entered already"):
            lease.__enter__()
        assert lease.held


def test_each_kind_says_what_it_is(managers: Pair) -> None:
    here = managers[0]
    both = here.rwlock("r")
    for made, shown in [
        (here.lock("a"), "<blocking Lock 'a'>"),
        (both, "<blocking ReadWriteLock 'r'>"),
        (here.semaphore("s", 2), "<blocking Semaphore 's'>"),
        (here.event("e"), "<blocking SharedEvent 'e'>"),
    ]:
        assert repr(made) == shown
    with here.lock("a") as lease:
        assert repr(lease).startswith("<blocking <")
        assert lease.owner == here.inspect("a").owner
        assert "a" in repr(lease)


@pytest.mark.parametrize(("kind", "part"), [("semaphore", "0"), ("rwlock", "read")])
def test_each_kind_is_inspected_as_what_it_is(managers: Pair, kind: str, part: str) -> None:
    """The mutex of the same name is another lock."""
    here, there = managers
    if kind == "semaphore":
        held, shown = here.semaphore("a", 1).acquire(), there.semaphore("a", 1).inspect
    else:
        held, shown = here.rwlock("a").read().acquire(), there.rwlock("a").inspect
    with held:
        assert held.part == part
        assert held.owner in [one.owner for one in shown().parts]
        assert there.inspect("a").owner is None
