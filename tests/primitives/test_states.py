"""Events and latches in virtual time: what is stored, how long calls take, what is given back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock._rules import pacing
from asynclock._rules.validity import longest_outage
from asynclock.errors import ConfigurationError
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual, virtual_single
from tests.tables.inside import now
from tests.waiting import call_off, until

EVENT, LATCH = "asynclock:e:#event", "asynclock:l:#latch"


async def stored(on: Nodes, field: str = "value", node: int = 0, key: str = EVENT) -> Any:
    (value,) = await on.nodes[node].command("HMGET", key, field)
    return value


async def store(on: Nodes, node: int, ago: float = 0.0) -> None:
    """Let a node alone have accepted that the event is set, this many seconds ago."""
    number = int((on.nodes[node].wall() - ago) * 1e6)
    fields = ("promised", number, "by", "x", "accepted", number, "value", "set")
    await on.nodes[node].command("HSET", EVENT, *fields)


# ---- what is stored ------------------------------------------------------------------------------
@virtual_single
async def test_a_clear_of_what_was_never_set_stores_a_promise_only(on: Nodes) -> None:
    """It outlives each request that it must refuse: those are two node timeouts late at most."""
    await on.locks.event("e").clear()
    assert await stored(on) is None
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
async def test_each_change_has_an_owner_of_its_own(on: Nodes) -> None:
    """Two clients may choose the same number: only one of them may be granted it."""
    event, owners = on.locks.event("e"), set()
    for change in (event.set, event.clear):
        await change()
        owners.add(await stored(on, "by"))
    assert len(owners) == 2
    assert all(len(owner) > 16 for owner in owners)


@virtual
async def test_a_latch_counts_down_by_the_steps_and_never_below_nothing(on: Nodes) -> None:
    latch = on.locks.latch("l", 7)
    waiting = start(latch.wait(timeout=60))
    assert [await latch.count_down(3), await latch.remaining()] == [4, 4]
    assert await latch.count_down() == 3
    assert await latch.wait(timeout=1) is False
    assert not waiting.done()
    assert [await latch.count_down(5), await latch.remaining()] == [0, 0]
    began = now()
    assert await waiting is True
    assert now() - began < 0.1
    before = await stored(on, key=LATCH)
    assert await latch.count_down() == 0
    assert await stored(on, key=LATCH) == before, "an open latch counts no more"


@virtual
async def test_an_answer_lost_on_the_way_back_changes_nothing(on: Nodes) -> None:
    """The nodes took the change and we never heard of it: made again, it must not count twice."""
    for tenths in range(1, 10):
        latch, barrier = on.locks.latch(f"l{tenths}", 5), on.locks.barrier(f"b{tenths}", 1)
        for call, wanted in ((latch.count_down, 4), (barrier.wait, 0)):
            on.slow(0.2)
            calling = start(call(timeout=10))
            await asyncio.sleep(tenths / 10)
            for node in on.nodes:
                node.cut()
            on.slow(0.0)
            assert await calling == wanted
        assert await latch.remaining() == 4
        value = await stored(on, key=f"asynclock:b{tenths}:#barrier")
        assert value.startswith(("[1, 1,", "[1,1,")), "one round, not two"


@virtual_single
async def test_a_look_at_a_state_tells_its_age_its_number_and_what_is_wrong(on: Nodes) -> None:
    event = on.locks.event("e", keep=60)
    await event.set()
    await asyncio.sleep(10)
    (view,) = (await event.inspect()).nodes
    assert (view.value, view.error) == ("set", None)
    assert view.remaining == pytest.approx(50, abs=0.1)
    assert view.fence == int(await stored(on, "accepted"))
    on.nodes[0].kill()
    (view,) = (await event.inspect()).nodes
    assert view.error == "connection lost: reset by the node"
    assert (view.value, view.remaining) == (None, None)


# ---- nodes that have forgotten -------------------------------------------------------------------
async def forgets(on: Nodes, index: int, seconds: float = 60) -> None:
    """Restart a node without its data; it may vote again after these seconds."""
    on.nodes[index].restart(keep_data=False)
    await asyncio.sleep(seconds)


@virtual
async def test_a_node_with_a_slow_clock_may_keep_a_value_one_percent_longer(on: Nodes) -> None:
    """So a node that remembers less than that may have forgotten the value."""
    await forgets(on, 1, 1005)
    await store(on, 0, ago=1008)
    on.nodes[2].kill()
    event = on.locks.event("e", keep=1000)
    with pytest.raises(asynclock.QuorumUnavailableError, match="may have forgotten this name"):
        await event.is_set(timeout=3)
    await asyncio.sleep(20)
    assert await event.is_set(timeout=3)


@pytest.mark.parametrize("outage", [0, 5])
@virtual
async def test_a_node_that_answers_late_is_given_back_its_values(on: Nodes, outage: float) -> None:
    """Also after an outage: a max_ttl long, the nodes are asked to store it."""
    await on.locks.event("e").set()
    await forgets(on, 2)
    on.ways[2].seconds = 0.1
    assert await on.locks.event("e").is_set()
    if outage:
        on.freeze("ab")
        await asyncio.sleep(outage)
        assert await stored(on, node=2) is None
        on.thaw()

    async def there() -> bool:
        return bool(await stored(on, node=2) == "set")

    await until(there, timeout=9)


@virtual
async def test_a_closed_manager_stores_nothing_again(on: Nodes) -> None:
    await on.locks.event("e").set()
    await forgets(on, 2)
    on.ways[2].seconds = 0.1
    locks = on.connect()
    await locks.ready()
    others = asyncio.all_tasks()
    assert await locks.event("e").is_set()
    await locks.aclose()
    await asyncio.sleep(1)
    assert asyncio.all_tasks() <= others
    assert await stored(on, node=2) is None


@pytest.mark.parametrize("call", ["is_set", "set"])
@virtual
async def test_a_value_of_a_minority_is_stored_on_a_majority(on: Nodes, call: str) -> None:
    """By a read, and by a change to this very value: until then it may be lost."""
    await store(on, 0)
    on.nodes[2].kill()
    assert await getattr(on.locks.event("e"), call)(timeout=5) in (True, None)
    assert await stored(on, node=1) == "set"


@virtual
async def test_a_change_goes_at_once_above_a_number_from_a_clock_that_is_ahead(on: Nodes) -> None:
    event = on.locks.event("e")
    await event.set()
    ahead = int((on.nodes[0].wall() + 5) * 1e6)
    await on.command("HSET", EVENT, "promised", ahead, "by", "another")
    began = now()
    await event.clear()
    assert now() - began < 1


# ---- changes of the own process wake its waiters -------------------------------------------------
WAY = 0.02
"""Seconds to a node."""
SOON = 10 * WAY
"""Seconds in which a wake-up must come; one that is lost takes BLIND."""
assert pacing.BLIND / 2 > SOON

CHANGES: dict[str, tuple[Callable[[asynclock.LockManager], Any], str]] = {
    "event": (lambda locks: locks.event("a"), "set"),
    "latch": (lambda locks: locks.latch("a", 2), "count_down"),
}


@pytest.mark.parametrize("cancelled_after", [0.5 * WAY, 1.5 * WAY, 2.5 * WAY])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_was_cancelled_loses_no_wake_up(kind: str, cancelled_after: float) -> None:
    """Servers send no push for a change of our own, and the change of another must wake us."""
    make, change = CHANGES[kind]

    async def scenario(on: Nodes) -> None:
        async with on.connect() as others:
            await others.ready()
            on.slow(WAY)
            theirs = make(others)
            await (theirs.clear() if kind == "event" else theirs.count_down())
            waiting = start(make(on.locks).wait())
            await asyncio.sleep(1)
            mine = start(getattr(make(on.locks), change)())
            await asyncio.sleep(cancelled_after)
            await call_off(mine)
            await asyncio.sleep(0.1)
            await getattr(theirs, change)()
            began = now()
            await waiting
            assert now() - began < SOON

    virtual(scenario)()
    virtual_single(scenario)()


@virtual
async def test_a_change_of_our_own_wakes_our_own_waiters_at_once(on: Nodes) -> None:
    waiting = start(on.locks.event("e").wait(timeout=30))
    await asyncio.sleep(1.5)
    began = now()
    await on.locks.event("e").set()
    assert await waiting is True
    assert now() - began < 0.01


# ---- how long calls take, and outages ------------------------------------------------------------
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
    began = now()
    await setting
    assert now() - began < 0.001, "the node took the request that had waited there"


@virtual
async def test_calls_keep_to_their_timeouts_in_an_outage(on: Nodes) -> None:
    """Those without a timeout outlast the longest quarantine: a restart of two is no error."""
    event, latch, barrier = on.locks.event("e"), on.locks.latch("l", 2), on.locks.barrier("b", 2)
    on.freeze("bc")
    calls: list[Any] = [latch.count_down, latch.remaining, latch.wait, barrier.wait]
    calls += [barrier.waiting, barrier.broken, barrier.abort, barrier.reset]
    for call in calls:
        began = now()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await call(timeout=4)
        assert now() - began == pytest.approx(4, abs=0.05)
    for unlimited in (event.is_set, event.set):
        began = now()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await unlimited()
        assert now() - began == pytest.approx(longest_outage(TTL), abs=1.1)


@virtual
async def test_a_wait_that_ends_in_an_outage_says_so(on: Nodes) -> None:
    """Though the nodes had answered before: nobody knows whether it was set meanwhile."""
    waits = [
        start(call(timeout=8)) for call in (on.locks.event("e").wait, on.locks.latch("l", 2).wait)
    ]
    await asyncio.sleep(2)
    on.kill("bc")
    began = now()
    for wait in waits:
        with pytest.raises(asynclock.QuorumUnavailableError):
            await wait
    assert now() - began == pytest.approx(6, abs=0.1)


@virtual
async def test_pauses_grow_while_too_few_nodes_answer_and_the_error_says_which(on: Nodes) -> None:
    numbers: list[int] = []
    without_push = pacing.without_push

    def count(number: int, left: float | None, random: float) -> float:
        numbers.append(number)
        return without_push(number, left, random)

    on.kill("bc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pacing, "without_push", count)
        with pytest.raises(asynclock.QuorumUnavailableError) as caught:
            await on.locks.event("e").is_set(timeout=5)
    assert numbers == [*range(len(numbers))]
    assert len(numbers) > 3
    assert str(caught.value).startswith("too few nodes answered to know the state of 'e': ")
    assert caught.value.name == "e"
    assert {*caught.value.nodes} == {"memory://b", "memory://c"}
    assert all("down" in cause for cause in caught.value.nodes.values())


@virtual
async def test_a_timeout_that_ends_before_nodes_may_vote_is_not_waited_for(on: Nodes) -> None:
    for node in on.nodes[1:]:
        node.restart(keep_data=False)
    await until(lambda: [one.state for one in on.locks.nodes()].count("quarantined") == 2)
    began = now()
    with pytest.raises(asynclock.QuorumUnavailableError, match="votes in 10") as caught:
        await on.locks.event("e").is_set(timeout=5)
    assert now() - began < 0.1
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 5


# ---- what is refused -----------------------------------------------------------------------------
@virtual
async def test_a_latch_with_another_count_is_another_programs(on: Nodes) -> None:
    await on.locks.latch("l", 3).count_down()
    other = on.locks.latch("l", 4)
    for call in (other.count_down, other.remaining, other.wait):
        with pytest.raises(ConfigurationError, match="'l' counts from 3, not from 4") as caught:
            await call(timeout=5)
        assert caught.value.name == "l"


@pytest.mark.parametrize("wrong", [0, -1, 1001, 1.5, True, "1", None])
@virtual_single
async def test_a_wrong_count_or_step_is_refused(on: Nodes, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^count must"):
        on.locks.latch("l", wrong)
    with pytest.raises(ConfigurationError, match=r"^by must"):
        await on.locks.latch("l", 3).count_down(wrong)
    assert await on.locks.latch("l", 3).remaining() == 3
    assert await on.locks.latch("l", 1000).count_down(1000) == 0


# ---- what another library deletes ----------------------------------------------------------------
@virtual_single
async def test_the_first_in_line_notices_at_once_that_a_key_is_gone(on: Nodes) -> None:
    """An operator has deleted it, or another library that knows no queue."""
    semaphore = on.locks.semaphore("a", 2)
    for keys, acquire in (
        (["asynclock:a"], on.locks.lock("a").acquire),
        (["asynclock:a:#fair"], on.locks.fair_lock("a").acquire),
        (["asynclock:a:#leader"], on.locks.election("a").campaign),
        (["asynclock:a:#0", "asynclock:a:#1"], semaphore.several(1).acquire),
        (["asynclock:a:#0", "asynclock:a:#1"], semaphore.acquire),
        (["asynclock:a:#1", "asynclock:a:#0"], semaphore.acquire),
        (["asynclock:m"], on.locks.multi_lock("m", "n").acquire),
        (["asynclock:n"], on.locks.multi_lock("m", "n").acquire),
    ):
        for key in keys:
            await on.nodes[0].command("SET", key, "other", "PX", 60_000)
        waiting = start(acquire(timeout=30))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        began = now()
        await on.nodes[0].command("DEL", keys[0])
        got: Any = await waiting
        assert now() - began < 0.1
        await (got.resign() if isinstance(got, asynclock.Term) else got.release())
