"""What a call does with each outcome of an attempt: ask again, pause, or give up, and with which
error. The replies of the nodes are given; in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine import acquire_loop
from asynclock._engine.acquire_loop import MAX_SLOT_HOPS, WHOLE, AcquireLoop
from asynclock._engine.attempt import Attempt
from asynclock._engine.spec import LockSpec
from asynclock._engine.vote import CUT
from asynclock._nodes.replies import Failure
from asynclock._primitives import lock
from asynclock._rules.validity import longest_outage
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Nodes, virtual

DOWN = Failure("down")
NO_RIGHT = Failure("no right", permanent=True)
QUEUED = lock.spec("p:", "a")
UNQUEUED = replace(QUEUED, queue="", ticket_ttl=0.0)


@dataclass
class Vote:
    """One attempt: the answer of each node (a fence, a holder or a Failure), after `took`."""

    answers: Sequence[int | str | Failure]
    took: float = 0.0
    slots: tuple[bytes, ...] = ()


WON = Vote((7, 7, 7))
HELD = Vote(("x", "x", "x"))
OUT = Vote((DOWN, DOWN, "x"))
SHORT = Vote((CUT, CUT, CUT), took=0.3)


@dataclass
class Asked:
    """One attempt that was made."""

    at: float
    armed: bool
    limit: float | None
    waits: tuple[Any, ...]
    spec: LockSpec


@contextmanager
def answered(*votes: Vote) -> Iterator[list[Asked]]:
    """Let attempts end like this, the last one for ever."""
    asked: list[Asked] = []

    class Scripted(Attempt):
        async def decide(self, *, armed: bool, limit: float | None) -> bool:
            vote = votes[min(len(asked), len(votes) - 1)]
            asked.append(Asked(_clock.now(), armed, limit, self._waits, self.spec))
            await asyncio.sleep(vote.took)
            for index, answer in enumerate(vote.answers):
                if isinstance(answer, Failure):
                    self._failed(index, answer)
                elif isinstance(answer, int):
                    self.ballot.granted(index, answer)
                else:
                    self._refused(index, [0, 60_000, answer.encode(), 0, 0, 0, *vote.slots, 0])
            return self.conclude()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acquire_loop, "Attempt", Scripted)
        yield asked


def ask(
    on: Nodes,
    *,
    spec: LockSpec = QUEUED,
    timeout: float | None = None,
    once: bool = False,
    barge: bool = False,
) -> Coroutine[Any, Any, Attempt]:
    now = _clock.now()
    deadline = None if timeout is None else now + timeout
    loop = AcquireLoop(on.locks._engine, spec, TTL, deadline, once=once, asked=now, barge=barge)
    return loop.run()


async def error_of(call: Coroutine[Any, Any, Attempt]) -> tuple[type[Exception], float]:
    """The error that a call ends with, and the seconds that it took."""
    began = _clock.now()
    with pytest.raises(asynclock.AsyncLockError) as caught:
        await call
    return type(caught.value), _clock.now() - began


@virtual
async def test_a_call_that_was_refused_before_its_last_answers_were_cut_is_a_timeout(
    on: Nodes,
) -> None:
    with answered(HELD, SHORT):
        found, _ = await error_of(ask(on, timeout=0.9))
    assert found is asynclock.AcquireTimeoutError


@virtual
async def test_a_try_that_was_refused_before_its_last_answers_were_cut_is_refused(
    on: Nodes,
) -> None:
    """Its first votes were split, so it asked again."""
    with answered(Vote((7, "x", "y")), SHORT) as asked:
        found, _ = await error_of(ask(on, once=True))
    assert found is asynclock.NotAcquiredError
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("vote", "timeout", "found"),
    [
        (SHORT, 0.2, asynclock.AcquireTimeoutError),
        (Vote((CUT, DOWN, DOWN), took=0.3), 0.2, asynclock.AcquireTimeoutError),
        (replace(SHORT, took=0.95), 0.9, asynclock.QuorumUnavailableError),
        (Vote((DOWN, DOWN, DOWN), took=0.3), 0.2, asynclock.QuorumUnavailableError),
        (Vote((NO_RIGHT, NO_RIGHT, CUT), took=0.3), 5.0, asynclock.ConfigurationError),
    ],
)
def test_a_timeout_that_left_the_nodes_no_time_is_no_outage(
    vote: Vote, timeout: float, found: type[Exception]
) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        with answered(vote) as asked:
            assert (await error_of(ask(on, timeout=timeout)))[0] is found
        assert len(asked) == 1

    test()


@virtual
async def test_an_outage_that_lasts_until_the_timeout_is_told_as_one(on: Nodes) -> None:
    """Also if the last answers were cut short by it, or no time was left for another attempt."""
    for last in (OUT, SHORT):
        with answered(OUT, last):
            found, took = await error_of(ask(on, timeout=0.4))
        assert found is asynclock.QuorumUnavailableError
        assert 0.4 <= took < 1.0


@virtual
async def test_without_a_timeout_an_outage_is_told_after_as_long_as_a_restart_takes(
    on: Nodes,
) -> None:
    with answered(OUT):
        found, took = await error_of(ask(on))
    assert found is asynclock.QuorumUnavailableError
    assert longest_outage(TTL) <= took < longest_outage(TTL) + 1.0


@virtual
async def test_a_try_asks_again_only_if_a_guard_discarded_an_answer(on: Nodes) -> None:
    with answered(OUT) as asked:
        assert (await error_of(ask(on, once=True)))[0] is asynclock.QuorumUnavailableError
    assert len(asked) == 1
    discarded = Failure("a guard took its vote", votes_from=_clock.now())
    with answered(Vote((discarded, discarded, 7)), WON) as asked:
        assert (await ask(on, once=True)).won
    assert len(asked) == 2


@virtual
async def test_a_call_waits_for_no_vote_that_comes_too_late(on: Nodes) -> None:
    late = Failure("started 1 s ago", votes_from=_clock.now() + 9.0)
    with answered(Vote((late, late, 7))):
        assert await error_of(ask(on, timeout=8.0)) == (asynclock.QuorumUnavailableError, 0.0)
    with answered(Vote((late, late, 7)), WON):
        assert (await ask(on, timeout=10.0)).won


@virtual
async def test_an_attempt_is_cut_only_near_the_end_of_the_time(on: Nodes) -> None:
    """A node timeout ends it otherwise, and nodes always have the time for one answer."""
    cases = [
        ({"timeout": WHOLE * NODE_TIMEOUT + 1.0}, None),
        ({"timeout": WHOLE * NODE_TIMEOUT - 0.5}, WHOLE * NODE_TIMEOUT - 0.5),
        ({"timeout": 0.1}, NODE_TIMEOUT),
        ({"timeout": 0.0}, NODE_TIMEOUT),
        ({"once": True}, None),
        ({}, None),
    ]
    for settings, limit in cases:
        with answered(WON) as asked:
            await ask(on, **settings)  # type: ignore[arg-type]
        assert asked[0].limit == (None if limit is None else pytest.approx(limit))


@virtual
async def test_a_try_that_asks_twice_has_one_node_timeout(on: Nodes) -> None:
    with answered(Vote((7, "x", "y"), took=0.4), WON) as asked:
        call = asyncio.ensure_future(ask(on, once=True))
        await asyncio.sleep(0.5)
        on.locks._engine.multiplexer.wakeups.wake(None)
        assert (await call).won
    assert asked[1].limit == pytest.approx(NODE_TIMEOUT - 0.5)
    with answered(Vote((7, "x", "y"), took=NODE_TIMEOUT + 0.1)) as asked:
        found, _ = await error_of(ask(on, once=True))
    assert (found, len(asked)) == (asynclock.NotAcquiredError, 1)


@pytest.mark.parametrize(
    "vote", [HELD, Vote((7, "x", "x"))], ids=["nothing granted", "one node granted"]
)
def test_a_try_against_a_holder_asks_once_and_leaves_nothing(vote: Vote) -> None:
    @virtual
    async def test(on: Nodes) -> None:
        with answered(vote) as asked:
            assert await error_of(ask(on, once=True)) == (asynclock.NotAcquiredError, 0.0)
        assert [one.waits for one in asked] == [()]

    test()


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
    assert 3 <= len(asked) - len(at_once) < 50
    assert [one.spec for one in asked[:4]] == [slots[0], slots[1], slots[2], slots[0]]
    assert set(spares) == {1}, "one refusal of three leaves a quorum"
    assert engine.spread.width > width


@virtual
async def test_refusals_and_split_votes_are_counted(on: Nodes) -> None:
    counts = on.locks._engine.counts
    before = counts.attempts
    with answered(HELD, Vote((7, "x", "y")), HELD, WON) as asked:
        await ask(on, spec=UNQUEUED)
    assert counts.attempts - before == len(asked) == 4
    assert (counts.refused, counts.split_votes) == (3, 1)


@virtual
async def test_a_manager_that_is_closed_meanwhile_is_the_reason(on: Nodes) -> None:
    """Whatever the nodes answered last."""
    for vote in (HELD, OUT):
        async with on.connect() as on.locks:
            with answered(replace(vote, took=0.2)):
                call = asyncio.ensure_future(error_of(ask(on, timeout=0.1)))
                await asyncio.sleep(0.1)
                await on.locks.aclose()
                assert (await call)[0] is asynclock.ConfigurationError
