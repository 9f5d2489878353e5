"""How the replies of the nodes about a register count, and how long a call asks for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.replies import Failure
from asynclock._primitives import register
from asynclock._primitives.round import FORGETFUL, Round
from asynclock._rules import pacing
from tests.engine.virtual_nodes import Nodes, start, virtual, virtual_single

US = 1_000_000
DOWN, BUSY = Failure("it is down"), Failure("it is busy")
EVENT = "asynclock:e:#event"


def replies(round_: Round, **given: Any) -> None:
    """Give the replies of the nodes a, b, c to the round, in this order."""
    for name, reply in given.items():
        round_.on_reply("abc".index(name), reply)


async def of(on: Nodes, *, since: float | None = None) -> Round:
    """A round that is sent now; a node that has kept its memory since then can't have forgotten."""
    return Round(on.locks._engine, "e", _clock.now(), 0.0 if since is None else since)


def accepted(on: Nodes, ago: float, value: bytes | None = b"set") -> list[Any]:
    """The reply of a node that accepted a value so many seconds ago."""
    now = int(on.nodes[0].wall() * US)
    return [1, int(now - ago * US), value, 5000, now]


def nothing(on: Nodes) -> list[Any]:
    return [1, 0, None, -2, int(on.nodes[0].wall() * US)]


def remembers(on: Nodes, name: str, seconds: float) -> None:
    """Let the manager know that the node has kept its memory for so long."""
    node = on.locks._engine.multiplexer.nodes["abc".index(name)]
    node.trust.remembers_from = _clock.now() - seconds


@virtual
async def test_a_majority_decides(on: Nodes) -> None:
    round_ = await of(on)
    replies(round_, a=accepted(on, 9))
    assert not round_.decided.done()
    replies(round_, b=accepted(on, 9))
    assert round_.decided.done()
    assert round_.found().value == "set"
    assert round_.found().agreed


@virtual
async def test_the_newest_value_counts_and_must_be_on_a_majority(on: Nodes) -> None:
    for order in ("ab", "ba"):
        round_ = await of(on)
        both = {"a": accepted(on, 9, b"old"), "b": accepted(on, 1, b"new")}
        replies(round_, **{name: both[name] for name in order})
        assert round_.found().value == "new"
        assert not round_.found().agreed
        replies(round_, c=accepted(on, 9, b"old"))
        assert round_.found().value == "new"


@virtual
async def test_what_is_no_text_is_read_all_the_same(on: Nodes) -> None:
    round_ = await of(on)
    replies(round_, a=accepted(on, 9, b"\xff"), b=accepted(on, 9, b"\xff"))
    assert round_.found().value == "\ufffd"
    round_ = await of(on)
    replies(round_, a=accepted(on, 9, b""), b=accepted(on, 9, b""))
    assert round_.found().value is None


@virtual
async def test_a_round_ends_once_no_majority_can_answer(on: Nodes) -> None:
    round_ = await of(on)
    replies(round_, a=DOWN)
    assert not round_.decided.done()
    replies(round_, b=BUSY)
    assert round_.decided.done()
    assert round_.failures == {0: DOWN, 1: BUSY}
    assert not round_.granted


@virtual
async def test_of_several_promises_to_others_the_highest_counts(on: Nodes) -> None:
    for numbers in ((7, 9), (9, 7)):
        round_ = await of(on)
        replies(round_, a=[0, numbers[0], 1], b=[0, numbers[1], 1], c=[0, 3, 1])
        assert round_.decided.done()
        assert round_.promised == 9
        assert not round_.failures


@virtual
async def test_a_node_that_found_the_request_too_late_has_failed(on: Nodes) -> None:
    round_ = await of(on)
    replies(round_, a=[-1, 1], b=[-1, 1])
    assert round_.decided.done()
    assert all("late" in failure.cause for failure in round_.failures.values())
    assert [*round_.failures] == [0, 1]


@virtual
async def test_a_node_that_has_restarted_since_the_request_has_no_vote(on: Nodes) -> None:
    round_ = await of(on)
    trust = on.locks._engine.multiplexer.nodes[0].trust
    trust.votes_from = _clock.now() + 5
    replies(round_, a=accepted(on, 9))
    assert not round_.granted
    assert [*round_.failures] == [0]


@virtual
async def test_nothing_of_a_node_that_may_have_forgotten_is_no_answer(on: Nodes) -> None:
    """It is one once a value is known that was written after the node's memory begins."""
    for order in ("abc", "cab"):
        for ago, counts in ((60, False), (49.5, False), (48, True), (1, True)):
            round_ = await of(on, since=_clock.now() - 1000)
            remembers(on, "a", 50)
            all_three = {"a": nothing(on), "b": DOWN, "c": accepted(on, ago)}
            replies(round_, **{name: all_three[name] for name in order})
            assert round_.decided.done()
            assert (len(round_.granted) == 2) == counts
            assert (round_.failures.get(0) is FORGETFUL) == (not counts)


