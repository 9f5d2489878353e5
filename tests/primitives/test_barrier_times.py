"""Who counts at a barrier, for how long, and what the nodes remember of it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._primitives.barrier import Barrier, _describe, _State
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual, virtual_single
from tests.waiting import until

KEY = "asynclock:a:#barrier"


async def state(on: Nodes, node: int = 0) -> Any:
    (text,) = await on.nodes[node].command("HMGET", KEY, "value")
    return json.loads(text)


async def number(on: Nodes) -> int:
    (text,) = await on.nodes[0].command("HMGET", KEY, "accepted")
    return int(text)


@virtual_single
async def test_a_party_that_waits_counts_all_the_time(on: Nodes) -> None:
    """And reports about three times per ttl, so that it counts although one report is late."""
    barrier = on.locks.barrier("a", 2)
    for timeout in (None, 40.0):
        waiting = start(barrier.wait(timeout=timeout))
        await asyncio.sleep(0.1)
        reports = set()
        for _ in range(300):
            assert await barrier.waiting() == 1
            (until_,) = (await state(on))[2].values()
            left = until_ / 1e6 - on.nodes[0].wall()
            assert TTL / 2 < left <= TTL + 0.001
            reports.add(until_)
            await asyncio.sleep(0.1)
        assert 8 <= len(reports) <= 12
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.1)


@virtual_single
async def test_a_party_that_crashed_counts_for_one_ttl(on: Nodes) -> None:
    there = on.connect()
    crashed = start(there.barrier("a", 2).wait())
    await asyncio.sleep(0.1)
    there._engine.undos.clear()  # a process that crashes takes nothing back
    await there.aclose()
    barrier, began = on.locks.barrier("a", 2), _clock.now()

    async def alone() -> bool:
        return await barrier.waiting() == 0

    await until(alone, every=0.05)
    assert _clock.now() - began == pytest.approx(TTL, abs=0.2)
    assert _describe(json.dumps(await state(on)), int(on.nodes[0].wall() * 1e6)) == (
        {"parties": 2, "waiting": 0, "round": 0, "broken": False},
        "0 of 2 wait for round 1",
    )
    with pytest.raises(TimeoutError):
        await barrier.wait(timeout=1)
    await asyncio.wait([crashed])


@virtual_single
async def test_places_are_those_of_arrival(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 3)
    for turn in range(3):
        parties = []
        for _ in range(3):
            parties.append(start(barrier.wait(timeout=30)))
            await asyncio.sleep(0.1)
        assert [await party for party in parties] == [0, 1, 2]
        assert (await state(on))[1] == turn + 1
        assert (await state(on))[2] == {}


@virtual
async def test_a_slow_party_learns_that_it_has_passed_though_others_went_on(on: Nodes) -> None:
    slow = on.connect()
    async with slow:
        async with slow.lock("warm"):
            pass
        barrier = on.locks.barrier("a", 2)
        early = start(slow.barrier("a", 2).wait(timeout=60))
        await asyncio.sleep(0.1)
        for way in on.ways:
            way.go_mute()  # each manager makes new connections, the slow one later
        assert await barrier.wait(timeout=30) == 1
        for _ in range(3):
            assert sorted(await asyncio.gather(*(barrier.wait(timeout=30) for _ in range(2)))) == [
                0,
                1,
            ]
        assert await early == 0


@virtual
async def test_a_slow_party_has_passed_though_the_barrier_was_aborted_afterwards(on: Nodes) -> None:
    async with on.connect() as slow:
        async with slow.lock("warm"):
            pass
        barrier = on.locks.barrier("a", 2)
        early = start(slow.barrier("a", 2).wait(timeout=60))
        await asyncio.sleep(0.1)
        for way in on.ways:
            way.go_mute()  # each manager makes new connections, the slow one later
        assert await barrier.wait(timeout=30) == 1
        await barrier.abort()
        assert await early == 0


@virtual_single
async def test_what_the_nodes_remember_of_a_barrier_does_not_grow(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 1)
    for _ in range(12):
        await barrier.wait(timeout=30)
    _, rounds, _, passed, _, away = await state(on)
    assert (rounds, len(passed), away) == (12, 4, [])
    latest = passed[-1]
    await barrier.wait(timeout=30)
    assert (await state(on))[3][-2] == latest
    pair = on.locks.barrier("b", 2)
    for turn in range(1, 8):
        waiting = start(pair.wait(timeout=30))
        await asyncio.sleep(0.1)
        await pair.reset()
        with pytest.raises(asynclock.BrokenBarrierError, match="was reset while"):
            await waiting
        (text,) = await on.nodes[0].command("HMGET", "asynclock:b:#barrier", "value")
        assert len(json.loads(text)[5]) == min(turn, 4)


def test_a_party_is_sent_away_though_others_were_later() -> None:
    state = _State(2, 0, {}, [], sent_away=[["first"], ["second", "third"]])
    assert [state.refuses(party) for party in ("first", "third", "new")] == [True, True, False]


def test_a_barrier_in_words() -> None:
    for here, broken, waiting, words in (
        ({}, False, 0, "0 of 3 wait for round 8"),
        ({"a": 11, "b": 9, "c": 12}, False, 2, "2 of 3 wait for round 8"),
        ({}, True, 0, "broken in round 8, until it is reset"),
    ):
        found = _describe(json.dumps([3, 7, here, [], broken, []]), 10)
        assert found == ({"parties": 3, "waiting": waiting, "round": 7, "broken": broken}, words)


def test_a_party_counts_until_its_time_ends() -> None:
    text = json.dumps([3, 0, {"early": 99, "over": 100, "here": 101}, [], False, []])
    assert _describe(text, 100)[0]["waiting"] == 1
    barrier = asynclock.connect("memory://a").barrier("a", 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Barrier, "_now", lambda _: 100)
        assert [*barrier._alive(text).here] == ["here"]


@virtual_single
async def test_a_party_that_leaves_a_barrier_that_was_forgotten_stores_nothing(on: Nodes) -> None:
    waiting = start(on.locks.barrier("a", 2).wait())
    await asyncio.sleep(0.1)
    await on.nodes[0].command("DEL", KEY)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(1)
    assert await on.nodes[0].command("HMGET", KEY, "value") == [None]


@virtual
async def test_a_party_that_gives_up_has_two_node_timeouts_for_it(on: Nodes) -> None:
    """Nodes that are busy for a moment then make no outage of it."""
    waiting = start(on.locks.barrier("a", 2).wait(timeout=3))
    await asyncio.sleep(2.9)
    for node in on.nodes[1:]:
        node.freeze()
    await asyncio.sleep(1.6)
    assert not waiting.done()
    for node in on.nodes[1:]:
        node.thaw()
    with pytest.raises(TimeoutError):
        await waiting
    assert await on.locks.barrier("a", 2).waiting() == 0


@virtual_single
async def test_a_party_that_is_cancelled_leaves_once_also_if_its_manager_is_closed(
    on: Nodes,
) -> None:
    there, started = on.connect(), list[str]()
    spawn = there._engine.background.spawn

    def note(work: Any, name: str) -> Any:
        started.append(name)
        return spawn(work, name)

    for count, close in enumerate((False, True), 1):
        waiting = start(there.barrier("a", 2).wait())
        await asyncio.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(there._engine.background, "spawn", note)
            waiting.cancel()
            if close:
                await there.aclose()
            await asyncio.wait([waiting])
        assert started.count("asynclock: leave barrier a") == count


@virtual_single
async def test_an_abort_and_a_reset_that_change_nothing_write_nothing(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 2)
    await barrier.reset()
    assert await on.nodes[0].command("HMGET", KEY, "value") == [None], "nobody has used it"
    for change, broken in ((barrier.abort, True), (barrier.reset, False)):
        await change()
        written = await number(on)
        await change()
        assert await number(on) == written
        assert await barrier.broken() == broken
    assert (await state(on))[5] == [], "nobody was sent away"


@virtual_single
async def test_an_error_names_the_barrier(on: Nodes) -> None:
    await on.locks.barrier("a", 2).abort()
    with pytest.raises(asynclock.BrokenBarrierError) as broken:
        await on.locks.barrier("a", 2).wait(timeout=30)
    assert broken.value.name == "a"
    assert await on.locks.barrier("a", 2).waiting() == 0, "it was not let in"
    for call in ("wait", "waiting", "abort", "reset", "broken"):
        with pytest.raises(asynclock.ConfigurationError) as wrong:
            await getattr(on.locks.barrier("a", 3), call)(timeout=30)
        assert wrong.value.name == "a"


@virtual
async def test_a_timeout_is_no_outage_though_the_nodes_are_slow(on: Nodes) -> None:
    """No report is made so late that the nodes could not take it before the deadline."""
    barrier = on.locks.barrier("a", 2)
    on.slow(0.2)
    for tenths in range(20, 60, 4):
        began = _clock.now()
        with pytest.raises(TimeoutError):
            await barrier.wait(timeout=tenths / 10)
        assert _clock.now() - began < tenths / 10 + 1.0
        assert await barrier.waiting() == 0


@virtual
async def test_a_party_that_is_sent_away_at_its_deadline_learns_that(on: Nodes) -> None:
    """The news of it is still on its way to the party that gives up."""
    there = on.connect()
    async with there:
        async with there.lock("warm"):
            pass
        early = start(on.locks.barrier("a", 2).wait(timeout=3.0))
        await asyncio.sleep(2.5)
        resetting = start(there.barrier("a", 2).reset())
        on.slow(0.2)
        with pytest.raises(asynclock.BrokenBarrierError):
            await early
        await resetting


@virtual
async def test_a_party_that_leaves_in_an_outage_is_gone_when_it_is_over(on: Nodes) -> None:
    barrier = on.locks.barrier("a", 2)
    waiting = start(barrier.wait())
    await asyncio.sleep(0.5)
    for node in on.nodes:
        node.freeze()
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(3)
    for node in on.nodes:
        node.thaw()
    began = _clock.now()

    async def gone() -> bool:
        return await barrier.waiting() == 0

    await until(gone, every=0.05)
    assert _clock.now() - began < TTL / 2


def test_a_party_that_cannot_leave_is_no_error_of_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It counts as crashed after one ttl anyway."""

    @virtual
    async def play(on: Nodes) -> None:
        waiting = start(on.locks.barrier("a", 2).wait())
        await asyncio.sleep(0.5)
        for node in on.nodes:
            node.freeze()
        waiting.cancel()
        await asyncio.sleep(3 * TTL)
        assert not any("barrier" in task.get_name() for task in asyncio.all_tasks())

    play()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "wrong",
    [
        '[2, 0, {"a": "soon"}, [], false, []]',
        '[2, 0, {"a": true}, [], false, []]',
        "[2, 0, {}, [7], false, []]",
        "[2, 0, {}, [], false, [7]]",
        "[2, 0, {}, [], 0, []]",
        '["2", 0, {}, [], false, []]',
        "[2, 0, {}, [], false]",
    ],
)
def test_what_only_resembles_a_state_is_refused(wrong: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match="not written by this library"):
        _describe(wrong, 0)
