"""Event, latch and barrier: what one process says, all see, with a minority of nodes hurt."""

import asyncio

import pytest

import asynclock
from asynclock._rules import pacing
from asynclock.testing.plugin import StartServers
from tests.able_servers import need_clock_jumps
from tests.contract.faces import Face
from tests.engine.virtual_nodes import instead, old
from tests.primitives.conftest import Connect
from tests.tables.inside import sleeps
from tests.waiting import PATIENCE, call_off, in_virtual_time, until


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
    await call_off(*tasks)


@in_virtual_time
async def test_the_first_change_of_a_manager_says_when_it_was_made() -> None:
    """Its number is a moment, although no clock is known before the first answers."""
    on, asked = old("abc"), list[bytes]()
    for node in on.nodes:
        instead(node, lambda words: asked.append(words[5]) if b"prepare" in words else None)
    locks = on.connect()  # entered it would know
    await locks.event("go").set()
    numbers = [view.fence for view in (await locks.event("go").inspect()).nodes]
    assert min(numbers) > 1_000_000_000_000_000  # microseconds since 1970; a mere count is 1
    assert asked[0] == b"1", "what only asks for the clocks gets in nobody's way"
    await locks.aclose()


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
    await misses.thaw()
    await forgets.restart()
    locks = connect_to([knows, forgets, misses], node_timeout=0.5)
    event = locks.event("go")
    await locks.event("other").is_set()
    await knows.freeze()  # the two others, a majority, hold nothing
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten"):
        await event.is_set(timeout=1)
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten"):
        await event.clear(timeout=1)
    await knows.thaw()
    assert await event.is_set(timeout=20)

    async def told() -> bool:
        """Read: that repairs only the nodes that answered before it was decided."""
        return await event.is_set() and await forgets.command(
            "HGET", "asynclock:go:#event", "value"
        )

    await until(told, every=0.02)
    await knows.freeze()
    assert await event.is_set(timeout=20)
