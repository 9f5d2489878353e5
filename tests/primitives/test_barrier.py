"""Barriers: who counts, for how long, and who learns of an abort or a reset, as in asyncio."""

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import asynclock
from tests.engine.batches import listen
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual, virtual_single
from tests.tables.inside import now
from tests.waiting import call_off, go_through, until

PATIENCE = 20.0
KEY = "asynclock:a:#barrier"


# ---- aborts and resets ---------------------------------------------------------------------------
async def waits_here(barrier: asynclock.Barrier, parties: int) -> bool:
    return await barrier.waiting(timeout=PATIENCE) == parties


async def waiting_parties(*barriers: asynclock.Barrier) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(one.wait(timeout=PATIENCE)) for one in barriers]
    everybody = functools.partial(waits_here, barriers[0], len(tasks))
    await until(everybody, "all wait")
    return tasks


async def broken(tasks: list[asyncio.Task[int]]) -> None:
    """All tasks end with the error, which is also asyncio's."""
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, asynclock.BrokenBarrierError)
        assert isinstance(error, asyncio.BrokenBarrierError)


@virtual
async def test_a_reset_sends_those_away_who_wait(on: Nodes) -> None:
    async with on.connect() as others:
        here, there = (locks.barrier("a", 3) for locks in (on.locks, others))
        early = await waiting_parties(here, there)
        await here.reset(timeout=PATIENCE)
        late = await waiting_parties(there, here)
        await broken(early)
        assert await there.wait(timeout=PATIENCE) == 2
        assert sorted(await asyncio.gather(*late)) == [0, 1]


@virtual
async def test_parties_that_look_only_after_the_reset_learn_of_the_abort(on: Nodes) -> None:
    """Between the two they may not have looked once: the nodes remember whom they sent away."""
    async with on.connect() as others:
        here, there = (locks.barrier("a", 3) for locks in (on.locks, others))
        early = await waiting_parties(here, here)
        await there.abort(timeout=PATIENCE)
        await there.reset(timeout=PATIENCE)
        await broken(early)
        assert await waits_here(there, 0)


# ---- who counts ----------------------------------------------------------------------------------
async def stored(on: Nodes, field: str = "value", key: str = KEY) -> Any:
    (text,) = await on.nodes[0].command("HMGET", key, field)
    return text and json.loads(text)


async def gone(on: Nodes) -> float:
    """Wait until nobody waits at the barrier; return the seconds that it took."""
    began = now()
    await until(functools.partial(waits_here, on.locks.barrier("a", 2), 0), every=0.05)
    return now() - began


@virtual_single
async def test_a_party_that_waits_counts_all_the_time(on: Nodes) -> None:
    """And reports about three times per ttl, so that it counts although one report is late."""
    barrier = on.locks.barrier("a", 2)
    for timeout in (None, 40.0):
        waiting = start(barrier.wait(timeout=timeout))
        await asyncio.sleep(0.1)
        reports = set()
        for _ in range(100):
            assert await barrier.waiting() == 1
            (until_,) = (await stored(on))[2].values()
            left = until_ / 1e6 - on.nodes[0].wall()
            assert TTL / 2 < left <= TTL + 0.001
            reports.add(until_)
            await asyncio.sleep(0.3)
        assert 8 <= len(reports) <= 12
        await call_off(waiting)
        await asyncio.sleep(0.1)


@virtual_single
async def test_a_party_that_crashed_counts_for_one_ttl(on: Nodes) -> None:
    there = on.connect()
    crashed = start(there.barrier("a", 2).wait())
    await asyncio.sleep(0.1)
    on.ways[0].go_mute()  # a process that crashes takes nothing back
    closing = start(there.aclose())
    assert await gone(on) == pytest.approx(TTL, abs=0.2)
    with pytest.raises(TimeoutError):
        await on.locks.barrier("a", 2).wait(timeout=1)
    await asyncio.wait([crashed, closing])


