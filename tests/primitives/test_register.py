"""Event, latch and barrier: what one process says, all see, with a minority of nodes hurt."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine.lookout import Lookout
from asynclock._primitives.register import Register
from asynclock._primitives.round import Round
from asynclock._rules import pacing
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.able_servers import need_clock_jumps
from tests.contract.faces import Face
from tests.engine.virtual_nodes import Nodes, virtual
from tests.primitives.conftest import Connect
from tests.tables.inside import sleeps
from tests.waiting import PATIENCE, becomes, in_virtual_time, until


async def test_event(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only a push wakes the waiters, not the end of a blind wait of two seconds at most.
    monkeypatch.setattr(pacing, "until_expiry", lambda _remaining, _random: 2 * PATIENCE)
    here, there = connect(), connect()
    assert not await here.event("go").is_set()
    waiters = [asyncio.create_task(locks.event("go").wait()) for locks in (here, there) * 5]
    await sleeps(here, 5)
    await sleeps(there, 5)
    assert not any(waiter.done() for waiter in waiters)
    await here.event("go").set()
    assert await asyncio.wait_for(asyncio.gather(*waiters), PATIENCE) == [True] * 10
    assert await there.event("go").is_set()
    await there.event("go").clear()
    assert not await here.event("go").is_set()
    assert await here.event("go").wait(timeout=0.1) is False


async def test_a_push_causes_one_look(
    asynclock_servers: StartServers, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that does not end the wait wakes its waiters once: then they wait again."""
    monkeypatch.setattr(pacing, "until_expiry", lambda _left, _random: 2 * PATIENCE)
    servers = await asynclock_servers(1)
    here, there = connect_to(servers), connect_to(servers)
    begin, looks = Lookout.begin, 0

    def count(self: Lookout) -> bool:
        nonlocal looks
        looks += 1
        return begin(self)

    async def observe() -> None:
        async for _ in here.election("team").observe():
            pass

    monkeypatch.setattr(Lookout, "begin", count)
    tasks = [asyncio.create_task(here.latch("done", 3).wait()), asyncio.create_task(observe())]
    await sleeps(here, 2)
    seen = looks
    async with there.election("team").campaign("value"):
        await there.latch("done", 3).count_down()
        await until(lambda: looks >= seen + 2, "both were woken")
        seen = looks
        for _ in range(200):  # round trips: a task that does not wait looks about as often
            await there.event("other").is_set()
        assert looks - seen < 20
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


@virtual
async def test_a_node_that_answers_after_the_decision_is_given_back_what_it_forgot(
    on: Nodes,
) -> None:
    key = "asynclock:go:#event"
    await on.locks.event("go").set()
    await asyncio.sleep(60)
    await on.nodes[2].command("DEL", key)
    on.locks._engine.multiplexer.nodes[2].trust.remembers_from = _clock.now()
    on.ways[2].seconds = 0.1
    assert await on.locks.event("go").is_set()
    await asyncio.sleep(1)
    assert await on.nodes[2].command("HMGET", key, "value") == ["set"]


async def test_event_is_forgotten(face: Face, connect: Connect) -> None:
    locks = connect()
    await locks.event("go", keep=0.5).set()
    await face.empty()
    assert not await locks.event("go").is_set()


async def test_cancelled_waiters_leave_nothing(face: Face, connect: Connect) -> None:
    locks = connect()
    waiters = [
        asyncio.create_task(locks.event("go").wait()),
        asyncio.create_task(locks.latch("done", 3).wait()),
    ]
    await sleeps(locks, 2)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await face.empty()


async def test_latch(connect: Connect) -> None:
    here, there = connect(), connect()
    waiting = asyncio.create_task(there.latch("done", 3).wait())
    assert await here.latch("done", 3).remaining() == 3
    assert await here.latch("done", 3).count_down() == 2
    assert await there.latch("done", 3).wait(timeout=0.1) is False
    assert await there.latch("done", 3).count_down(2) == 0
    assert await asyncio.wait_for(waiting, PATIENCE) is True
    assert await here.latch("done", 3).count_down() == 0
    assert await here.latch("done", 3).wait(timeout=1) is True
    with pytest.raises(asynclock.ConfigurationError, match="counts from 3, not from 4"):
        await here.latch("done", 4).count_down()


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


async def test_barrier(connect: Connect) -> None:
    managers = [connect() for _ in range(3)]
    rounds: list[list[int]] = []
    for _ in range(2):
        waiting = [
            asyncio.create_task(locks.barrier("start", 4).wait())
            for locks in [*managers, managers[0]][:3]
        ]
        await becomes(managers[0].barrier("start", 4).waiting, 3)
        assert not any(task.done() for task in waiting)
        last = await managers[1].barrier("start", 4).wait()
        rounds.append([*await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE), last])
        assert last == 3
    assert [sorted(places) for places in rounds] == [[0, 1, 2, 3]] * 2
    with pytest.raises(asynclock.ConfigurationError, match="for 4 parties, not 5"):
        await managers[0].barrier("start", 5).wait()


