"""Events and latches one by one: what is stored, described, refused and waited for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._primitives import event, latch
from asynclock._primitives.latch import HIGHEST_COUNT
from asynclock._rules.validity import longest_outage
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual, virtual_single

LATCH = "asynclock:l:#latch"


async def stored(on: Nodes, key: str) -> Any:
    (value,) = await on.nodes[0].command("HMGET", key, "value")
    return value


# ---- events --------------------------------------------------------------------------------------


@virtual_single
async def test_an_event_that_was_never_set_is_not_stored_by_a_clear(on: Nodes) -> None:
    await on.locks.event("e").clear()
    assert await stored(on, "asynclock:e:#event") is None
    assert not await on.locks.event("e").is_set()


@virtual
async def test_a_cleared_event_is_not_set(on: Nodes) -> None:
    one = on.locks.event("e")
    for _ in range(2):
        await one.set()
        assert await one.is_set()
        assert await one.wait(timeout=1) is True
        await one.clear()
        assert not await one.is_set()
        assert await one.wait(timeout=1) is False


def test_an_event_in_words() -> None:
    assert event._describe("set", 0) == ({"set": True}, "set")
    assert event._describe("clear", 0) == ({"set": False}, "cleared")
    with pytest.raises(asynclock.ConfigurationError, match="not written by this library"):
        event._describe("true", 0)


@virtual
async def test_a_state_is_kept_for_a_day(on: Nodes) -> None:
    await on.locks.event("e").set()
    await on.locks.latch("l", 2).count_down()
    for key in ("asynclock:e:#event", LATCH):
        assert await on.nodes[0].command("PTTL", key) == pytest.approx(24 * 3600_000, abs=100)


# ---- latches -------------------------------------------------------------------------------------


@virtual
async def test_a_latch_counts_down_by_the_steps_and_never_below_nothing(on: Nodes) -> None:
    one = on.locks.latch("l", 7)
    waiting = start(one.wait(timeout=60))
    assert [await one.count_down(3), await one.remaining()] == [4, 4]
    assert await one.count_down() == 3
    await asyncio.sleep(1)
    assert not waiting.done()
    assert [await one.count_down(5), await one.remaining()] == [0, 0]
    began = _clock.now()
    assert await waiting is True
    assert _clock.now() - began < 0.1


def test_a_latch_in_words() -> None:
    for done, left in (({}, 3), ({"a": 1}, 2), ({"a": 1, "b": 2}, 0), ({"a": 2, "b": 2}, 0)):
        found = latch._describe(json.dumps([3, done]), 0)
        assert found == ({"count": 3, "remaining": left}, f"{left} of 3 to go")


@pytest.mark.parametrize(
    "wrong",
    ['[3, {"a": 0}]', '[3, {"a": -1}]', '[3, {"a": true}]', '[3, {"a": "1"}]', '["3", {}]', "[3]"],
)
def test_what_only_resembles_a_latch_is_refused(wrong: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match="not written by this library"):
        latch._describe(wrong, 0)


@pytest.mark.parametrize("wrong", [0, -1, HIGHEST_COUNT + 1, 1.5, True, "1", None])
def test_a_wrong_count_or_step_is_refused(wrong: Any) -> None:
    locks = asynclock.connect("memory://a")
    with pytest.raises(asynclock.ConfigurationError, match="count"):
        locks.latch("l", wrong)

    @virtual_single
    async def step(on: Nodes) -> None:
        with pytest.raises(asynclock.ConfigurationError, match="by"):
            await on.locks.latch("l", 3).count_down(wrong)
        assert await on.locks.latch("l", 3).remaining() == 3

    step()


@virtual_single
async def test_the_bounds_that_are_documented(on: Nodes) -> None:
    assert await on.locks.latch("l", 1000).count_down(1000) == 0
    assert await on.locks.latch("few", 2).count_down(1000) == 0
    names = [str(number) for number in range(65)]
    assert len(on.locks.multi_lock(*names[:64]).names) == 64
    assert on.locks.barrier("b", 256).parties == 256
    assert on.locks.semaphore("s", 256).permits == 256
    calls: list[Any] = [
        lambda: on.locks.latch("l", 1001),
        lambda: on.locks.barrier("b", 257),
        lambda: on.locks.semaphore("s", 257),
        lambda: on.locks.multi_lock(*names),
        lambda: on.locks.semaphore("s", 3).several(4),
    ]
    for call in calls:
        with pytest.raises(asynclock.ConfigurationError):
            call()


@virtual
async def test_a_latch_with_another_count_is_another_programs(on: Nodes) -> None:
    await on.locks.latch("l", 3).count_down()
    other = on.locks.latch("l", 4)
    for call in (other.count_down, other.remaining, other.wait):
        with pytest.raises(
            asynclock.ConfigurationError, match="counts from 3, not from 4"
        ) as caught:
            await call(timeout=5)
        assert caught.value.name == "l"


# ---- names and times -----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", 7, None, "a:#b", "a\udc80"], ids=repr)
def test_a_wrong_name_is_refused_by_every_primitive(wrong: Any) -> None:
    locks = asynclock.connect("memory://a")
    makes: list[tuple[Any, str]] = [
        (locks.lock, "lock"),
        (locks.fair_lock, "lock"),
        (locks.reentrant_lock, "lock"),
        (locks.multi_lock, "lock"),
        (locks.rwlock, "lock"),
        (lambda name: locks.semaphore(name, 2), "semaphore"),
        (locks.election, "election"),
        (locks.event, "event"),
        (lambda name: locks.latch(name, 2), "latch"),
        (lambda name: locks.barrier(name, 2), "barrier"),
    ]
    for make, kind in makes:
        with pytest.raises(asynclock.ConfigurationError) as caught:
            make(wrong)
        assert kind in str(caught.value) or wrong == "a:#b"


@pytest.mark.parametrize("wrong", [0, -1, "long", None], ids=repr)
def test_a_wrong_time_to_keep_is_refused(wrong: Any) -> None:
    locks = asynclock.connect("memory://a")
    makes: list[Any] = [
        lambda: locks.event("e", keep=wrong),
        lambda: locks.latch("l", 2, keep=wrong),
        lambda: locks.barrier("b", 2, keep=wrong),
    ]
    for make in makes:
        with pytest.raises(asynclock.ConfigurationError, match="keep"):
            make()


@virtual_single
async def test_a_wrong_timeout_is_refused(on: Nodes) -> None:
    wrong: list[Any] = [-1, "long"]
    for timeout in wrong:
        for call in (on.locks.event("e").set, on.locks.latch("l", 2).wait):
            with pytest.raises(asynclock.ConfigurationError, match="timeout"):
                await call(timeout=timeout)


# ---- what another library deletes ----------------------------------------------------------------


@virtual_single
async def test_the_first_in_line_notices_at_once_that_a_key_is_gone(on: Nodes) -> None:
    """An operator has deleted it, or another library that knows no queue."""
    semaphore = on.locks.semaphore("a", 2)
    for keys, acquire in (
        (["asynclock:a"], on.locks.lock("a").acquire),
        (["asynclock:a:#fair"], on.locks.fair_lock("a").acquire),
        (["asynclock:a:#leader"], on.locks.election("a").campaign),
        (["asynclock:a:#several"], semaphore.several(1).acquire),
        (["asynclock:a:#0", "asynclock:a:#1"], semaphore.acquire),
        (["asynclock:a:#1", "asynclock:a:#0"], semaphore.acquire),
    ):
        for key in keys:
            await on.nodes[0].command("SET", key, "other", "PX", 60_000)
        waiting = start(acquire(timeout=30))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        began = _clock.now()
        await on.nodes[0].command("DEL", keys[0])
        got: Any = await waiting
        assert _clock.now() - began < 0.1
        await (got.resign() if isinstance(got, asynclock.Term) else got.release())


@virtual
async def test_a_latch_opens_with_the_last_count_and_not_before(on: Nodes) -> None:
    one = on.locks.latch("l", 2)
    assert await one.count_down() == 1
    assert await one.wait(timeout=1) is False
    assert await one.count_down() == 0
    assert await one.wait(timeout=1) is True


# ---- outages -------------------------------------------------------------------------------------


@virtual
async def test_a_call_without_a_timeout_outlasts_the_longest_quarantine(on: Nodes) -> None:
    """A restart of two nodes at once is no error of any caller."""
    for node in on.nodes[1:]:
        node.kill()
    for call in (on.locks.event("e").is_set, on.locks.event("e").set):
        began = _clock.now()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await call()
        assert _clock.now() - began == pytest.approx(longest_outage(TTL), abs=1.1)


@virtual
async def test_a_wait_that_ends_in_an_outage_says_so(on: Nodes) -> None:
    """Though the nodes had answered before: nobody knows whether it was set meanwhile."""
    waits = [
        start(call(timeout=8)) for call in (on.locks.event("e").wait, on.locks.latch("l", 2).wait)
    ]
    await asyncio.sleep(2)
    for node in on.nodes[1:]:
        node.kill()
    began = _clock.now()
    for wait in waits:
        with pytest.raises(asynclock.QuorumUnavailableError):
            await wait
    assert _clock.now() - began == pytest.approx(6, abs=0.1)


@virtual
async def test_a_call_ends_with_its_manager(on: Nodes) -> None:
    there = on.connect()
    assert not await there.event("e").is_set()
    for node in on.nodes[1:]:
        node.kill()
    calls = [
        start(call)
        for call in (
            there.event("e").set(),
            there.latch("l", 2).count_down(),
            there.event("e").wait(),
        )
    ]
    await asyncio.sleep(1)
    assert not any(call.done() for call in calls)
    began = _clock.now()
    await there.aclose()
    for call in calls:
        with pytest.raises(asynclock.ConfigurationError, match="closed"):
            await call
    assert _clock.now() - began < 2.1
