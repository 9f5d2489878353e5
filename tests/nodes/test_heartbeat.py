"""An idle link is asked for the node's clock as often as docs/threats.md says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes import heartbeat
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.nodes.test_late_acquires import Detour

MAX_TTL = 30.0
"""A third of it is longer than any pause between two looks at a link."""


@pytest.mark.parametrize("busy", [0.1, 0.4, 0.9])
def test_no_reading_of_the_clock_is_older_than_a_third_of_max_ttl(busy: float) -> None:
    """Whenever the last reply came: the next look was due a whole pause after it."""
    node = MemoryNode("a", clock=lambda: _clock.wall())

    async def idle() -> float:
        async with asynclock.connect(MemoryEndpoint("a", node), max_ttl=MAX_TTL) as locks:
            await locks.ready()
            trust = locks._engine.multiplexer.nodes[0].trust
            await asyncio.sleep(busy)
            await locks.inspect("a")
            oldest = 0.0
            for _ in range(4000):
                await asyncio.sleep(0.01)
                oldest = max(oldest, _clock.now() - trust.last_reply)
            return oldest

    assert MAX_TTL / 3 - 0.02 < run_virtual(idle()) < MAX_TTL / 3 + 0.02


def test_a_link_is_looked_at_seldom() -> None:
    """To be asked in time costs few timers, and one request in each third of max_ttl."""
    node = MemoryNode("a", clock=lambda: _clock.wall())
    asked: list[bytes] = []

    async def idle() -> None:
        async with asynclock.connect(MemoryEndpoint("a", node), max_ttl=MAX_TTL) as locks:
            await locks.ready()
            answer = node.answer

            def note(client: object, words: tuple[bytes, ...]) -> object:
                asked.append(words[0])
                return answer(client, words)  # type: ignore[arg-type]

            node.answer = note  # type: ignore[method-assign,assignment]
            await asyncio.sleep(3 * MAX_TTL + 1)

    run_virtual(idle())
    assert asked == [b"TIME"] * 9


def test_a_stalled_link_is_closed_soon() -> None:
    async def stalled() -> float:
        closed = asyncio.get_running_loop().create_future()
        began = _clock.now()
        link: Any = SimpleNamespace(
            stalled_since=began, closed=closed, close=lambda _cause: closed.set_result(None)
        )
        settings = SimpleNamespace(node_timeout=0.5, max_ttl=600.0)
        trust = SimpleNamespace(last_reply=began)
        node: Any = SimpleNamespace(settings=settings, trust=trust, tracking=True)
        await heartbeat.watch(node, link, lambda: None)
        return _clock.now() - began

    assert 2.0 <= run_virtual(stalled()) <= 2.6


def test_the_round_trip_follows_what_the_network_does() -> None:
    """It is a mean of the last requests: neither that of the first one, nor only the newest."""
    node, detour = MemoryNode("a", clock=lambda: _clock.wall()), Detour()

    async def measured() -> list[float]:
        async with asynclock.connect(MemoryEndpoint("a", node, detour), node_timeout=2.0) as locks:

            async def after(times: int) -> float:
                for _ in range(times):
                    async with locks.lock("a"):
                        await asyncio.sleep(0.5)
                return locks.nodes()[0].round_trip or 0.0

            found = [await after(3)]
            detour.seconds = 0.1
            return [*found, await after(2), await after(60)]

    near, between, far = run_virtual(measured())
    assert near < 0.01
    assert near + 0.02 < between < far / 2
    assert 0.19 < far < 0.21
