"""Event, latch and barrier: what one process says, all see, with a minority of nodes hurt."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable

import pytest

import asynclock
from asynclock._rules import pacing
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.able_servers import need_clock_jumps
from tests.contract.faces import Face
from tests.primitives.conftest import Connect
from tests.tables.inside import sleeps
from tests.waiting import PATIENCE, in_virtual_time, until


@pytest.mark.parametrize(("waiters", "flushed"), [(5, False), (1, True)])
async def test_event(
    face: Face, connect: Connect, monkeypatch: pytest.MonkeyPatch, waiters: int, *, flushed: bool
) -> None:
    # Only a push wakes the waiters, not the end of a blind wait of two seconds at most.
    monkeypatch.setattr(pacing, "until_expiry", lambda _remaining, _random: 2 * PATIENCE)
    here, there = connect(), connect()
    if flushed:  # the first look is rejected, and sent again with the script
        assert not await here.event("go").is_set()
        assert not await there.event("go").is_set()
        for server in face.well:
            await server.command("SCRIPT", "FLUSH")
    waits = [asyncio.create_task(locks.event("go").wait()) for locks in (here, there) * waiters]
    await sleeps(here, waiters)
    await sleeps(there, waiters)
    assert not any(one.done() for one in waits)
    await here.event("go").set()
    assert await asyncio.wait_for(asyncio.gather(*waits), PATIENCE) == [True] * len(waits)
    await there.event("go").clear()
    assert await here.event("go").wait(timeout=0.1) is False


async def test_a_push_causes_one_look(
    asynclock_servers: StartServers, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that does not end the wait wakes its waiters once: then they wait again."""
    monkeypatch.setattr(pacing, "until_expiry", lambda _left, _random: 2 * PATIENCE)
    servers = await asynclock_servers(1)
    here, there = connect_to(servers), connect_to(servers)

    async def looks() -> int:
        """Return how many scripts the server has executed."""
        found = await servers[0].command("INFO", "commandstats")
        return int(found.partition("cmdstat_evalsha:calls=")[2].partition(",")[0])

    async def observe() -> None:
        async for _ in here.election("team").observe():
            pass

    tasks = [asyncio.create_task(here.latch("done", 3).wait()), asyncio.create_task(observe())]
    await sleeps(here, 2)
    async with there.election("team").campaign("value"):
        await there.latch("done", 3).count_down()
        await sleeps(here, 2)
        before = await looks()
        for _ in range(200):  # round trips: a task that does not wait looks about as often
            await there.event("other").is_set()
        assert await looks() - before - 200 < 20
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_the_first_change_of_a_manager_says_when_it_was_made() -> None:
    """Its number is a moment, although no clock is known before the first answers."""
    locks = asynclock.connect("memory://a", "memory://b", "memory://c")  # entered it would know
    await locks.event("go").set()
    numbers = [view.fence for view in (await locks.event("go").inspect()).nodes]
    assert min(numbers) > 1_000_000_000_000_000  # microseconds since 1970; a mere count is 1
    await locks.aclose()


async def test_event_is_forgotten(face: Face, connect: Connect) -> None:
    locks = connect()
    await locks.event("go", keep=0.5).set()
    await face.empty()
    assert not await locks.event("go").is_set()


async def test_cancelled_waiters_leave_nothing(face: Face, connect: Connect) -> None:
    locks = connect()
    waits = locks.event("go").wait(), locks.latch("done", 3).wait()
    waiters = [asyncio.create_task(wait) for wait in waits]
    await sleeps(locks, 2)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await face.empty()


async def test_counts_at_once_are_all_counted(connect: Connect) -> None:
    managers = [connect() for _ in range(3)]
    left = await asyncio.gather(
        *(managers[n % 3].latch("done", 20).count_down() for n in range(20))
    )
    assert min(left) == 0
    assert await managers[0].latch("done", 20).remaining() == 0
    seen = await managers[0].latch("done", 20).inspect()
    assert seen.kind == "latch"
    values = [view.value for view in seen.nodes if view.value is not None]
    assert len(json.loads(values[0])[1]) == 20


async def test_what_was_read_once_stays(
    asynclock_servers: StartServers, connect_to: Connect
) -> None:
    """A change that reached one node only is seen by a read, so the read must finish it."""
    servers = await asynclock_servers(3)
    await servers[2].kill()
    locks = connect_to(servers)
    # Clearly after the servers have started, so that none of them can have forgotten it.
    number = (time.time_ns() + 5_000_000_000) // 1000
    fields = ("promised", number, "by", "crashed", "accepted", number, "value", "set")
    await servers[0].command("HSET", "asynclock:go:#event", *fields)
    assert await locks.event("go").is_set(timeout=10)
    await servers[2].restart()
    await told(servers[2], "go:#event", lambda: locks.event("go").is_set(timeout=10))
    await servers[0].kill()
    assert await locks.event("go").is_set(timeout=10)


