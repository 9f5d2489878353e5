"""How often an election looks at the nodes, and what it watches meanwhile."""

import asyncio
import json
from typing import Any

import pytest

from asynclock._primitives.shared.election import Election
from tests.engine.virtual_nodes import Nodes, start, virtual
from tests.primitives.test_election import LOCK, VALUE, observed
from tests.tables.inside import now
from tests.waiting import call_off


@virtual
async def test_an_observer_looks_seldom_while_nothing_changes(on: Nodes) -> None:
    """Though one of the nodes knows of no leader, or of a leader without a value."""
    looks: list[float] = []
    look = Election._look

    async def note(self: Election, *, armed: bool = False) -> Any:
        looks.append(now())
        return await look(self, armed=armed)

    await on.command("SET", LOCK, "me", "PX", 60_000, only="ab")
    await on.command("SET", VALUE, json.dumps([7, 0, "me", "mine"]), "PX", 60_000, only="ab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Election, "_look", note)
        async with observed(on.locks) as seen:
            await asyncio.sleep(50)
            assert len(seen) == 1
            assert len(looks) <= 3, "nothing changes before the lease ends"


@virtual
async def test_nothing_is_watched_once_a_wait_has_ended(on: Nodes) -> None:
    watched = on.locks._engine.multiplexer.wakeups.watched
    assert await on.locks.event("e").wait(timeout=1) is False
    assert not watched
    observer = on.locks.election("e").observe()
    waiting = start(anext(observer))
    await asyncio.sleep(0.1)
    assert watched
    await call_off(waiting)
    await observer.aclose()
    assert not watched
