"""Calls by hand of a lock's class, and words of other libraries, are answered with our words."""

import asyncio
import contextlib
import copy
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

import asynclock
from asynclock import blocking
from tests.waiting import in_virtual_time

MADE_BY = {
    "LockManager": "connect(...)",
    "Lock": "connect(...).lock(name)",
    "ReentrantLock": "connect(...).reentrant_lock(name)",
    "MultiLock": "connect(...).multi_lock(*names)",
    "FairLock": "connect(...).fair_lock(name)",
    "ReadWriteLock": "connect(...).rwlock(name)",
    "Semaphore": "connect(...).semaphore(name, permits)",
    "SemaphorePermits": "connect(...).semaphore(name, permits).several(permits)",
    "SharedEvent": "connect(...).event(name)",
    "Latch": "connect(...).latch(name, count)",
    "Once": "connect(...).once(key)",
    "Barrier": "connect(...).barrier(name, parties)",
}
ALONE = {
    "Election": "connect(...).election(name)",
    "ReadLock": "connect(...).rwlock(name).read()",
    "WriteLock": "connect(...).rwlock(name).write()",
}
CASES = [
    *((asynclock, name, call) for name, call in {**MADE_BY, **ALONE}.items()),
    *((blocking, name, call) for name, call in MADE_BY.items()),
]


@pytest.mark.parametrize(("module", "name", "call"), CASES)
def test_a_lock_made_by_hand(module: ModuleType, name: str, call: str) -> None:
    hint, made = f"{name} is made by {call}: {name}.__init__() ", getattr(module, name)
    for args, settings in (
        *(((), {}), (("x",), {}), (("x", 2), {})),
        *((("x",), {"timeout": 5}), ((), {"name": "x"})),
    ):
        with pytest.raises(TypeError, match="^" + re.escape(hint)):
            made(*args, **settings)
    if "." in call:  # and that call works
        given = {
            "name": "a",
            "key": "a",
            "permits": 2,
            "count": 2,
            "parties": 2,
            "names": ["a", "b"],
        }
        made = eval(call, given, {"connect": lambda _: module.connect("memory://made-by")})
        assert type(made).__name__ == name


RELEASE = "lease.release(), of the lease that acquire() returns"
ENTER = "`async with`; code without asyncio uses asynclock.blocking"
PLAIN = "`with`; asyncio code uses asynclock.connect() and `async with`"


def things(module: ModuleType) -> dict[str, Any]:
    locks = module.connect("memory://words")
    semaphore, rwlock = locks.semaphore("s", 2), locks.rwlock("r")
    made = [locks.lock("a"), locks.fair_lock("f"), locks.multi_lock("a", "b"), semaphore]
    made += [locks.reentrant_lock("r"), semaphore.several(2), rwlock, rwlock.read()]
    made += [locks.event("e"), locks.latch("l", 2), locks.barrier("b", 2), locks.once("o"), locks]
    return {type(one).__name__: one for one in made}


@pytest.mark.parametrize(
    ("names", "method", "write"),
    [
        ("Lock FairLock MultiLock Semaphore SemaphorePermits ReadWriteLock", "release", RELEASE),
        ("Lock ReentrantLock LockManager", "unlock", RELEASE),
        ("Lock", "owned", "lease.held"),
        ("Lock Semaphore LockManager", "locked", "locks.inspect(name) to see who has it"),
        ("Lock LockManager", "extend", "lease.extend()"),
        ("Lock LockManager", "acquire_lock", "lock(name).acquire()"),
        ("LockManager ReadWriteLock Latch", "acquire", "campaign(), other kinds wait()"),
        ("ReadWriteLock", "readLock", "rwlock(name).read()"),
        ("LockManager", "getFairLock", "fair_lock(name)"),
        ("Lock LockManager", "quit", "aclose() of the manager, or close() of one of asynclock"),
        ("Latch", "countDown", "count_down()"),
        ("Lock Once", "reset", "locks.release_held(name, owner=...)"),
        ("Lock LockManager", "wanted", "on_wanted(callback)"),
        ("Once", "save", "finish(value), of the run"),
        ("SharedEvent Barrier", "locked", "lease.held"),
    ],
)
@pytest.mark.parametrize("module", [asynclock, blocking])
def test_a_method_of_another_library_is_answered(
    module: ModuleType, names: str, method: str, write: str
) -> None:
    for name in names.split():
        one = things(module)[name]
        with pytest.raises(AttributeError, match=re.escape(write)) as caught:
            getattr(one, method)
        assert (caught.value.name, caught.value.obj) == (method, one)
        assert not hasattr(one, method)


