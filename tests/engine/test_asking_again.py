"""When a call asks again after a refusal, and for what. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine import acquire_loop
from asynclock._engine.acquire_loop import MAX_SLOT_HOPS, AcquireLoop
from asynclock._engine.attempt import Attempt
from asynclock._engine.spec import LockSpec
from asynclock._rules.settling import STEADY
from tests.engine.batches import listen
from tests.engine.test_queue import line_up
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Nodes, start, virtual
from tests.engine.votes import (
    HELD,
    OUT,
    QUEUED,
    SPLIT,
    UNQUEUED,
    WON,
    Vote,
    answered,
    ask,
    error_of,
)


@virtual
async def test_only_the_first_attempt_of_a_turn_goes_ahead_of_waiters(on: Nodes) -> None:
    with answered(OUT, WON) as asked:
        first = await ask(on, barge=True)
    assert first.won
    assert asked[0].waits[-1] == 1
    assert asked[1].waits == QUEUED.waits
    with answered(WON) as asked:
        await ask(on)
    assert asked[0].waits == QUEUED.waits


@virtual
async def test_without_a_queue_a_call_looks_again_once_pushes_are_armed(on: Nodes) -> None:
    """A release may have come before that; after it each attempt arms the next push."""
    with answered(HELD, HELD, WON) as asked:
        began = _clock.now()
        call = asyncio.ensure_future(ask(on, spec=UNQUEUED))
        await asyncio.sleep(0.5)
        assert [one.at - began for one in asked] == [0.0, 0.0]
        on.locks._engine.multiplexer.wakeups.wake(UNQUEUED.watched[0])
        assert (await call).won
    assert [one.armed for one in asked] == [False, True, True]


@virtual
async def test_in_a_queue_an_attempt_arms_no_push_because_the_ticket_has_one(on: Nodes) -> None:
    """An armed attempt costs each node a command, and every release would wake every waiter."""
    wakeups = on.locks._engine.multiplexer.wakeups
    with answered(HELD, HELD, WON) as asked:
        call = asyncio.ensure_future(ask(on))
        for attempts in (1, 2):
            await asyncio.sleep(0.5)
            assert len(asked) == attempts
            wakeups.wake(None)  # all that anybody waits for
        assert (await call).won
    assert [one.armed for one in asked] == [False, False, False]


@virtual
async def test_an_earlier_push_wakes_no_later_wait(on: Nodes) -> None:
    wakeups = on.locks._engine.multiplexer.wakeups
    with answered(HELD) as asked:
        call = asyncio.ensure_future(ask(on, spec=UNQUEUED, timeout=30.0))
        await asyncio.sleep(0.1)
        wakeups.wake(UNQUEUED.watched[0])
        await asyncio.sleep(1.0)
        assert len(asked) == 3
        call.cancel()
        await asyncio.wait((call,))
    assert wakeups.watched == {}, "nobody watches for a call that is over"


@pytest.mark.parametrize("spec", [QUEUED, UNQUEUED], ids=["queue", "no queue"])
def test_nothing_begins_after_the_timeout_while_others_hold(spec: LockSpec) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        for took, ends in ((0.0, 0.5), (0.7, 0.7)):
            began = _clock.now()
            with answered(replace(HELD, took=took)) as asked:
                found, ended = await error_of(ask(on, spec=spec, timeout=0.5))
            assert found is asynclock.AcquireTimeoutError
            assert ended == pytest.approx(ends)
            assert all(one.at < began + 0.5 for one in asked)

    test()


@virtual
async def test_nodes_with_different_numbers_are_told_at_once_which_one_counts(on: Nodes) -> None:
    differ, alike = (replace(HELD, numbers=numbers) for numbers in ((5, 8, 5), (8, 8, 8)))
    with answered(differ, alike) as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(on.locks._engine.multiplexer, "broadcast", lambda *_, arm: None)
        call = asyncio.ensure_future(ask(on))
        await asyncio.sleep(0.2)
        assert len(asked) == 2
        assert asked[0].at == asked[1].at
        call.cancel()
        await asyncio.wait((call,))


@virtual
async def test_a_try_that_asks_again_and_meets_a_holder_is_refused_at_once(on: Nodes) -> None:
    with answered(SPLIT, HELD):
        began = _clock.now()
        call = asyncio.ensure_future(error_of(ask(on, once=True)))
        await asyncio.sleep(0.1)
        on.locks._engine.multiplexer.wakeups.wake(None)
        assert (await call)[0] is asynclock.NotAcquiredError
        assert _clock.now() - began == pytest.approx(0.1)


@virtual
async def test_a_try_gives_up_once_an_owner_has_had_a_node_for_too_long_for_an_attempt(
    on: Nodes,
) -> None:
    """The nodes may name different readers, each of which has a quorum; or a node is down."""
    for vote in (SPLIT, Vote(("x", "y", "z")), Vote((7, "x", OUT.answers[0]))):
        with answered(vote):
            found, took = await error_of(ask(on, once=True))
        assert found is asynclock.NotAcquiredError
        assert STEADY * NODE_TIMEOUT <= took <= (STEADY + 0.3) * NODE_TIMEOUT


@virtual
async def test_where_no_push_comes_none_is_asked_for(on: Nodes) -> None:
    multiplexer, told = on.locks._engine.multiplexer, []
    with answered(HELD), pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiplexer, "broadcast", lambda *_, **settings: told.append(settings))
        for tracks, looks in ((False, []), (True, [{"arm": True}])):
            patch.setattr(multiplexer, "tracks", lambda tracks=tracks: tracks)
            told.clear()
            call = asyncio.ensure_future(ask(on))
            await asyncio.sleep(0.01)
            assert told == looks
            call.cancel()
            await asyncio.wait((call,))


@virtual
async def test_a_task_waits_for_others_but_not_for_itself(on: Nodes) -> None:
    """The local queue doesn't know of several names, nor of readers and writers."""
    several, rwlock = on.locks.multi_lock("a", "b"), on.locks.rwlock("a")
    async with on.locks.lock("a"):
        with pytest.raises(asynclock.AlreadyHeldError):
            await several.acquire(timeout=5.0)
        with pytest.raises(asynclock.AcquireTimeoutError):
            await start(several.acquire(timeout=0.1))
    async with rwlock.read():
        with pytest.raises(asynclock.AlreadyHeldError):
            await rwlock.write().acquire(timeout=5.0)
        with pytest.raises(asynclock.AcquireTimeoutError):
            await start(rwlock.write().acquire(timeout=0.1))