@virtual_single
async def test_places_are_those_of_arrival_and_little_is_remembered(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 3)
    for turn in range(6):
        parties = []
        for _ in range(3):
            parties.append(start(barrier.wait(timeout=30)))
            await asyncio.sleep(0.1)
        assert [await party for party in parties] == [0, 1, 2]
        _, rounds, here, passed, _, away = await stored(on)
        assert (rounds, here, len(passed), away) == (turn + 1, {}, min(turn + 1, 4), [])
    pair = on.locks.barrier("b", 2)
    for turn in range(1, 8):
        waiting = start(pair.wait(timeout=30))
        await asyncio.sleep(0.1)
        await pair.reset()
        with pytest.raises(asynclock.BrokenBarrierError, match="was reset while"):
            await waiting
        assert len((await stored(on, key="asynclock:b:#barrier"))[5]) == min(turn, 4)


@virtual_single
async def test_an_abort_and_a_reset_that_change_nothing_write_nothing(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 2)
    await barrier.reset()
    assert await stored(on) is None, "nobody has used it"
    for change, is_broken in ((barrier.abort, True), (barrier.reset, False)):
        await change()
        written = await stored(on, "accepted")
        await change()
        assert await stored(on, "accepted") == written
        assert await barrier.broken() == is_broken
    assert (await stored(on))[5] == [], "nobody was sent away"


# ---- parties that are slow -----------------------------------------------------------------------
@asynccontextmanager
async def slow_party(on: Nodes) -> AsyncIterator[asyncio.Task[int]]:
    """A party whose manager hears nothing for a while; others make new connections sooner."""
    async with on.connect() as slow:
        await go_through(slow.lock("warm"))
        early = start(slow.barrier("a", 2).wait(timeout=60))
        await asyncio.sleep(0.1)
        on.go_mute()
        yield early


@pytest.mark.parametrize("then", ["others go on", "it is aborted"])
@virtual
async def test_a_slow_party_learns_that_it_has_passed(on: Nodes, then: str) -> None:
    barrier = on.locks.barrier("a", 2)
    async with slow_party(on) as early:
        assert await barrier.wait(timeout=30) == 1
        if then == "it is aborted":
            await barrier.abort()
        for _ in range(3 if then == "others go on" else 0):
            places = await asyncio.gather(*(barrier.wait(timeout=30) for _ in range(2)))
            assert sorted(places) == [0, 1]
        assert await early == 0


@virtual
async def test_a_slow_party_learns_that_it_was_sent_away_before_others(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 2)
    async with slow_party(on) as early:
        await barrier.reset()
        later = start(barrier.wait(timeout=30))
        await asyncio.sleep(0.1)
        await barrier.reset()
        for party in (later, early):
            with pytest.raises(asynclock.BrokenBarrierError, match="'a' was reset while this"):
                await party


@pytest.mark.parametrize("change", ["wait", "reset"])
@virtual
async def test_news_on_its_way_at_the_deadline_is_no_timeout(on: Nodes, change: str) -> None:
    """The round is complete, or the party was sent away."""
    async with on.connect() as there:
        await go_through(there.lock("warm"))
        early = start(on.locks.barrier("a", 2).wait(timeout=3.0))
        await asyncio.sleep(2.5)
        changing = start(getattr(there.barrier("a", 2), change)())
        on.slow(0.2)
        if change == "wait":
            assert [await early, await changing] == [0, 1]
        else:
            with pytest.raises(asynclock.BrokenBarrierError):
                await early
            await changing


@virtual
async def test_a_timeout_is_no_outage_though_the_nodes_are_slow(on: Nodes) -> None:
    """No report is made so late that the nodes could not take it before the deadline."""
    barrier = on.locks.barrier("a", 2)
    on.slow(0.2)
    for tenths in range(20, 60, 8):
        began = now()
        with pytest.raises(TimeoutError):
            await barrier.wait(timeout=tenths / 10)
        assert now() - began < tenths / 10 + 1.0
        assert await barrier.waiting() == 0


# ---- parties that leave --------------------------------------------------------------------------
@virtual_single
async def test_a_party_that_leaves_a_barrier_that_was_forgotten_stores_nothing(on: Nodes) -> None:
    waiting = start(on.locks.barrier("a", 2).wait())
    await asyncio.sleep(0.1)
    await on.nodes[0].command("DEL", KEY)
    await call_off(waiting)
    await asyncio.sleep(1)
    assert await stored(on) is None


