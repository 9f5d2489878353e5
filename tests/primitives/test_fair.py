"""The fair lock: first come, first served, and dead waiters are skipped."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

import asynclock
from asynclock._primitives import fair
from asynclock._primitives.lock import SCRIPT
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.primitives.conftest import Connect, hold
from tests.waiting import PATIENCE, until

QUEUE = "asynclock:a:#waiters"


async def put(server: LocalServer, number: int, ticket: str, milliseconds: int) -> None:
    """Put a ticket into the queue whose waiter never asks again."""
    await server.command("ZADD", QUEUE, number, ticket)
    await server.command("SET", f"{QUEUE}:#{ticket}", "1", "PX", milliseconds)


async def leave(server: LocalServer, ticket: str) -> None:
    """Take a ticket out of the queue, as another process does it."""
    keys = ("asynclock:a:#fair", "asynclock:a:#fair:#fence", QUEUE)
    await server.command("EVAL", SCRIPT.source, len(keys), *keys, "leave", ticket)


@pytest_asyncio.fixture
async def server(asynclock_servers: StartServers) -> LocalServer:
    return (await asynclock_servers(1))[0]


async def queued(server: LocalServer, number: int) -> None:
    """Wait until this many waiters are queued."""

    async def queue_is_as_long() -> bool:
        return await server.command("ZCARD", QUEUE) == number

    await until(queue_is_as_long, f"{number} waiters are queued")


async def test_first_come_first_served(server: LocalServer, connect_to: Connect) -> None:
    managers = [connect_to([server]) for _ in range(3)]
    order: list[int] = []

    async def work(number: int) -> None:
        async with managers[number % 3].fair_lock("a") as lease:
            order.append(number)
            fences.append(lease.fence)

    fences: list[int] = []
    holder = await managers[0].fair_lock("a").acquire(timeout=PATIENCE)
    tasks = []
    for number in range(12):
        tasks.append(asyncio.create_task(work(number)))
        await queued(server, number + 1)
    assert await managers[0].fair_lock("a").try_acquire() is None
    await holder.release()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert order == list(range(12))
    assert fences == sorted(set(fences))
    assert set(await server.command("KEYS", "asynclock:a*")) == {"asynclock:a:#fair:#fence"}


async def test_a_newcomer_does_not_overtake(server: LocalServer, connect_to: Connect) -> None:
    """Free, but there is a queue: a try_acquire is refused."""
    locks = connect_to([server])
    await put(server, 1, f"{0:032x}:crashed", 2000)
    with pytest.raises(asynclock.AcquireTimeoutError) as caught:
        await locks.fair_lock("a").acquire(timeout=0.05)
    assert caught.value.holder == "crashed"
    assert await locks.fair_lock("a").try_acquire() is None
    # The ghost never asks again, so it is skipped.
    lease = await locks.fair_lock("a").acquire(timeout=10)
    assert lease.held


async def test_a_waiter_that_gives_up_leaves_the_queue(
    server: LocalServer, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair, "PATIENCE", 600.0)  # no waiter counts as crashed
    here, there = connect_to([server]), connect_to([server])
    holder = await here.fair_lock("a").acquire(timeout=PATIENCE)
    cancelled = asyncio.create_task(hold(there.fair_lock("a")))
    await queued(server, 1)
    late = asyncio.create_task(hold(there.fair_lock("a"), timeout=0.5))
    await queued(server, 2)
    patient = asyncio.create_task(hold(here.fair_lock("a")))
    await queued(server, 3)
    cancelled.cancel()
    with pytest.raises(asynclock.AcquireTimeoutError):
        await late
    await queued(server, 1)
    await holder.release()
    lease = await asyncio.wait_for(patient, PATIENCE)
    assert lease.fence > holder.fence
    await queued(server, 0)


@pytest.mark.parametrize("ours", [True, False])
async def test_the_next_is_woken_when_the_first_gives_up_a_free_lock(
    server: LocalServer, connect_to: Connect, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    """The first waiter was woken by the release but no longer asks: the next one must be woken."""
    monkeypatch.setattr(fair, "PATIENCE", 600.0)  # else it would ask by itself, a second later
    locks = connect_to([server])
    await put(server, 1, "first:there", 600_000)
    late = asyncio.create_task(hold(locks.fair_lock("a"), timeout=1.0))
    await queued(server, 2)
    patient = asyncio.create_task(hold(locks.fair_lock("a")))
    await queued(server, 3)
    if ours:  # the late one is first then, and does not know it
        await server.command("ZREM", QUEUE, "first:there")
    with pytest.raises(asynclock.AcquireTimeoutError):
        await late
    if not ours:
        await leave(server, "first:there")
    assert (await asyncio.wait_for(patient, PATIENCE)).held


async def test_a_waiter_that_leaves_the_queue_of_a_free_lock_wakes_other_processes(
    server: LocalServer, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair, "PATIENCE", 600.0)  # else it would ask by itself, a second later
    locks = connect_to([server])
    await put(server, 1, "first:there", 600_000)
    patient = asyncio.create_task(hold(locks.fair_lock("a")))
    await until(lambda: locks.statistics().refused, "the waiter is refused")
    await leave(server, "first:there")
    assert (await asyncio.wait_for(patient, PATIENCE)).held


async def test_of_a_process_only_the_first_is_woken(
    server: LocalServer, connect_to: Connect
) -> None:
    locks = connect_to([server])
    order: list[int] = []

    async def work(number: int) -> None:
        async with locks.fair_lock("a"):
            order.append(number)

    async with locks.fair_lock("a"):
        tasks = []
        for number in range(30):
            tasks.append(asyncio.create_task(work(number)))
            await queued(server, number + 1)
        before = locks.statistics().attempts
    await asyncio.gather(*tasks)
    assert order == list(range(30))
    # Each asks once when it is woken; at most some ask by themselves, once a second.
    assert locks.statistics().attempts - before < 3 * 30


async def test_a_waiter_keeps_its_place_for_long(server: LocalServer, connect_to: Connect) -> None:
    """Longer than the patience of the server: it has said that it is still there."""
    here, there = connect_to([server]), connect_to([server])
    holder = await here.fair_lock("a").acquire(timeout=PATIENCE)
    first = asyncio.create_task(hold(there.fair_lock("a")))
    await queued(server, 1)
    second = asyncio.create_task(hold(here.fair_lock("a")))
    await queued(server, 2)
    await asyncio.sleep(2.5)
    await queued(server, 2)
    await holder.release()
    lease = await asyncio.wait_for(first, PATIENCE)
    assert not second.done()
    await lease.release()
    await asyncio.wait_for(second, PATIENCE)


async def test_no_task_waits_for_itself_and_inspect(
    server: LocalServer, connect_to: Connect
) -> None:
    locks = connect_to([server])
    async with locks.fair_lock("a") as lease:
        with pytest.raises(asynclock.AlreadyHeldError):
            await locks.fair_lock("a").acquire(timeout=PATIENCE)
        seen = await locks.fair_lock("a").inspect()
        assert (seen.kind, seen.owner) == ("fair_lock", lease.owner)
