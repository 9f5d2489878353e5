"""What `acquire` returns is a coroutine: everything that takes a coroutine takes it."""

import asyncio
import collections.abc
import gc
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio
import uvloop

import asynclock
from asynclock.testing import LocalServer
from tests import patient
from tests.engine.kinds import calls
from tests.engine.test_lease_ends import complaints
from tests.waiting import go_through, until

Call = Callable[[asynclock.LockManager], "asynclock.AcquireContext[Any]"]
CALLS = calls("strict", "one of two", "several")


def each_call(function: Any) -> Any:
    return pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())(function)


@pytest_asyncio.fixture
async def locks() -> AsyncIterator[asynclock.LockManager]:
    async with asynclock.connect("memory://coroutine") as made:
        yield made


def again() -> Any:
    return pytest.raises(RuntimeError, match="cannot reuse already awaited")


async def end(lease: Any) -> None:
    assert lease.held
    await (lease.resign if isinstance(lease, asynclock.Term) else lease.release)()


@each_call
async def test_it_is_one(locks: asynclock.LockManager, call: Call) -> None:
    made = call(locks)
    assert isinstance(made, asynclock.AcquireContext)
    assert isinstance(made, collections.abc.Coroutine)
    assert asyncio.iscoroutine(made)
    assert made  # as a coroutine is: the repr of a task asks
    assert repr(made) in ("<AcquireContext of 'a'>", "<AcquireContext of 'a, b'>")
    assert not hasattr(made, "cr_code")  # asyncio looks for it
    await end(await made)


async def everywhere(make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Use a new one of `make` in each way that asyncio knows."""
    await end(await make())
    await end(await asyncio.create_task(make()))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(make())
    await end(task.result())
    await end((await asyncio.gather(make()))[0])
    await end(await asyncio.wait_for(make(), 10))
    await end(await asyncio.shield(make()))
    await end(await asyncio.ensure_future(make()))
    for done in asyncio.as_completed([make()]):
        await end(await done)
    loop = asyncio.get_running_loop()
    found = await asyncio.to_thread(
        lambda: asyncio.run_coroutine_threadsafe(make(), loop).result(10)
    )
    await end(found)
    async with make() as lease:
        assert lease.held
    assert not lease.held


@each_call
async def test_what_takes_a_coroutine_takes_it(locks: asynclock.LockManager, call: Call) -> None:
    await everywhere(lambda: call(locks))
    assert locks.leases() == ()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_eager_tasks_take_it(locks: asynclock.LockManager) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    try:
        for call in CALLS.values():
            await everywhere(lambda call=call: call(locks))  # type: ignore[misc]
    finally:
        loop.set_task_factory(None)


def test_uvloop_takes_it(asynclock_nodes: list[LocalServer]) -> None:
    async def main() -> None:
        async with patient.connect(asynclock_nodes[0].url, restart_guard=False) as locks:
            for call in CALLS.values():
                await everywhere(lambda call=call: call(locks))  # type: ignore[misc]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_task_of_it_is_cancelled_cleanly(locks: asynclock.LockManager) -> None:
    async with locks.lock("a"):
        waiting = asyncio.create_task(locks.lock("a").acquire())
        await until(lambda: locks.statistics().waiting == 1, "it waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert locks.statistics().waiting == 0
    assert "coro=<acquire()" in repr(waiting)


async def test_one_whose_wait_was_cancelled_is_closed_cleanly(locks: asynclock.LockManager) -> None:
    seen, held = complaints(), await locks.lock("a").acquire()
    made = locks.lock("a").acquire()
    made.send(None).cancel()
    made.close()
    await held.release()
    assert (seen, locks.statistics().waiting) == ([], 0)


@each_call
async def test_it_is_awaited_once(locks: asynclock.LockManager, call: Call) -> None:
    for drive in (lambda made: made, asyncio.create_task):
        made = call(locks)
        await end(await drive(made))
        with again():
            await made
        with again():
            made.send(None)
        with again():
            made.throw(KeyError)
        with again():
            await asyncio.create_task(made)
        made.close()
    assert locks.leases() == ()


@each_call
async def test_it_is_made_at_its_use_and_entered_once(
    locks: asynclock.LockManager, call: Call
) -> None:
    unused, entered = call(locks), call(locks)
    assert locks.leases() == ()
    async with entered as lease:
        with again():
            await entered.__aenter__()
        assert lease.held
    assert not lease.held
    assert locks.leases() == ()
    for over in (entered, unused):
        with pytest.raises(RuntimeError, match="never entered"):
            await over.__aexit__(None, None, None)
    with again():
        await go_through(entered)
    unused.close()


@each_call
async def test_thrown_into_or_closed_before_it_began(
    locks: asynclock.LockManager, call: Call
) -> None:
    made = call(locks)
    with pytest.raises(KeyError):
        made.throw(KeyError("x"))
    with again():
        await made
    with again():
        made.send(None)
    with warnings.catch_warnings():  # as of any coroutine: this spelling is on its way out
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(KeyError):
            call(locks).throw(KeyError, "x", None)
    made = call(locks)
    made.close()
    made.close()
    with again():
        await made
    assert locks.leases() == ()


@each_call
async def test_dropped_it_warns(locks: asynclock.LockManager, call: Call) -> None:
    with pytest.warns(RuntimeWarning, match=r"acquire of 'a(, b)?' was never awaited") as told:
        call(locks)
        gc.collect()
    assert [warning.filename for warning in told] == [__file__]


async def test_asked_for_its_truth_it_warns(locks: asynclock.LockManager) -> None:
    """`if lock.acquire():` is true, as with each coroutine that lacks its await."""
    lock = locks.lock("a")
    with pytest.warns(RuntimeWarning, match="acquire of 'a' was never awaited"):
        assert lock.acquire()
        gc.collect()
    with pytest.warns(RuntimeWarning, match=r"coroutine '.*try_acquire' was never awaited"):
        assert lock.try_acquire()
        gc.collect()


@each_call
async def test_used_it_does_not_warn(locks: asynclock.LockManager, call: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await end(await call(locks))
        await go_through(call(locks))
        call(locks).close()
        gc.collect()