@pytest.mark.parametrize("close", ["", "before", "after", "only"])
@virtual
async def test_a_cancelled_party_leaves_also_if_its_manager_closes(on: Nodes, close: str) -> None:
    others, seen = asyncio.all_tasks(), listen(on.nodes[0])
    there = on.connect()
    await there.ready()
    waiting = start(there.barrier("a", 2).wait())
    await asyncio.sleep(1)
    closing = start(there.aclose()) if close in ("before", "only") else None
    await asyncio.sleep(0)
    if close != "only":
        waiting.cancel()
    if close == "after":
        await there.aclose()
    await asyncio.wait([waiting, *([closing] if closing else [])])
    if close == "only":
        assert type(waiting.exception()) is asynclock.ConfigurationError
    else:
        assert waiting.cancelled()
    assert await gone(on) < 1.0
    await there.aclose()
    assert seen.count("prepare") == 2, "it came, and left once"
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() <= others


@pytest.mark.parametrize("ttl", [TTL, 1.2])
@virtual
async def test_a_party_that_gives_up_has_two_node_timeouts_for_it(on: Nodes, ttl: float) -> None:
    """Nodes that are busy for a moment then make no outage of it, even after a late report."""
    waiting = start(on.locks.barrier("a", 2, ttl=ttl).wait(timeout=3))
    await asyncio.sleep(2.9)
    on.freeze("bc")
    await asyncio.sleep(1.6)
    assert not waiting.done()
    on.thaw("bc")
    with pytest.raises(TimeoutError):
        await waiting
    assert await on.locks.barrier("a", 2).waiting() == 0


@virtual
async def test_a_party_that_gives_up_in_an_outage_says_so_and_leaves_after_it(on: Nodes) -> None:
    """It can't know whether the others have passed; more than two node timeouts it never waits."""
    waiting = start(on.locks.barrier("a", 2).wait(timeout=3))
    await asyncio.sleep(2.9)
    on.freeze("bc")
    began = now()
    with pytest.raises((TimeoutError, asynclock.QuorumUnavailableError)):
        await waiting
    assert now() - began < 0.1 + 2.0 + 0.1
    on.thaw()
    assert await gone(on) < 2.0


@pytest.mark.parametrize("outage", [3, 3 * TTL])
@virtual
async def test_a_party_that_is_cancelled_in_an_outage_leaves_after_it(
    on: Nodes, outage: float, caplog: pytest.LogCaptureFixture
) -> None:
    """That it could not leave is no error: it counts as crashed after one ttl anyway."""
    there = on.connect(node_timeout=0.3)
    waiting = start(there.barrier("a", 2).wait())
    await asyncio.sleep(0.5)
    on.freeze()
    began = now()
    await call_off(waiting)
    assert now() - began == pytest.approx(2 * 0.3, abs=0.01)
    await asyncio.sleep(outage)
    on.thaw()
    assert await gone(on) < TTL / 2
    assert not any("barrier" in task.get_name() for task in asyncio.all_tasks())
    await there.aclose()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# ---- errors --------------------------------------------------------------------------------------
@virtual_single
async def test_a_barrier_names_itself_in_whatever_ends_a_wait(on: Nodes) -> None:
    barrier = on.locks.barrier("b", 2)
    with pytest.raises(TimeoutError, match="not all 2 parties arrived at barrier 'b'"):
        await barrier.wait(timeout=1)
    for end, text in (
        (barrier.reset, "'b' was reset while this party waited"),
        (barrier.abort, "'b' is broken until it is reset"),
    ):
        waiting = start(barrier.wait(timeout=30))
        await asyncio.sleep(0.1)
        await end()
        with pytest.raises(asynclock.BrokenBarrierError, match=text) as sent_away:
            await waiting
        assert sent_away.value.name == "b"
    with pytest.raises(asynclock.BrokenBarrierError, match="'b' is broken") as refused:
        await barrier.wait(timeout=30)
    assert refused.value.name == "b"
    assert await barrier.waiting() == 0, "it was not let in"
    for call in ("wait", "waiting", "abort", "reset", "broken"):
        with pytest.raises(asynclock.ConfigurationError, match="is for 2 parties, not 3") as wrong:
            await getattr(on.locks.barrier("b", 3), call)(timeout=30)
        assert wrong.value.name == "b"
