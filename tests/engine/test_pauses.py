"""How long a call waits between two attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from asynclock._engine.pauses import Pauses
from asynclock._rules import pacing


class Watched:
    """A watch that is woken if `called`, and otherwise waits for as long as it is told to."""

    def __init__(self) -> None:
        self.called = True
        self.asked: list[float] = []

    async def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        await asyncio.sleep(0)
        return self.called


async def test_a_server_whose_pushes_come_in_vain_is_asked_for_them_again_later() -> None:
    nodes = SimpleNamespace(tracks=lambda: True, nodes=[None])
    engine: Any = SimpleNamespace(
        multiplexer=nodes, counts=SimpleNamespace(wakeups=Counter()), random=lambda: 0.5
    )
    spec: Any = SimpleNamespace(queue=True, ticket_ttl=0.0)
    refused: Any = SimpleNamespace(outage=False, split=False, remaining=1.0)
    pauses, watch = Pauses(engine, spec, None, float("inf")), Watched()
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