def test_an_acquire_that_is_not_awaited_has_no_lease() -> None:
    call = asynclock.connect("memory://words").lock("a").acquire()
    with contextlib.closing(call):
        for name in ("release", "fence"):
            with pytest.raises(AttributeError, match=f"no '{name}': write `lease = await lock"):
                getattr(call, name)
        assert not hasattr(call, "__len__")


def test_python_and_its_tools_find_on_a_lock_what_it_has() -> None:
    for one in things(asynclock).values():
        assert "release" not in dir(one)
        assert not hasattr(mock.create_autospec(one), "release")
        with pytest.raises(AttributeError, match=f"'{type(one).__name__}' object has no attribute"):
            _ = one.releas
        with pytest.raises(TypeError, match="can't be copied"):
            copy.deepcopy(one)


@pytest.mark.parametrize(
    ("use", "write"),
    [
        (lambda locks: contextlib.ExitStack().enter_context(locks), ENTER),
        (lambda locks: contextlib.ExitStack().enter_context(locks.lock("a")), ENTER),
        (lambda locks: entered_plainly(locks.lock("a").acquire()), ENTER),
        (lambda locks: locks.election("a").__aenter__(), "`async with election.campaign()`"),
        (lambda locks: locks.barrier("a", 2).__aenter__(), "one of its methods, such as wait()"),
        (lambda locks: locks.rwlock("a").__aenter__(), "`async with rwlock.read()`"),
        (lambda locks: asyncio.run(awaited(locks.lock("a"))), "`await lock.acquire()`"),
        (lambda _: asyncio.run(entered(blocking.connect("memory://"))), PLAIN),
        (lambda _: asyncio.run(entered(blocking.connect("memory://").lock("a"))), PLAIN),
        (lambda locks: locks.lock("a", leaseTime=5), "ttl= (seconds"),
        (lambda locks: locks.lock("a", retry_times=5), "timeout= (seconds"),
        (lambda locks: locks.lock("a").acquire(ttl=5), "where the lock is made"),
        (lambda locks: asyncio.run(locks.lock("a").try_acquire(timeout=5)), "acquire(timeout="),
        (lambda locks: locks.rwlock("a").read(blocking=False), "try_acquire()"),
        (lambda locks: asyncio.run(extended(locks)), "lease.extend(ttl)"),
        (lambda _: asynclock.connect("memory://", host="a"), 'connect("redis://'),
        (lambda _: blocking.connect("memory://", db=1), 'connect("redis://'),
        (lambda _: asynclock.connect("memory://", timeout=1), "lock(name, timeout=...)"),
    ],
)
def test_a_use_as_of_another_library_is_answered(use: Callable[[Any], Any], write: str) -> None:
    with pytest.raises(TypeError, match=re.escape(write)):
        use(asynclock.connect("memory://words"))


def entered_plainly(call: Any) -> None:
    with contextlib.closing(call), call:
        pass


async def awaited(lock: Any) -> None:
    await lock


async def extended(locks: Any) -> None:
    async with locks, locks.lock("a") as lease:
        await lease.extend(additional_time=5)


async def entered(lock: Any) -> None:
    async with lock:
        pass


@in_virtual_time
async def test_a_side_of_a_read_write_lock_has_a_timeout_of_its_own() -> None:
    async with asynclock.connect("memory://sides") as locks:
        rwlock = locks.rwlock("r", timeout=60)
        async with rwlock.write(timeout=0):
            started = asyncio.get_running_loop().time()
            other = locks.rwlock("r").read(timeout=0)
            with pytest.raises(asynclock.NotAcquiredError):
                await asyncio.create_task(entered(other))
            assert asyncio.get_running_loop().time() - started < 1
