"""An idle link is asked for the node's clock as often as docs/threats.md says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes import heartbeat
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.nodes.by_hand import OLD, by_hand
from tests.nodes.test_late_acquires import Detour
from tests.waiting import in_virtual_time, until

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
            await asyncio.sleep(0.1)  # for what it asks at first
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


class Watched:
    """A node and a link whose state the test sets, and what is done about it."""

    def __init__(self, *, node_timeout: float = 0.5, tracking: bool = True) -> None:
        self.settings = SimpleNamespace(node_timeout=node_timeout, max_ttl=MAX_TTL)
        self.trust = SimpleNamespace(last_reply=_clock.now())
        self.tracking, self.stalled_since = tracking, 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked: list[float] = []
        self.polled: list[float] = []
        self.ended = 0.0
        self._began = _clock.now()

    def random(self) -> float:
        return 1.0

    def check_clock(self) -> None:
        self.asked.append(_clock.now() - self._began)

    def poll(self) -> None:
        self.polled.append(_clock.now() - self._began)

    def close(self, _cause: str) -> None:
        self.ended = _clock.now() - self._began
        self.closed.set_result(None)

    async def play(self, seconds: float) -> None:
        """Let it be watched for some time."""
        one: Any = self
        watching = asyncio.create_task(heartbeat.watch(one, one, self.poll))
        await asyncio.sleep(seconds)
        watching.cancel()


@pytest.mark.parametrize(("node_timeout", "patience"), [(0.5, 2.0), (0.05, 1.0)])
@in_virtual_time
async def test_a_link_that_stalls_after_a_look_at_it_is_closed_nearly_as_soon(
    node_timeout: float, patience: float
) -> None:
    """And however short the node timeout is, not because of a moment's silence."""
    one = Watched(node_timeout=node_timeout)
    asyncio.get_running_loop().call_later(0.01, setattr, one, "stalled_since", _clock.now() + 0.01)
    await one.play(10)
    assert patience <= one.ended - 0.01 <= 1.3 * patience


@pytest.mark.parametrize("tracking", [False, True])
@in_virtual_time
async def test_what_no_push_tells_is_asked_for_at_intervals(*, tracking: bool) -> None:
    one = Watched(tracking=tracking)
    await one.play(MAX_TTL + 1)
    third = MAX_TTL / 3
    times = [] if tracking else [third, 2 * third, 3 * third]
    assert one.polled == pytest.approx(times, abs=0.5)


@in_virtual_time
async def test_a_node_that_does_not_answer_yet_is_not_asked_for_its_time_all_the_time() -> None:
    one = Watched()
    await one.play(MAX_TTL + 1)
    assert len(one.asked) == 3


@in_virtual_time
async def test_a_replica_is_asked_for_its_role_ever_more_rarely_up_to_a_limit() -> None:
    pauses = []
    for times in (1, 2, 3, 5000):
        one: Any = Watched()
        await heartbeat.leave_replica(one, one, times)
        pauses.append(one.ended)
    first, longest = heartbeat.FIRST_REPLICA_RECHECK, heartbeat.LONGEST_REPLICA_RECHECK
    assert pauses == pytest.approx([first, 2 * first, 4 * first, longest], abs=0.001)


@pytest.mark.parametrize(("chance", "part"), [(0.0, 0.5), (1.0, 1.0)])
@in_virtual_time
async def test_a_replica_is_met_again_ever_more_rarely_until_it_is_a_primary(
    chance: float, part: float
) -> None:
    """Clients that met it together do not all come back together."""
    replica = replace(OLD, role="slave")
    async with by_hand() as hand:
        hand.node.random = lambda: chance
        moments: list[float] = []
        hand.before_handshake_ends = lambda: moments.append(_clock.now())
        for _ in range(8):
            hand.results.put_nowait(replica)
        await until(lambda: len(moments) == 8, timeout=60)
        pauses = [after - one for one, after in pairwise(moments)]
        longest = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        assert pauses == pytest.approx([part * one for one in longest], abs=0.001)
        hand.results.put_nowait(OLD)
        await until(lambda: hand.node.state(_clock.now()) == "up")
        assert hand.node.link is not None
        hand.node.link.close("demoted")
        hand.results.put_nowait(replica)
        hand.results.put_nowait(OLD)
        await until(lambda: len(moments) == 11)
        assert moments[-1] - moments[-2] == pytest.approx(0.1 * part, abs=0.001), "it begins anew"
