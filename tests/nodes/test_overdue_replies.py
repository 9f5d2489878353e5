"""When a link gives a reply up, and since when its server counts as silent. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asynclock import _clock
from tests.nodes.test_one_link import PING, TIMEOUT, Sink, opened
from tests.waiting import in_virtual_time


@in_virtual_time
async def test_a_loop_that_is_always_late_gives_a_silent_node_a_few_timeouts_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, owner, _ = opened()
    loop = asyncio.get_running_loop()
    in_time = loop.call_later

    def late(seconds: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        return in_time(seconds + TIMEOUT / 2, *args, **kwargs)

    began, sink = _clock.now(), Sink(owner)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", late)
        link.send(PING, sink, 0)
        while not sink.answers and _clock.now() < began + 20 * TIMEOUT:
            await asyncio.sleep(0)
            await wait_for_timers(in_time)
    assert 7 * TIMEOUT < _clock.now() - began < 10 * TIMEOUT


async def wait_for_timers(call_later: Callable[..., Any]) -> None:
    """Let a moment pass."""
    passed = asyncio.get_running_loop().create_future()
    call_later(TIMEOUT / 10, passed.set_result, None)
    await passed


@in_virtual_time
async def test_a_silence_begins_with_the_oldest_reply_that_is_overdue() -> None:
    """It is what a node's link is closed by."""
    link, owner, _ = opened()
    began = _clock.now()
    for _ in range(3):
        link.send(PING, Sink(owner), 0)
        await asyncio.sleep(TIMEOUT / 2)
    await asyncio.sleep(2 * TIMEOUT)
    assert link.stalled_since == pytest.approx(began + TIMEOUT, abs=0.01)
