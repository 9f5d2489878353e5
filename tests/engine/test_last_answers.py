"""What a call makes of its last answer, of free slots, and of nodes that push nothing.

In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine import acquire_loop
from asynclock._engine.acquire_loop import AcquireLoop
from asynclock._engine.spec import LockSpec
from asynclock._engine.ticket import Ticket
from asynclock._nodes.replies import Failure
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Nodes, virtual
from tests.engine.votes import (
    HELD,
    NO_RIGHT,
    OUT,
    QUEUED,
    SHORT,
    SPLIT,
    UNQUEUED,
    WON,
    Vote,
    answered,
    ask,
    error_of,
)


async def whole_error(call: Any) -> Any:
    """Return the error that a call ends with."""
    with pytest.raises(asynclock.AsyncLockError) as caught:
        await call
    return caught.value


@virtual
async def test_a_timeout_tells_of_the_holder_and_its_time(on: Nodes) -> None:
    """Also if the last answers were cut short."""
    for votes in ((HELD,), (HELD, SHORT)):
        with answered(*votes):
            error = await whole_error(ask(on, timeout=0.9))
        assert str(error) == "'a' was not free in time; it is held by 'x'"
        assert (error.name, error.owner, error.remaining) == ("a", "x", 60.0)
        assert error.votes == {"granted": 0, "refused": 3, "unknown": 0}


@virtual
async def test_a_try_whose_second_answers_are_an_outage_is_told_so(on: Nodes) -> None:
    """Its first votes were split, so somebody had a part; now too few nodes answer."""
    with answered(SPLIT, OUT) as asked:
        call = asyncio.ensure_future(error_of(ask(on, once=True)))
        await asyncio.sleep(0.1)
        on.locks._engine.multiplexer.wakeups.wake(None)
        assert (await call)[0] is asynclock.QuorumUnavailableError
    assert len(asked) == 2


@virtual
async def test_a_try_asks_no_more_when_its_node_timeout_is_over(on: Nodes) -> None:
    """Although a guard discarded an answer, and the node may vote by now."""
    discarded = Failure("a guard took its vote", votes_from=_clock.now())
    with answered(Vote((discarded, discarded, 7), took=NODE_TIMEOUT)) as asked:
        found, took = await error_of(ask(on, once=True))
    assert (found, took, len(asked)) == (asynclock.QuorumUnavailableError, NODE_TIMEOUT, 1)


@virtual
async def test_a_try_keeps_the_place_that_it_took_after_a_split_vote(on: Nodes) -> None:
    """A new one each time would be behind all others each time."""
    made: list[Ticket] = []

    class Noted(Ticket):
        __slots__ = ()

        def __init__(self, *told: Any, **more: Any) -> None:
            super().__init__(*told, **more)
            made.append(self)

    with answered(SPLIT) as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(acquire_loop, "Ticket", Noted)
        await error_of(ask(on, once=True))
    assert len(asked) > 1
    assert len(made) == 1


@virtual
async def test_what_no_retry_can_mend_ends_a_call_at_once(on: Nodes) -> None:
    for settings in ({}, {"timeout": 5.0}, {"once": True}):
        with answered(Vote((NO_RIGHT, NO_RIGHT, 7))) as asked:
            found = await error_of(ask(on, **settings))  # type: ignore[arg-type]
        assert (found, len(asked)) == ((asynclock.ConfigurationError, 0.0), 1)


@virtual
async def test_after_an_outage_a_call_asks_for_the_slot_that_it_wanted_first(on: Nodes) -> None:
    """What it heard of the other slots is old by then."""
    slots = [replace(UNQUEUED, part=str(number)) for number in range(2)]

    def choose(_votes: Sequence[bytes], _spare: int, _random: float) -> LockSpec:
        return slots[1]

    for one in slots:
        one.choose_slot = choose
    with answered(replace(HELD, slots=(b"01",)), OUT, WON) as asked:
        assert (await ask(on, spec=slots[0])).won
    assert [one.spec for one in asked] == [slots[0], slots[1], slots[0]]


@virtual
async def test_where_no_push_comes_a_call_without_a_queue_waits_before_it_asks_again(
    on: Nodes,
) -> None:
    with answered(HELD) as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(on.locks._engine.multiplexer, "tracks", lambda: False)
        found, _ = await error_of(ask(on, spec=UNQUEUED, timeout=1.0))
    assert found is asynclock.AcquireTimeoutError
    moments = [one.at for one in asked]
    assert len(set(moments)) == len(moments) > 3
    assert not any(one.armed for one in asked)


@virtual
async def test_pushes_that_come_in_vain_are_no_more_asked_for(on: Nodes) -> None:
    """A queued call asks for one with each look; it stops while they tell nothing."""
    told: list[bool] = []
    wakeups = on.locks._engine.multiplexer.wakeups
    with answered(replace(HELD, numbers=(5, 5, 5))) as asked:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                on.locks._engine.multiplexer, "broadcast", lambda *_, arm: told.append(arm)
            )
            call = asyncio.ensure_future(ask(on, timeout=60.0))
            for _ in range(12):
                await asyncio.sleep(0.001)
                for key in [key for key in wakeups.watched if "#queue" in key]:
                    for node in range(len(on.nodes)):
                        wakeups.wake(key, node)
            await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait((call,))
    assert all(told)
    assert 3 <= len(told) < len(asked)


@virtual
async def test_an_attempt_is_cut_if_less_than_three_node_timeouts_are_left(on: Nodes) -> None:
    """It may connect, ask, and write the fence back: each takes a node timeout at most."""
    for timeout, limit in ((2.9, 2.9), (3.0, None), (3.1, None)):
        with answered(WON) as asked:
            await ask(on, timeout=timeout * NODE_TIMEOUT)
        assert asked[0].limit == (None if limit is None else pytest.approx(limit))


@virtual
async def test_a_place_is_given_up_once(on: Nodes) -> None:
    """When the manager is closed, and again when the call ends."""
    left: list[Any] = []
    engine = on.locks._engine
    loop = AcquireLoop(engine, QUEUED, TTL, None, once=False, asked=_clock.now(), barge=False)
    with answered(HELD), pytest.MonkeyPatch.context() as patch:
        patch.setattr(acquire_loop, "leave", lambda *told: left.append(told))
        call = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0.1)
        loop.leave()
        loop.leave()
        assert len(left) == 1
        call.cancel()
        await asyncio.wait((call,))
    assert len(left) == 1


@virtual
async def test_a_call_that_was_granted_gives_up_no_place(on: Nodes) -> None:
    """The nodes removed its ticket when they granted."""
    left: list[Any] = []
    with answered(HELD, WON), pytest.MonkeyPatch.context() as patch:
        patch.setattr(acquire_loop, "leave", lambda *told: left.append(told))
        call = asyncio.ensure_future(ask(on))
        await asyncio.sleep(0.1)
        on.locks._engine.multiplexer.wakeups.wake(None)
        assert (await call).won
    assert left == []


@virtual
async def test_a_cut_answer_is_no_refusal_while_time_is_left(on: Nodes) -> None:
    """A call with a timeout goes on, whoever had the name before."""
    with answered(HELD, replace(SHORT, took=0.0), WON) as asked:
        call = asyncio.ensure_future(ask(on, timeout=20.0))
        await asyncio.sleep(0.1)
        on.locks._engine.multiplexer.wakeups.wake(None)
        assert (await call).won
    assert len(asked) == 3
