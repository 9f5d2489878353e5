"""What is done about a node that has forgotten a value, and for how long a value may be kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.replies import Failure
from asynclock._primitives import register
from tests.engine.virtual_nodes import Nodes, start, virtual
from tests.primitives.test_rounds import EVENT, US, of, remembers, replies, stored
from tests.waiting import until


@virtual
async def test_a_node_with_a_slow_clock_may_keep_a_value_one_percent_longer(on: Nodes) -> None:
    """So a node that remembers less than that may have forgotten the value."""
    number = int((on.nodes[0].wall() - 1008) * US)
    fields = ("promised", number, "by", "x", "accepted", number, "value", "set")
    await on.nodes[0].command("HSET", EVENT, *fields)
    on.nodes[2].kill()
    event = on.locks.event("e", keep=1000)
    remembers(on, "b", 1005)
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten this name"):
        await event.is_set(timeout=3)
    remembers(on, "b", 1015)
    assert await event.is_set(timeout=3)


@virtual
async def test_a_forgotten_value_is_stored_again_after_an_outage(on: Nodes) -> None:
    """A max_ttl long, the nodes are asked to store it."""
    event = on.locks.event("e")
    await event.set()
    await asyncio.sleep(5)
    await on.nodes[2].command("DEL", EVENT)
    remembers(on, "c", 1)
    for way in on.ways[:2]:
        way.seconds = 0.01  # so the node that has forgotten answers first
    for node in on.nodes[:2]:
        node.freeze()
    storing = start(event._register._repair())
    await asyncio.sleep(5)
    assert not storing.done()
    for node in on.nodes:
        node.thaw()

    async def there() -> Any:
        return await stored(on, "value", 2) == "set"

    await until(there, timeout=9)
    await storing


@virtual
async def test_a_closed_manager_stores_nothing_again(on: Nodes) -> None:
    locks = on.connect()
    event = locks.event("e")
    await event.set()
    await locks.aclose()
    others = asyncio.all_tasks()
    event._register._tell_again()
    assert asyncio.all_tasks() == others


# ---- how a call about a state ends ---------------------------------------------------------------


@virtual
async def test_a_call_that_can_never_succeed_says_so_at_once(on: Nodes) -> None:
    patience, round_ = register._Patience(on.locks._engine, "e", None), await of(on)
    no_right, began = Failure("no right", permanent=True), _clock.now()
    replies(round_, a=no_right, b=no_right)
    with pytest.raises(asynclock.ConfigurationError, match=r"'e' can't be known here: .*no right"):
        await patience.pause(round_)
    assert _clock.now() == began


@virtual
async def test_a_timeout_that_ends_before_enough_nodes_may_vote_is_not_waited_for(
    on: Nodes,
) -> None:
    now = _clock.now()
    patience, round_ = register._Patience(on.locks._engine, "e", now + 5), await of(on)
    young = Failure("started a moment ago", votes_from=now + 9)
    replies(round_, a=young, b=young)
    with pytest.raises(asynclock.QuorumUnavailableError, match="started a moment ago") as caught:
        await patience.pause(round_)
    assert _clock.now() == now
    assert caught.value.retry_after == pytest.approx(9, abs=0.01)


@virtual
async def test_a_value_that_only_a_minority_has_is_stored_on_a_majority(on: Nodes) -> None:
    """By a change to this very value as well: until then it may be lost."""
    number = int(on.nodes[0].wall() * US)
    fields = ("promised", number, "by", "x", "accepted", number, "value", "set")
    await on.nodes[0].command("HSET", EVENT, *fields)
    on.nodes[2].kill()
    await on.locks.event("e").set(timeout=5)
    assert await stored(on, "value", 1) == "set"


@virtual
async def test_each_change_has_an_owner_of_its_own(on: Nodes) -> None:
    """Two clients may choose the same number: only one of them may be granted it."""
    event, owners = on.locks.event("e"), set()
    for change in (event.set, event.clear):
        await change()
        owners.add(await stored(on, "by"))
    assert len(owners) == 2
    assert all(len(owner) > 16 for owner in owners)


@virtual
async def test_nothing_is_watched_once_a_wait_has_ended(on: Nodes) -> None:
    watched = on.locks._engine.multiplexer.wakeups.watched
    assert await on.locks.event("e").wait(timeout=1) is False
    assert not watched
    observer = on.locks.election("e").observe()
    waiting = start(anext(observer))
    await asyncio.sleep(0.1)
    assert watched
    waiting.cancel()
    await asyncio.wait([waiting])
    await observer.aclose()
    assert not watched
