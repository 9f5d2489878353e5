"""Barriers that are aborted and reset, on every deployment: what asyncio.Barrier does."""

from __future__ import annotations

import asyncio
import functools

import pytest

import asynclock
from tests.contract.matrix import DEPLOYMENTS, faces
from tests.waiting import until

Locks = asynclock.LockManager
Pair = tuple[Locks, Locks]
PATIENCE = 20.0

face = faces(DEPLOYMENTS)


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


async def test_an_aborted_barrier_is_broken_until_it_is_reset(pair: Pair) -> None:
    here, there = (locks.barrier("a", 3) for locks in pair)
    early = await waiting_parties(here, there)
    await there.abort(timeout=PATIENCE)
    await broken(early)
    assert await here.broken(timeout=PATIENCE)
    with pytest.raises(asynclock.BrokenBarrierError, match="until it is reset"):
        await here.wait(timeout=PATIENCE)
    await here.reset(timeout=PATIENCE)
    assert not await there.broken(timeout=PATIENCE)
    places = await asyncio.gather(*(one.wait(timeout=PATIENCE) for one in (here, there, here)))
    assert sorted(places) == [0, 1, 2]


async def test_a_reset_sends_those_away_who_wait(pair: Pair) -> None:
    here, there = (locks.barrier("a", 3) for locks in pair)
    early = await waiting_parties(here, there)
    await here.reset(timeout=PATIENCE)
    late = await waiting_parties(there, here)
    await broken(early)
    assert await there.wait(timeout=PATIENCE) == 2
    assert sorted(await asyncio.gather(*late)) == [0, 1]


async def test_parties_that_look_only_after_the_reset_learn_of_the_abort(pair: Pair) -> None:
    """Between the two they may not have looked once: the nodes remember whom they sent away."""
    here, there = (locks.barrier("a", 3) for locks in pair)
    early = await waiting_parties(here, here)
    await there.abort(timeout=PATIENCE)
    await there.reset(timeout=PATIENCE)
    await broken(early)
    assert await waits_here(there, 0)


async def test_a_complete_round_stays_complete(pair: Pair) -> None:
    here, there = (locks.barrier("a", 2) for locks in pair)
    (early,) = await waiting_parties(here)
    assert await there.wait(timeout=PATIENCE) == 1
    await there.abort(timeout=PATIENCE)
    assert await early == 0


async def test_a_barrier_that_nobody_has_used(pair: Pair) -> None:
    here, there = (locks.barrier("a", 2) for locks in pair)
    await here.reset(timeout=PATIENCE)
    assert not await there.broken(timeout=PATIENCE)
    await here.abort(timeout=PATIENCE)
    assert await there.broken(timeout=PATIENCE)
    await here.abort(timeout=PATIENCE)
    await there.reset(timeout=PATIENCE)
    assert not await here.broken(timeout=PATIENCE)


async def test_the_number_of_parties_is_checked(pair: Pair) -> None:
    await pair[0].barrier("a", 2).abort(timeout=PATIENCE)
    with pytest.raises(asynclock.ConfigurationError, match="2 parties, not 3"):
        await pair[1].barrier("a", 3).reset(timeout=PATIENCE)
