"""Several mutexes as one: all or nothing, no deadlock, nothing partial."""

import asyncio
import random
from collections.abc import Callable

import anyio
import pytest

import asynclock
from asynclock.testing import History, check
from asynclock.testing.plugin import StartServers
from tests.contract.faces import Face
from tests.primitives.conftest import Connect, hold
from tests.tables.inside import renew_now
from tests.waiting import PATIENCE, until, waits


async def test_all_or_nothing(face: Face, connect: Connect) -> None:
    here, there = connect(), connect()
    async with here.multi_lock("b", "a", "b") as lease:
        assert lease.name == "a, b"
        assert lease.fences == {"a": lease.fence, "b": lease.fence}
        assert await there.lock("a").try_acquire() is None
        assert await there.lock("b").try_acquire() is None
        assert await there.multi_lock("b", "c").try_acquire() is None
    await face.empty()
    for name in ("a", "b"):
        async with there.lock(name) as single:
            assert single.fence > lease.fence
    async with here.multi_lock("a", "b", "c") as again:
        assert again.fence > single.fence


async def test_what_others_store_is_not_written_over(face: Face, connect: Connect) -> None:
    for server in face.well:
        await server.command("HSET", "asynclock:b", "mine", "yes")
    with pytest.raises(asynclock.AsyncLockError):
        await connect().multi_lock("a", "b").acquire(timeout=0.2)
    await face.empty(":b")
    for server in face.well:
        assert await server.command("HGET", "asynclock:b", "mine") == "yes"


async def test_it_waits_for_each_name(connect: Connect) -> None:
    here, there = connect(), connect()
    first = await here.lock("a").acquire(timeout=PATIENCE)
    second = await here.lock("b").acquire(timeout=PATIENCE)
    waiter = asyncio.create_task(hold(there.multi_lock("a", "b")))
    await waits(there)
    before = there.statistics().refused
    await first.release()
    # It asks again and finds the other name still held.
    await until(lambda: there.statistics().refused > before, "the waiter is refused again")
    assert not waiter.done()
    probe = await here.lock("a").acquire(timeout=PATIENCE)  # it holds nothing while it waits
    await probe.release()
    await second.release()
    assert (await asyncio.wait_for(waiter, PATIENCE)).held


async def test_the_body_may_release_it_early(connect: Connect) -> None:
    for prefix in ("a:", "a:{"):  # one lease for all names, or one each
        async with connect(prefix=prefix).multi_lock("a", "b") as lease:
            assert await lease.release()
            assert not lease.held
            assert lease.remaining() == 0
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
        await until(lambda: len(here.leases()) == len(names), "it has all")
        group.cancel_scope.cancel()
    assert here.leases() == ()

    other = await there.lock("d").acquire(timeout=PATIENCE)
    async with anyio.create_task_group() as group:
        group.start_soon(inside)
        await until(lambda: len(here.leases()) == len(names) - 1, "it has all but one")
        group.cancel_scope.cancel()
    assert here.leases() == ()
    await other.release()
    await face.empty()


async def test_what_was_lost_before_it_was_entered_keeps_no_other_name(
    face: Face, connect: Connect
) -> None:
    here, there = connect(prefix="a:{"), connect(prefix="a:{")
    other = await there.lock("c").acquire(timeout=PATIENCE)

    async def inside() -> None:
        async with here.multi_lock("a", "b", "c"):
            raise AssertionError

    waiting = asyncio.create_task(inside())
    await until(lambda: len(here.leases()) == 2, "two of three names are locked")
    for server in face.well:
        await server.command("DEL", "a:{a}")
    renew_now(here)
    await until(lambda: len(here.leases()) == 1, "one of them is lost")
    await other.release()
    with pytest.raises(asynclock.LeaseLostError, match="'a'"):
        await waiting
    assert here.leases() == ()
    await face.empty()


async def test_inspect_shows_each_name(connect: Connect) -> None:
    locks = connect()
    async with locks.multi_lock("a", "b") as lease:
        seen = await locks.multi_lock("a", "b", "c").inspect()
        assert [(part.name, part.owner) for part in seen.parts] == [
            ("a", lease.owner),
            ("b", lease.owner),
            ("c", None),
        ]
        assert (await locks.inspect("a")).owner == lease.owner


@pytest.mark.parametrize("nodes", [1, 5])
async def test_overlapping_sets_do_not_deadlock(
    asynclock_servers: StartServers,
    connect_to: Connect,
    record_testsuite_property: Callable[[str, object], None],
    nodes: int,
) -> None:
    """Five overlapping sets, 20 tasks in four managers: all get through, nothing is left."""
    servers = await asynclock_servers(nodes)
    face = Face("", [], servers)
    chance = random.Random(7)
    names = ["a", "b", "c", "d", "e", "f"]
    sets = [chance.sample(names, chance.randint(2, 4)) for _ in range(5)]
    managers = [connect_to(servers) for _ in range(4)]
    history = History()

    async def work(number: int) -> None:
        locks = managers[number % 4]
        for turn in range(5):
            wanted = sets[(number + turn) % 5]
            began = history.now()
            async with locks.multi_lock(*wanted) as lease:
                bodies = [
                    history.acquired(name, lease.owner, lease.fence, began=began) for name in wanted
                ]
                await asyncio.sleep(0.001)
                for body in bodies:
                    body.left()

    started = history.now()
    async with asyncio.timeout(40):
        await asyncio.gather(*(work(number) for number in range(20)))
    record_testsuite_property("seconds for 100 leases", round(history.now() - started, 2))
    assert check(history) == []
    await face.empty()