@virtual
async def test_a_waiter_that_gives_up_leaves_the_place_that_it_has_had_from_the_start(
    on: Nodes,
) -> None:
    """And until then it pauses as its rank says."""
    left: list[tuple[Any, ...]] = []
    ranks: list[int] = []

    async def wait(_pauses: Any, _attempt: Attempt, _watch: Any, rank: int) -> None:
        ranks.append(rank)
        await asyncio.sleep(0.1)

    began = _clock.now()
    with answered(replace(HELD, numbers=(5, 5, 5), rank=2)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(acquire_loop.Pauses, "wait", wait)
        patch.setattr(acquire_loop, "leave", lambda *told: left.append(told[2:]))
        await error_of(ask(on, timeout=0.25))
    assert ranks == [2, 2, 2]
    ((ticket, since, _),) = left
    assert ticket.partition(":")[0]
    assert since == began


@virtual
async def test_a_call_is_known_while_it_asks(on: Nodes) -> None:
    engine = on.locks._engine
    with answered(HELD):
        call = asyncio.ensure_future(ask(on, timeout=1.0))
        await asyncio.sleep(0.1)
        assert [(one.name, one.refused) for one in engine.loops] == [("a", True)]
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], TimeoutError)
    assert not engine.loops
    assert engine.multiplexer.wakeups.watched == {}


