"""How long a task waits that looks at keys, and what ends the wait."""

from types import SimpleNamespace
from typing import Any

import pytest

from asynclock._engine.inspection import Lookout
from asynclock._nodes.wakeup import Wakeups
from asynclock._rules import pacing
from tests.tables.inside import now
from tests.waiting import in_virtual_time


def manager(*, tracks: bool = True) -> Any:
    return SimpleNamespace(
        multiplexer=SimpleNamespace(tracks=lambda: tracks, wakeups=Wakeups(1, 1)),
        random=lambda: 0.5,
    )


async def took(wait: Any) -> float:
    began = now()
    await wait
    return now() - began


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