@virtual
async def test_an_empty_answer_counts_once(on: Nodes) -> None:
    """The first value is too old to show that the empty node has forgotten nothing."""
    round_ = await of(on, since=_clock.now() - 1000)
    remembers(on, "a", 50)
    replies(round_, a=nothing(on), b=accepted(on, 60))
    assert not round_.granted[1:]
    replies(round_, c=accepted(on, 5))
    assert len(round_.granted) == 3
    assert round_.found().value == "set"


@virtual
async def test_nodes_that_were_all_started_just_now_hold_nothing(on: Nodes) -> None:
    round_ = await of(on, since=_clock.now() - 1000)
    for name in "abc":
        remembers(on, name, 50)
    replies(round_, a=nothing(on), b=nothing(on))
    assert not round_.decided.done(), "the third one may know more"
    replies(round_, c=nothing(on))
    assert round_.decided.done()
    assert round_.found().value is None
    assert round_.found().agreed, "there is nothing to write again"


@virtual
async def test_nothing_of_a_node_that_cannot_have_forgotten_is_an_answer(on: Nodes) -> None:
    round_ = await of(on, since=_clock.now() - 40)
    for name in "ab":
        remembers(on, name, 50)
    replies(round_, a=nothing(on), b=nothing(on))
    assert round_.decided.done()
    assert round_.found().value is None
    assert round_.found().agreed


@virtual
async def test_a_value_of_a_node_that_may_have_forgotten_a_newer_one_counts(on: Nodes) -> None:
    round_ = await of(on, since=_clock.now() - 1000)
    remembers(on, "a", 50)
    replies(round_, a=accepted(on, 60), b=accepted(on, 60))
    assert round_.decided.done()
    assert round_.found().agreed


@virtual
async def test_a_value_that_a_node_has_forgotten_is_written_again(on: Nodes) -> None:
    """Before the decision, by the call itself; after that it is told of each such reply."""
    told: list[str] = []
    round_ = await of(on, since=_clock.now() - 10_000)
    round_.on_forgotten = lambda: told.append("late")
    remembers(on, "a", 50)
    remembers(on, "b", 50)
    replies(round_, a=accepted(on, 900), b=accepted(on, 900))
    assert round_.found().agreed
    assert not told
    remembers(on, "c", 50)
    replies(round_, c=nothing(on))
    assert told == ["late"]

    round_ = await of(on, since=_clock.now() - 10_000)
    replies(round_, c=nothing(on), a=accepted(on, 900), b=accepted(on, 900))
    assert round_.found().value == "set"
    assert not round_.found().agreed

    round_ = await of(on, since=_clock.now() - 10_000)
    round_.on_forgotten = lambda: told.append("none")
    replies(round_, a=accepted(on, 9), b=accepted(on, 9), c=accepted(on, 9))
    assert told == ["late"]


@virtual
async def test_a_round_whose_time_is_over_says_what_is_missing(on: Nodes) -> None:
    round_ = await of(on, since=_clock.now() - 10_000)
    remembers(on, "a", 50)
    replies(round_, a=nothing(on))
    round_.expire({1: BUSY})
    assert round_.failures[0] is FORGETFUL
    assert round_.failures[1] is BUSY
    assert "answer" in round_.failures[2].cause
    assert round_.cut_short, "two more might have answered"

    round_ = await of(on)
    replies(round_, a=accepted(on, 9))
    round_.expire({0: BUSY})
    assert 0 not in round_.failures
    assert round_.cut_short

    round_ = await of(on, since=_clock.now() - 10_000)
    replies(round_, a=nothing(on), b=DOWN)
    assert not round_.decided.done()
    round_.expire({1: BUSY})
    assert round_.failures[0] is FORGETFUL
    assert round_.failures[1] is DOWN
    assert not round_.cut_short, "one more would have been too few"


@virtual
async def test_what_a_node_lacks_is_known_until_it_votes(on: Nodes) -> None:
    """Such as a right of its user; a node that doesn't answer may lack it all the same."""
    node, no_right = on.locks._engine.multiplexer.nodes[0], Failure("no right", code="NOPERM")
    for reply, lack in ((no_right, no_right), (DOWN, no_right), (accepted(on, 9), None)):
        round_ = await of(on)
        replies(round_, a=reply)
        assert node.lack is lack


# ---- changes and waits ---------------------------------------------------------------------------


async def stored(on: Nodes, field: str, node: int = 0) -> Any:
    (value,) = await on.nodes[node].command("HMGET", EVENT, field)
    return value


@virtual_single
async def test_a_promise_outlives_each_request_that_it_must_refuse(on: Nodes) -> None:
    """No node executes a change later than two node timeouts after it was sent."""
    await on.locks.event("e").clear()  # it was never set, so nothing is stored
    assert await stored(on, "value") is None
    assert await on.nodes[0].command("PTTL", EVENT) == 5000
    async with on.connect(node_timeout=2.5) as slow:
        await slow.event("e").clear()
    assert await on.nodes[0].command("PTTL", EVENT) == 10_000


