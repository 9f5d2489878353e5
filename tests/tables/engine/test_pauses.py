"""How long a call waits between two attempts, and what ends the wait."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from asynclock._engine.inspection import Lookout
from asynclock._engine.seek import Pauses
from asynclock._nodes.wakeup import Wakeups
from asynclock._rules import pacing
from tests.tables.inside import now
from tests.waiting import in_virtual_time

NEVER = float("inf")
WIDTH = 0.08


class Watched:
    """A watch that is woken if `called`, and otherwise waits for as long as it is told to."""

    def __init__(self, *, called: bool = True) -> None:
        self.called = called
        self.asked: list[float] = []

    async def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        await asyncio.sleep(0)
        return self.called


def manager(
    *, tracks: bool = True, nodes: int = 1, random: float = 0.5, ticket_ttl: float = NEVER
) -> Any:
    return SimpleNamespace(
        multiplexer=SimpleNamespace(
            tracks=lambda: tracks, nodes=[None] * nodes, wakeups=Wakeups(1, 1)
        ),
        counts=SimpleNamespace(wakeups=Counter()),
        settings=SimpleNamespace(ticket_ttl=ticket_ttl),
        spread=SimpleNamespace(width=WIDTH),
        random=lambda: random,
    )


def attempt(remaining: float | None = 1.0, *, outage: bool = False) -> Any:
    return SimpleNamespace(outage=outage, remaining=remaining)


def pausing(
    engine: Any, *, queue: bool = True, deadline: float | None = None, until: float = NEVER
) -> Pauses:
    spec: Any = SimpleNamespace(queue=queue)
    return Pauses(engine, spec, deadline, until)


async def took(wait: Any) -> float:
    began = now()
    await wait
    return now() - began


async def test_a_server_whose_pushes_come_in_vain_is_asked_for_them_again_later() -> None:
    engine, refused = manager(), attempt()
    pauses, watch = pausing(engine), Watched()
    for _ in range(pacing.IN_VAIN):
        assert pauses.expecting
        await pauses.wait(refused, watch, 0)  # type: ignore[arg-type]
    assert not pauses.expecting
    await pauses.wait(refused, watch, 0)  # type: ignore[arg-type]
    assert watch.asked[-1] < 0.5 < watch.asked[0], "it asks again soon, and counts on no push"
    watch.called = False
    for _ in range(2):
        await pauses.wait(refused, watch, 0)  # type: ignore[arg-type]
    assert pauses.expecting
    assert engine.counts.wakeups == {"push": pacing.IN_VAIN + 1, "pacing": 2}


@pytest.mark.parametrize(
    ("tracks", "outage", "queue", "listens"),
    [
        (True, False, True, True),
        (False, False, True, False),
        (True, True, True, False),
        (True, False, False, True),
    ],
)
async def test_a_push_is_waited_for_where_one_can_come(
    *, tracks: bool, outage: bool, queue: bool, listens: bool
) -> None:
    engine, watch = manager(tracks=tracks), Watched(called=False)
    lost = attempt(0.01, outage=outage)
    await pausing(engine, queue=queue).wait(lost, watch, 0)  # type: ignore[arg-type]
    assert (len(watch.asked) > 0) is listens
    assert engine.counts.wakeups == {"expiry" if listens else "pacing": 1}


@in_virtual_time
async def test_without_pushes_each_pause_is_longer_and_longer_for_those_behind() -> None:
    """An outage says nothing of the holder: the few refusals that came may be old."""
    lost = [attempt(None)] * 4 + [attempt(0.001, outage=True)]
    for rank in (0, 2):
        pauses = pausing(manager(tracks=False))
        waits = [await took(pauses.wait(one, None, rank)) for one in lost]
        wanted = [pacing.without_push(number, None, 0.5, rank=rank) for number in range(5)]
        assert waits == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("nodes", "queue", "spread"), [(3, False, WIDTH / 2), (3, True, 0.0), (1, False, 0.0)]
)
@in_virtual_time
async def test_only_rivals_for_a_quorum_without_a_queue_pause_after_a_push(
    nodes: int, queue: bool, spread: float
) -> None:
    pauses = pausing(manager(nodes=nodes), queue=queue)
    pause = await took(pauses.wait(attempt(), Watched(), 0))  # type: ignore[arg-type]
    assert pause == pytest.approx(spread)


async def test_a_ticket_is_refreshed_well_before_it_dies() -> None:
    """Even if one refresh is lost; and the waiters of one holder do so at different times."""
    asked = []
    for random in (0.0, 0.999):
        watch = Watched(called=False)
        pauses = pausing(manager(random=random, ticket_ttl=2.0))
        await pauses.wait(attempt(60.0), watch, 0)  # type: ignore[arg-type]
        asked += watch.asked
    assert 0.5 <= asked[0] < asked[1] <= 0.9
    assert asked[1] - asked[0] > 0.1


async def test_no_pause_is_longer_than_the_time_that_is_left() -> None:
    for left, longest in ((0.3, 0.3), (-1.0, 0.0)):
        watch = Watched(called=False)
        end = now() + left
        for limits in ({"until": end}, {"deadline": end, "until": end + 5}):
            await pausing(manager(), **limits).wait(attempt(), watch, 0)  # type: ignore[arg-type]
        assert all(0 <= pause <= longest for pause in watch.asked)


@in_virtual_time
async def test_a_sleep_ends_at_the_deadline() -> None:
    for deadline, pause in ((None, 5.0), (now() + 7.0, 2.0), (now() - 1.0, 0.0)):
        assert await took(pausing(manager(), deadline=deadline).sleep(5.0)) == pytest.approx(pause)


# a task that looks at keys


@in_virtual_time
async def test_a_look_comes_with_the_push_or_when_the_keys_change_by_themselves() -> None:
    engine = manager()
    lookout = Lookout(engine, ("a",))
    assert lookout.begin()
    assert await took(lookout.wait(3.0)) == pytest.approx(pacing.until_expiry(3.0, 0.5))
    assert await took(lookout.wait()) == pytest.approx(pacing.until_expiry(None, 0.5))
    assert await took(lookout.wait(most=0.25)) == pytest.approx(0.25)
    engine.multiplexer.wakeups.wake("a", 0)
    assert await took(lookout.wait(3.0)) == 0
    assert lookout.begin()
    assert await took(lookout.wait(most=0.5)) == pytest.approx(0.5), "a push counts once"
    lookout.close()
    assert engine.multiplexer.wakeups.watched == {}


@in_virtual_time
async def test_without_pushes_looks_come_ever_more_rarely() -> None:
    lookout = Lookout(manager(tracks=False), ("a",))
    assert not lookout.begin()
    waits = [await took(lookout.wait()) for _ in range(6)]
    assert waits == pytest.approx([pacing.without_push(number, None, 0.5) for number in range(6)])
    assert await took(lookout.wait(0.001)) == pytest.approx(pacing.without_push(6, 0.001, 0.5))
    assert await took(lookout.wait(most=0.002)) == pytest.approx(0.002)


@pytest.mark.parametrize("tracks", [True, False])
@in_virtual_time
async def test_a_wait_that_ends_with_the_call_is_none_that_somebody_ended(*, tracks: bool) -> None:
    """The statistics say what makes waiters ask again."""
    engine = manager(tracks=tracks)
    watch = engine.multiplexer.wakeups.watch(("a",))
    pauses = pausing(engine, deadline=now() + 0.001)
    assert await took(pauses.wait(attempt(None), watch, 0)) == pytest.approx(0.001)
    assert engine.counts.wakeups == {}