async def told(server: LocalServer, key: str, read: Callable[[], Awaitable[object]]) -> None:
    """Read until a node that has restarted holds the state again.

    A read repairs only the nodes that answered before it was decided.
    """

    async def has_it() -> bool:
        await read()
        return bool(await server.command("HGET", f"asynclock:{key}", "value"))

    await until(has_it, every=0.02)


async def test_a_restarted_node_has_no_say_until_it_is_told_again(
    asynclock_servers: StartServers, connect_to: Connect
) -> None:
    """One node misses the change, later another one forgets it: never more than one down."""
    need_clock_jumps()
    knows, forgets, misses = await asynclock_servers(3, clock=True)
    for server in (knows, forgets, misses):
        server.jump_clock(40 * 24 * 3600)  # they say that they are old: nothing is forgotten yet
    async with connect_to([knows, forgets, misses], node_timeout=0.5) as locks:
        await locks.event("go").is_set()
        await misses.freeze()
        await locks.event("go").set()
        await locks.latch("done", 3).count_down()
    await misses.thaw()
    await forgets.restart()
    locks = connect_to([knows, forgets, misses], node_timeout=0.5)
    event, latch = locks.event("go"), locks.latch("done", 3)
    await locks.event("other").is_set()
    await knows.freeze()  # the two others, a majority, hold nothing
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten"):
        await event.is_set(timeout=1)
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten"):
        await latch.count_down(timeout=1)
    await knows.thaw()
    assert await event.is_set(timeout=20)
    assert await latch.remaining(timeout=20) == 2
    await told(forgets, "go:#event", lambda: event.is_set(timeout=10))
    await told(forgets, "done:#latch", lambda: latch.remaining(timeout=10))
    await knows.freeze()
    assert await event.is_set(timeout=20)
    assert await latch.count_down(timeout=20) == 1


async def test_foreign_state_is_an_error(face: Face, connect: Connect) -> None:
    locks = connect()
    for kind, text in (("latch", '{"count": 3}'), ("barrier", "[1, 2")):
        for server in face.well:
            key = f"asynclock:x:#{kind}"
            await server.command("HSET", key, "accepted", 9, "promised", 9, "by", "", "value", text)
    for call in (locks.latch("x", 3).wait, locks.barrier("x", 3).wait):
        with pytest.raises(asynclock.ConfigurationError, match="not written by this library"):
            await call()


async def test_no_majority_is_an_outage(
    asynclock_servers: StartServers, connect_to: Connect
) -> None:
    servers = await asynclock_servers(3)
    locks = connect_to(servers)
    await locks.event("go").set()
    for server in servers[1:]:
        await server.kill()
    for call in (
        locks.event("go").is_set,
        locks.latch("done", 3).count_down,
        locks.barrier("start", 3).wait,
    ):
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await call(timeout=0.3)
        assert len(caught.value.nodes) == 2


async def test_counted_exactly_once_under_faults(
    asynclock_servers: StartServers, connect_to: Connect
) -> None:
    """Nodes freeze and restart empty, never a majority at a time: nothing is lost or repeated."""
    servers = await asynclock_servers(5)
    managers = [connect_to(servers, node_timeout=0.1, ttl=2) for _ in range(3)]
    latches = [locks.latch("done", 40) for locks in managers]
    chance = random.Random(11)
    stop = asyncio.Event()

    async def trouble() -> None:
        while not stop.is_set():
            server = chance.choice(servers)
            if chance.random() < 0.7:
                await server.freeze()
                await asyncio.sleep(0.15)
                await server.thaw()
            else:
                await server.restart(keep_data=False)
            # Told again by the next change before another one may forget.
            await latches[0].remaining()
            await asyncio.sleep(0.05)

    async def count(number: int) -> None:
        await asyncio.sleep(chance.random() * 2)
        await latches[number % 3].count_down()

    troubling = asyncio.create_task(trouble())
    waiting = asyncio.create_task(latches[2].wait())
    await asyncio.gather(*(count(number) for number in range(39)))
    assert await latches[0].remaining() == 1
    assert not waiting.done()
    await latches[1].count_down()
    stop.set()
    await troubling
    assert await asyncio.wait_for(waiting, PATIENCE) is True
