"""Several mutexes as one: all or nothing, no deadlock, nothing partial."""

import asyncio

import anyio

from tests.contract.faces import Face
from tests.primitives.conftest import Connect, hold
from tests.waiting import PATIENCE, until


async def test_the_body_may_release_it_early(connect: Connect) -> None:
    for prefix in ("a:", "a:{"):  # one lease for all names, or one each
        async with connect(prefix=prefix).multi_lock("a", "b") as lease:
            assert await lease.release()
            assert (lease.held, lease.remaining()) == (False, 0)
            assert connect(prefix=prefix).multi_lock("a").names == ("a",)
            assert repr(lease) == f"<MultiLease 'a, b' fence={lease.fence} released>"
        assert lease.lost_reason is None


async def test_cancelled_at_each_await_it_keeps_no_name(face: Face, connect: Connect) -> None:
    """Cancel like a scope of anyio: again at each await."""
    names = ("a", "b", "c", "d")
    here, there = connect(prefix="a:{"), connect(prefix="a:{")

    async def inside() -> None:
        async with here.multi_lock(*names):
            await asyncio.sleep(30)

    async with anyio.create_task_group() as group:
        group.start_soon(inside)
        await until(lambda: here.statistics().held == len(names), "it has all")
        group.cancel_scope.cancel()
    assert here.leases() == ()

    async with there.lock("d", timeout=PATIENCE), anyio.create_task_group() as group:
        group.start_soon(inside)
        await until(lambda: here.statistics().held == len(names) - 1, "it has all but one")
        group.cancel_scope.cancel()
    assert here.leases() == ()
    await face.empty()


async def test_a_refused_batch_wakes_no_waiter_for_its_free_name(connect: Connect) -> None:
    waiting, rival = connect(), connect()
    async with rival.lock("b"), anyio.create_task_group() as group:
        group.start_soon(hold, waiting.multi_lock("a", "b"))
        await until(lambda: waiting.statistics().attempts == 2, "it has asked for pushes")
        await asyncio.gather(*(rival.multi_lock(*two).try_acquire() for two in ("ab", "cd")))
        await asyncio.sleep(0.1)
        assert waiting.statistics().attempts == 2
        group.cancel_scope.cancel()
