"""A process that used up its turn yields: for long to known rivals, else for a moment."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock._engine import acquire
from asynclock._rules import pacing
from asynclock.testing import LocalServer
from tests import patient
from tests.waiting import until

FOR_EVER = 1000.0
"""A courtesy that no test outlasts: who comes at all was not held up by it."""


def connect(nodes: list[LocalServer]) -> asynclock.LockManager:
    return patient.connect(*(node.url for node in nodes), restart_guard=False)


def want(locks: asynclock.LockManager) -> asyncio.Task[asynclock.Lease]:
    async def take() -> asynclock.Lease:
        return await locks.lock("hot").acquire()

    return asyncio.create_task(take())


def use_up(locks: asynclock.LockManager) -> None:
    """Pretend that this process has kept the name for a long time."""
    locks._engine.queues["asynclock:hot"].since -= FOR_EVER


@pytest.mark.parametrize("n", [1, 3])
async def test_those_it_has_met_come_first(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(pacing, "COURTESY", FOR_EVER)
    monkeypatch.setattr(acquire, "YIELD", 0.0)  # or the other might come first by its luck
    nodes = asynclock_nodes[:n]
    async with connect(nodes) as one, connect(nodes) as two:
        monkeypatch.setattr(one._engine, "random", lambda: 0.0)
        theirs = await two.lock("hot").acquire()
        first = want(one)
        await until(lambda: one.statistics().refused >= 2)  # refused, armed, refused
        await theirs.release()
        ours = await asyncio.wait_for(first, 10)
        second, again = want(one), want(two)
        await until(lambda: one.statistics().waiting == 1 and two.statistics().refused >= 2)
        use_up(one)
        await ours.release()
        done, _ = await asyncio.wait({second, again}, timeout=10, return_when="FIRST_COMPLETED")
        assert done == {again}
        second.cancel()
        await (await again).release()


async def test_where_it_has_met_nobody_it_goes_on(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "COURTESY", FOR_EVER)
    async with connect(asynclock_nodes) as locks:
        lease = await locks.lock("hot").acquire()
        following = want(locks)
        await until(lambda: locks.statistics().waiting == 1)
        use_up(locks)
        await lease.release()
        taken = await asyncio.wait_for(following, 10)
        assert taken.owner != lease.owner  # it was given back, not handed on
        await taken.release()
