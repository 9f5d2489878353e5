"""Tasks that wait for what their own process changes: servers send no push for such a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._rules import pacing
from tests.engine.virtual_nodes import Nodes, start, virtual, virtual_single

WAY = 0.02
"""Seconds to a node."""
SOON = 10 * WAY
"""Seconds in which a wake-up must come; one that is lost takes BLIND."""
assert pacing.BLIND / 2 > SOON

CHANGES: dict[str, tuple[Callable[[asynclock.LockManager], Any], str]] = {
    "event": (lambda locks: locks.event("a"), "set"),
    "latch": (lambda locks: locks.latch("a", 2), "count_down"),
}


async def changed_by_another(on: Nodes, kind: str, cancelled_after: float) -> float:
    """Return how late a waiter learns of it, after a change of its own process was cancelled."""
    make, change = CHANGES[kind]
    others = on.connect()
    await others.ready()
    on.slow(WAY)
    await (others.event("a").clear() if kind == "event" else getattr(make(others), change)())
    waiting = start(make(on.locks).wait())
    await asyncio.sleep(1)
    mine = start(getattr(make(on.locks), change)())
    await asyncio.sleep(cancelled_after)
    mine.cancel()
    await asyncio.wait([mine])
    await asyncio.sleep(0.1)
    await getattr(make(others), change)()
    since = _clock.now()
    await waiting
    await others.aclose()
    return _clock.now() - since


@pytest.mark.parametrize("cancelled_after", [0.5 * WAY, 1.5 * WAY, 2.5 * WAY])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_was_cancelled_loses_no_wake_up(kind: str, cancelled_after: float) -> None:
    async def scenario(on: Nodes) -> None:
        assert await changed_by_another(on, kind, cancelled_after) < SOON

    virtual(scenario)()
    virtual_single(scenario)()


async def seen(locks: asynclock.LockManager, value: str) -> None:
    async for leader in locks.election("a").observe():
        if leader.value == value:
            return


@pytest.mark.parametrize("cancelled_after", [0.0, 0.5 * WAY, 1.5 * WAY])
def test_a_publication_that_was_cancelled_is_seen(cancelled_after: float) -> None:
    async def scenario(on: Nodes) -> None:
        on.slow(WAY)
        others = on.connect()
        await others.ready()
        term = await on.locks.election("a").campaign("one")
        watching = [start(seen(locks, "two")) for locks in (on.locks, others)]
        await asyncio.sleep(1)
        publishing = start(term.publish("two"))
        await asyncio.sleep(cancelled_after)
        publishing.cancel()
        await asyncio.wait([publishing])
        async with asyncio.timeout(SOON):
            await asyncio.gather(*watching)
        await others.aclose()

    virtual(scenario)()
    virtual_single(scenario)()