@virtual
async def test_a_change_to_what_is_stored_already_writes_nothing(on: Nodes) -> None:
    event = on.locks.event("e", keep=60)
    await event.set()
    number = await stored(on, "accepted")
    await asyncio.sleep(10)
    await event.set()
    assert await stored(on, "accepted") == number
    assert await on.nodes[0].command("PTTL", EVENT) == pytest.approx(50_000, abs=100)
    await event.clear()
    assert await stored(on, "accepted") != number
    assert await on.nodes[0].command("PTTL", EVENT) == pytest.approx(60_000, abs=100)


@virtual
async def test_a_change_of_our_own_wakes_our_own_waiters_at_once(on: Nodes) -> None:
    event = on.locks.event("e")
    waiting = start(event.wait(timeout=30))
    await asyncio.sleep(1.5)
    began = _clock.now()
    await event.set()
    assert await waiting is True
    assert _clock.now() - began < 0.01


@virtual_single
async def test_a_change_that_was_given_up_is_not_made_later(on: Nodes) -> None:
    on.nodes[0].freeze()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await on.locks.event("e").set(timeout=2.5)
    on.nodes[0].thaw()
    await asyncio.sleep(1)
    assert await on.nodes[0].command("EXISTS", EVENT) == 0


@virtual_single
async def test_a_node_that_was_busy_for_a_moment_makes_the_change(on: Nodes) -> None:
    on.nodes[0].freeze()
    setting = start(on.locks.event("e").set(timeout=30))
    await asyncio.sleep(0.9)
    on.nodes[0].thaw()
    began = _clock.now()
    await setting
    assert _clock.now() - began < 0.001, "the node took the request that had waited there"


@virtual
async def test_a_deadline_leaves_the_nodes_two_node_timeouts_and_no_more(on: Nodes) -> None:
    event = on.locks.event("e")
    on.slow(0.3)
    await event.set(timeout=0)
    assert await event.is_set(timeout=0)
    for node in on.nodes[1:]:
        node.freeze()
    for timeout, most in ((0, 2.0), (1, 2.0), (5, 5.0)):
        for call in (event.set, event.clear, event.is_set, event.wait):
            began = _clock.now()
            with pytest.raises(asynclock.QuorumUnavailableError):
                await call(timeout=timeout)
            assert timeout <= _clock.now() - began < most + 0.05


@virtual
async def test_a_latch_and_a_barrier_keep_to_their_timeouts_in_an_outage(on: Nodes) -> None:
    latch, barrier = on.locks.latch("l", 2), on.locks.barrier("b", 2)
    for node in on.nodes[1:]:
        node.freeze()
    for call in (
        latch.count_down,
        latch.remaining,
        latch.wait,
        barrier.wait,
        barrier.waiting,
        barrier.broken,
        barrier.abort,
        barrier.reset,
    ):
        began = _clock.now()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await call(timeout=4)
        assert _clock.now() - began == pytest.approx(4, abs=0.05)


@virtual
async def test_a_wait_for_an_event_ends_with_its_timeout(on: Nodes) -> None:
    for timeout in (0.0, 0.5, 3.0, 7.0):
        began = _clock.now()
        assert await on.locks.event("e").wait(timeout=timeout) is False
        assert _clock.now() - began == pytest.approx(timeout, abs=0.01)


@virtual
async def test_rivals_step_aside_by_chance_and_for_longer_each_time_up_to_a_bound(
    on: Nodes,
) -> None:
    await on.locks.event("e").set()
    pauses: list[float] = []
    step_aside = register._Patience.step_aside

    async def note(self: register._Patience, seconds: float) -> None:
        pauses.append(seconds)
        await overtake()
        await step_aside(self, seconds)

    async def overtake() -> None:
        """Let all nodes promise a number of another client, which is higher than ours."""
        number = int((on.nodes[0].wall() + 100 + len(pauses)) * US)
        for node in on.nodes:
            await node.command("HSET", EVENT, "promised", number, "by", "another")

    engine = on.locks._engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(register._Patience, "step_aside", note)
        patch.setattr(engine, "random", lambda: 0.5)
        await overtake()
        with pytest.raises(asynclock.QuorumUnavailableError, match="other changes of 'e'") as error:
            await on.locks.event("e").clear(timeout=5)
    assert error.value.name == "e"
    assert pauses[:4] == pytest.approx([0.001, 0.002, 0.004, 0.008])
    assert max(pauses) == pytest.approx(0.1)


@virtual
async def test_pauses_grow_while_too_few_nodes_answer(on: Nodes) -> None:
    numbers: list[int] = []
    without_push = pacing.without_push

    def count(number: int, left: float | None, random: float) -> float:
        numbers.append(number)
        return without_push(number, left, random)

    for node in on.nodes[1:]:
        node.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pacing, "without_push", count)
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await on.locks.event("e").is_set(timeout=5)
    assert numbers == [*range(len(numbers))]
    assert len(numbers) > 3
    assert {*caught.value.nodes} == {"memory://b", "memory://c"}
    assert all("down" in cause for cause in caught.value.nodes.values())