async def test_barrier_counts_nobody_who_left(face: Face, connect: Connect) -> None:
    locks, other = connect(), connect()
    barrier = locks.barrier("start", 2)
    with pytest.raises(TimeoutError):
        await barrier.wait(timeout=0.1)
    assert await barrier.waiting() == 0
    cancelled = asyncio.create_task(barrier.wait())
    await becomes(barrier.waiting, 1)
    cancelled.cancel()
    await becomes(barrier.waiting, 0)
    alone = asyncio.create_task(barrier.wait())
    await sleeps(locks)
    assert not alone.done()
    places = await asyncio.wait_for(
        asyncio.gather(alone, other.barrier("start", 2).wait()), PATIENCE
    )
    assert sorted(places) == [0, 1]


async def test_barrier_counts_nobody_who_crashed(connect: Connect) -> None:
    """Its manager is gone without a word; it counts for one ttl, while the living are renewed."""
    ttl = 2.0
    crashing, locks, other = connect(ttl=ttl), connect(ttl=ttl), connect(ttl=ttl)
    crashed = asyncio.create_task(crashing.barrier("start", 3).wait())
    barrier = locks.barrier("start", 3)
    await becomes(barrier.waiting, 1)
    async with asyncio.timeout(PATIENCE):
        await crashing.aclose()
        alive = asyncio.create_task(barrier.wait())
        await sleeps(locks)
        begun = time.monotonic()
        await becomes(other.barrier("start", 3).waiting, 1)
        await asyncio.sleep(begun + ttl + 0.1 - time.monotonic())
        assert await barrier.waiting() == 1, "who lives says so again"
        second = asyncio.create_task(other.barrier("start", 3).wait())
        await sleeps(other)
        assert not alive.done()
        await barrier.wait()
        await asyncio.gather(alive, second)
    crashed.cancel()
    await asyncio.gather(crashed, return_exceptions=True)


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
    await _told(locks, servers[2])
    await servers[0].kill()
    assert await locks.event("go").is_set(timeout=10)


async def _told(locks: asynclock.LockManager, server: LocalServer) -> None:
    """Read until a node that has restarted holds the event again."""
    async with asyncio.timeout(PATIENCE):
        while await server.command("HGET", "asynclock:go:#event", "value") != "set":
            await locks.event("go").is_set(timeout=10)
            await asyncio.sleep(0.02)


async def _told_of_the_latch(locks: asynclock.LockManager, server: LocalServer) -> None:
    """The same for the latch: a read repairs only the nodes that answered before it was decided."""
    async with asyncio.timeout(PATIENCE):
        while not await server.command("HEXISTS", "asynclock:done:#latch", "value"):
            await locks.latch("done", 3).remaining(timeout=10)
            await asyncio.sleep(0.02)


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
    await locks.event("other").is_set()
    await knows.freeze()  # the two others, a majority, hold nothing
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten"):
        await locks.event("go").is_set(timeout=1)
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten"):
        await locks.latch("done", 3).count_down(timeout=1)
    await knows.thaw()
    assert await locks.event("go").is_set(timeout=20)
    assert await locks.latch("done", 3).remaining(timeout=20) == 2
    await _told(locks, forgets)
    await _told_of_the_latch(locks, forgets)
    await knows.freeze()
    assert await locks.event("go").is_set(timeout=20)
    assert await locks.latch("done", 3).count_down(timeout=20) == 1


async def test_an_answer_lost_on_the_way_back_changes_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes took the change and we never heard of it: made again, it must not count twice."""
    ask = Register._ask
    lost = 0

    async def deaf(
        self: Register, patience: Any, op: str, *args: str | int, chosen: float = 0.0
    ) -> Round:
        nonlocal lost
        answers = await ask(self, patience, op, *args, chosen=chosen)
        if op == "accept" and lost < 2:
            lost += 1
            answers.granted.clear()
        return answers

    locks = connect()
    monkeypatch.setattr(Register, "_ask", deaf)
    assert await locks.latch("done", 5).count_down(timeout=10) == 4
    assert lost
    lost = 0
    assert await locks.barrier("start", 1).wait(timeout=10) == 0
    assert lost
    value = (await locks.barrier("start", 1).inspect()).nodes[0].value
    assert value is not None
    assert json.loads(value)[1] == 1, "one round, not two"


async def test_foreign_state_is_an_error(face: Face, connect: Connect) -> None:
    locks = connect()
    for kind, text in (("latch", '{"count": 3}'), ("barrier", "[1, 2")):
        for server in face.well:
            key = f"asynclock:x:#{kind}"
            await server.command("HSET", key, "accepted", 9, "promised", 9, "by", "", "value", text)
    with pytest.raises(asynclock.ConfigurationError):
        await locks.latch("x", 3).wait()
    with pytest.raises(asynclock.ConfigurationError):
        await locks.barrier("x", 3).wait()


async def test_no_majority_is_an_outage(
    asynclock_servers: StartServers, connect_to: Connect
) -> None:
    servers = await asynclock_servers(3)
    locks = connect_to(servers)
    await locks.event("go").set()
    for server in servers[1:]:
        await server.kill()
    with pytest.raises(asynclock.QuorumUnavailableError) as caught:
        await locks.event("go").is_set(timeout=0.3)
    assert len(caught.value.nodes) == 2
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.latch("done", 3).count_down(timeout=0.3)
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.barrier("start", 3).wait(timeout=0.3)


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