@virtual
async def test_free_slots_are_tried_at_once_and_then_with_pauses(on: Nodes) -> None:
    """Rivals compete for them: after a round of all slots a random pause lets them through."""
    engine = on.locks._engine
    engine.random = lambda: 0.5
    slots = [replace(UNQUEUED, part=str(number)) for number in range(3)]
    spares = []

    def choose(votes: Sequence[bytes], spare: int, _random: float) -> LockSpec:
        assert votes == (b"01",) * 3
        spares.append(spare)
        return slots[len(spares) % 3]

    for one in slots:
        one.choose_slot = choose
    width = engine.spread.width
    with answered(replace(HELD, slots=(b"01",))) as asked:
        began = _clock.now()
        found, took = await error_of(ask(on, spec=slots[0], timeout=0.5))
    assert found is asynclock.AcquireTimeoutError
    assert 0.5 <= took < 0.6
    at_once = [one for one in asked if one.at == began]
    assert len(at_once) == MAX_SLOT_HOPS + 1
    assert 3 <= MAX_SLOT_HOPS <= 10
    assert all(one.at < began + 0.5 for one in asked), "nothing begins after the timeout"
    assert 3 <= len(asked) - len(at_once) < 50
    assert [one.spec for one in asked[:4]] == [slots[0], slots[1], slots[2], slots[0]]
    assert set(spares) == {1}, "one refusal of three leaves a quorum"
    assert engine.spread.width > width


@virtual
async def test_a_slot_that_is_named_after_the_timeout_is_not_tried(on: Nodes) -> None:
    """The call was refused, and is counted so."""
    counts = on.locks._engine.counts
    before = counts.attempts
    slots = [replace(UNQUEUED, part=str(number)) for number in range(2)]
    slots[0].choose_slot = lambda *_: slots[1]
    with answered(replace(HELD, slots=(b"01",), took=1.2)) as asked:
        found, _ = await error_of(ask(on, spec=slots[0], timeout=0.6))
    assert found is asynclock.AcquireTimeoutError
    assert (len(asked), counts.attempts - before, counts.refused) == (1, 1, 1)


@virtual
async def test_refusals_and_split_votes_are_counted(on: Nodes) -> None:
    counts = on.locks._engine.counts
    before = counts.attempts
    with answered(HELD, SPLIT, HELD, WON) as asked:
        await ask(on, spec=UNQUEUED)
    assert counts.attempts - before == len(asked) == 4
    assert (counts.refused, counts.split_votes) == (3, 1)
    with answered(SPLIT, WON):
        await ask(on)
    assert counts.split_votes == 2


@virtual
async def test_a_manager_that_is_closed_meanwhile_is_the_reason(on: Nodes) -> None:
    """Whatever the nodes answered last."""
    for vote in (HELD, OUT):
        async with on.connect() as on.locks:
            with answered(replace(vote, took=0.2)):
                call = asyncio.ensure_future(ask(on, timeout=0.1))
                await asyncio.sleep(0.1)
                await on.locks.aclose()
                with pytest.raises(asynclock.ConfigurationError, match="while this call waited"):
                    await call


@virtual
async def test_a_manager_that_can_ask_no_more_is_the_reason(on: Nodes) -> None:
    """For example, because the nodes' record says by now that it has other nodes."""

    def refuse() -> None:
        raise asynclock.ConfigurationError("other nodes")

    with answered(HELD) as asked:
        call = asyncio.ensure_future(ask(on))
        await asyncio.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(on.locks._engine, "ready", refuse)
            on.locks._engine.multiplexer.wakeups.wake(None)
            with pytest.raises(asynclock.ConfigurationError, match="other nodes"):
                await call
    assert len(asked) == 2


@virtual
async def test_a_call_that_wins_leaves_no_outage_and_no_place_behind(on: Nodes) -> None:
    engine = on.locks._engine
    loop = AcquireLoop(engine, QUEUED, TTL, None, once=False, asked=_clock.now(), barge=False)
    with answered(OUT, WON):
        await loop.run()
    assert loop.unanswered is None, "its successors in the local queue would tell of it"
    seen = listen(on.nodes[0])
    async with on.connect() as other:
        held = await on.locks.lock("a").acquire()
        waiting = await line_up(other.lock("a"), other)
        await held.release()
        await (await waiting).release()
    assert "leave" not in seen
