"""How long a call asks, and the error with which it gives up. In virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine.acquire_loop import WHOLE, AcquireLoop
from asynclock._engine.vote import CUT
from asynclock._nodes.replies import Failure
from asynclock._rules.settling import SETTLING
from asynclock._rules.validity import longest_outage
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Nodes, virtual
from tests.engine.votes import (
    DOWN,
    HELD,
    NO_RIGHT,
    OUT,
    QUEUED,
    SHORT,
    SPLIT,
    WON,
    Vote,
    answered,
    ask,
    error_of,
)


@virtual
async def test_a_call_that_was_refused_before_its_last_answers_were_cut_is_a_timeout(
    on: Nodes,
) -> None:
    for last in (SHORT, Vote((DOWN, DOWN, DOWN), took=0.3)):
        with answered(HELD, last):
            found, _ = await error_of(ask(on, timeout=0.9))
        assert found is asynclock.AcquireTimeoutError


@virtual
async def test_a_try_that_was_refused_before_its_last_answers_were_cut_is_refused(
    on: Nodes,
) -> None:
    """Its first votes were split, so it asked again."""
    with answered(SPLIT, SHORT) as asked:
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
        began = _clock.now()
        with answered(OUT, last) as asked:
            found, took = await error_of(ask(on, timeout=0.4))
        assert found is asynclock.QuorumUnavailableError
        assert 0.399 < took < 0.75
        assert all(one.at < began + 0.4 for one in asked), "nothing begins after the timeout"


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
async def test_a_turn_that_comes_when_the_time_is_over_asks_nobody(on: Nodes) -> None:
    began, engine = _clock.now(), on.locks._engine
    loop = AcquireLoop(engine, QUEUED, TTL, began + 0.5, once=False, asked=began, barge=False)
    await asyncio.sleep(NODE_TIMEOUT)
    with answered(WON) as asked:
        assert (await error_of(loop.run()))[0] is asynclock.AcquireTimeoutError
    assert not asked
    before = AcquireLoop(engine, QUEUED, TTL, None, once=True, asked=_clock.now(), barge=False)
    with answered(OUT):
        assert (await error_of(before.run()))[0] is asynclock.QuorumUnavailableError
    assert before.unanswered is not None, "of the task that asked before, the next one learns why"
    loop = AcquireLoop(engine, QUEUED, TTL, began + 0.5, once=False, asked=began, barge=False)
    loop.unanswered = before.unanswered
    with answered(WON) as asked:
        assert (await error_of(loop.run()))[0] is asynclock.QuorumUnavailableError
    assert not asked


@virtual
async def test_a_split_vote_is_settled_within_a_few_node_timeouts(on: Nodes) -> None:
    """Asked again at once, and then with pauses that are no longer than an answer may take."""
    patience = SETTLING * NODE_TIMEOUT
    for settings in ({"once": True}, {"timeout": 0.0}, {"timeout": 0.3}):
        began = _clock.now()
        with answered(replace(SPLIT, took=1.5), WON) as asked:
            assert (await ask(on, **settings)).won  # type: ignore[arg-type]
        assert [one.at - began for one in asked] == [0.0, 1.5]
        assert asked[1].limit == pytest.approx(patience - 1.5)
        with answered(replace(SPLIT, took=patience + 0.1)) as asked:
            found, _ = await error_of(ask(on, **settings))  # type: ignore[arg-type]
        assert issubclass(found, asynclock.NotAcquiredError)
        assert len(asked) == 1
        changing = [Vote((7, f"x{n}", f"y{n}"), took=0.01) for n in range(900)]
        with answered(*changing) as asked:
            found, took = await error_of(ask(on, **settings))  # type: ignore[arg-type]
        assert issubclass(found, asynclock.NotAcquiredError)
        assert took == pytest.approx(patience, abs=0.02)  # two answers
        pauses = [b.at - a.at for a, b in pairwise(asked[1:])]
        assert max(pauses) <= NODE_TIMEOUT / 4 + 0.01
        assert len(asked) < 40


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
async def test_with_a_timeout_an_outage_is_waited_out_until_then(on: Nodes) -> None:
    timeout = 3 * longest_outage(TTL)
    with answered(OUT):
        found, took = await error_of(ask(on, timeout=timeout))
    assert found is asynclock.QuorumUnavailableError
    assert took == pytest.approx(timeout, abs=1.0)


@virtual
async def test_an_outage_begins_with_the_first_request_that_failed(on: Nodes) -> None:
    patience = longest_outage(TTL)
    with answered(replace(OUT, took=0.6 * patience)) as asked:
        found, took = await error_of(ask(on))
    assert found is asynclock.QuorumUnavailableError
    assert took < 1.5 * patience
    assert len(asked) == 2


@virtual
async def test_nodes_that_had_their_time_and_did_not_answer_are_the_reason(on: Nodes) -> None:
    """Although others had the name before, and the timeout is over."""
    with answered(HELD, Vote((DOWN, DOWN, DOWN), took=NODE_TIMEOUT + 0.05)):
        call = asyncio.ensure_future(error_of(ask(on, timeout=1.0)))
        await asyncio.sleep(0.1)
        on.locks._engine.multiplexer.wakeups.wake(None)
        found, _ = await call
    assert found is asynclock.QuorumUnavailableError
