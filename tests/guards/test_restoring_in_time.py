"""How often and how soon a node that forgot a lease's key is asked to take it back."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine.grant import Grant
from asynclock._nodes.link import LATE_TIMER_FACTOR
from asynclock.testing.memory.wire import Stream
from tests.engine.virtual_nodes import (
    COUNTER,
    KEY,
    NODE_TIMEOUT,
    TTL,
    Nodes,
    Way,
    seconds_until,
    start,
    virtual,
)
from tests.waiting import until

AT_ONCE = 0.05


class Counting(Way):
    """Counts the acquires that are sent this way."""

    acquires = 0

    def admit(self, stream: Stream, data: bytes) -> bool:
        self.acquires += data.count(b"\r\nacquire\r\n")
        return super().admit(stream, data)


def grant_of(locks: asynclock.LockManager, lease: asynclock.Lease) -> Grant:
    found = locks._engine.renewals.find(lease.owner)
    assert found is not None
    return found


async def forgets(on: Nodes, locks: asynclock.LockManager) -> None:
    """Let the first node forget all, and wait until shortly before it votes again."""
    on.nodes[0].flush()
    trust = locks._engine.multiplexer.nodes[0].trust
    await until(lambda: trust.votes_from > _clock.now(), "the news of it")
    await until(lambda: _clock.now() >= trust.votes_from - AT_ONCE / 2)
    assert on.nodes[0].keys.get(KEY) is None


async def returns(on: Nodes) -> float:
    """Return the seconds until the first node has the key again."""
    return await seconds_until(lambda: on.nodes[0].keys.get(KEY) is not None)


@virtual
async def test_waiters_of_other_processes_keep_no_key_away(on: Nodes) -> None:
    """Their tickets go before the acquires of others, not before the lease that they wait for."""
    theirs = on.connect(restart_guard=False)
    lease = await on.locks.lock("a").acquire()
    waiting = start(theirs.lock("a").acquire())
    await until(lambda: theirs.statistics().waiting)
    await forgets(on, on.locks)
    assert on.nodes[0].keys.get(KEY + b":#queue"), "the ticket is back first"
    assert await returns(on) < TTL / 20 + AT_ONCE
    assert await on.nodes[0].command("GET", KEY) == lease.owner
    assert not waiting.done()
    assert await lease.release()
    assert (await waiting).held
    await theirs.aclose()


@virtual
async def test_without_the_guard_no_key_is_put_back(on: Nodes) -> None:
    """Then nobody knows when all that a node forgot is over."""
    locks = on.connect(restart_guard=False)
    lease = await locks.lock("a").acquire()
    on.nodes[0].flush()
    await asyncio.sleep(2 * TTL)
    assert on.nodes[0].keys.get(KEY) is None
    on.nodes[0].restart()
    await asyncio.sleep(2 * TTL)
    assert on.nodes[0].keys.get(KEY) is None
    assert lease.held
    await locks.aclose()


@virtual
async def test_a_node_is_asked_once_at_a_time(on: Nodes) -> None:
    way = on.ways[0] = Counting()
    locks = on.connect()
    lease = await locks.lock("a").acquire()
    await forgets(on, locks)
    under_way = locks._engine.renewals.restores.under_way
    before, way.seconds = way.acquires, 0.4
    await asyncio.gather(*(lease.extend() for _ in range(3)))
    await until(lambda: under_way, "it replied to each that it lacks the key")
    await until(lambda: not under_way)
    await asyncio.sleep(1)
    assert way.acquires == before + 1
    assert on.nodes[0].keys.get(KEY)
    way.seconds = 0.0
    await locks.aclose()


@virtual
async def test_a_node_that_refused_is_asked_again_soon(on: Nodes) -> None:
    """It had given the name to another owner, whose lease ends."""
    lease = await on.locks.lock("a").acquire()
    await forgets(on, on.locks)
    await on.nodes[0].command("SET", KEY, "somebody else", "PX", 1000)
    await until(lambda: on.nodes[0].keys.get(KEY) is None)
    assert await returns(on) < TTL / 20 + AT_ONCE
    assert await on.nodes[0].command("GET", KEY) == lease.owner


@virtual
async def test_a_node_that_did_not_answer_is_asked_again(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await forgets(on, on.locks)
    on.ways[0].seconds = 0.4
    under_way = on.locks._engine.renewals.restores.under_way
    await until(lambda: under_way)
    on.nodes[0].kill()
    on.ways[0].seconds = 0.0
    await until(lambda: not under_way)
    on.nodes[0].restart()
    await until(lambda: on.nodes[0].keys.get(KEY), timeout=60)
    assert lease.held


@virtual
async def test_a_node_that_forgot_twice_gets_its_keys_back_twice(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    for _ in range(2):
        await forgets(on, on.locks)
        assert await returns(on) < AT_ONCE
    assert lease.held


@virtual
async def test_a_node_that_forgot_again_while_it_answered_has_not_taken_it_back(on: Nodes) -> None:
    """Its answer is older than its loss, so its grant must not count as one of the first vote."""
    lease = await on.locks.lock("a").acquire()
    grant = grant_of(on.locks, lease)
    grant.voters = (0, 1, 2)
    await forgets(on, on.locks)
    on.ways[0].seconds = 0.4
    under_way = on.locks._engine.renewals.restores.under_way
    await until(lambda: under_way)
    await until(lambda: on.nodes[0].keys.get(KEY))
    # As another connection may tell.
    on.locks._engine.multiplexer.nodes[0].trust.votes_from = _clock.now() + 0.1
    await until(lambda: not under_way)
    assert 0 not in grant.voters
    assert not grant.restored
    on.ways[0].seconds = 0.0


@virtual
async def test_fences_that_are_reserved_meanwhile_reach_the_node_as_well(on: Nodes) -> None:
    """Else its counter would lag behind the fences of hand-overs."""
    lease = await on.locks.lock("a").acquire()
    grant = grant_of(on.locks, lease)
    await forgets(on, on.locks)
    on.ways[0].seconds = 0.4
    under_way = on.locks._engine.renewals.restores.under_way
    await until(lambda: under_way)
    grant.top += 1000
    on.ways[0].seconds = 0.0
    await until(lambda: not under_way)
    await asyncio.sleep(0.01)
    assert int(await on.nodes[0].command("GET", COUNTER)) >= grant.top > lease.fence


@virtual
async def test_a_lease_that_has_ended_meanwhile_stays_ended(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    grant = grant_of(on.locks, lease)
    await forgets(on, on.locks)
    on.ways[0].seconds = 0.4
    under_way = on.locks._engine.renewals.restores.under_way
    await until(lambda: under_way)
    assert await lease.release()
    await until(lambda: not under_way)
    assert not grant.alarm
    assert 0 not in grant.restored
    on.ways[0].seconds = 0.0
    await asyncio.sleep(2 * TTL)
    assert on.nodes[0].keys.get(KEY) is None
    assert on.locks.statistics().lost == 0


@pytest.mark.parametrize("ttl", [4.0, TTL])
def test_no_request_is_executed_after_the_lease_or_long_after_it_was_sent(ttl: float) -> None:
    """A key that is set then keeps others out for a whole ttl."""

    async def scenario(on: Nodes) -> None:
        lease = await on.locks.lock("a", ttl=ttl).acquire()
        multiplexer = on.locks._engine.multiplexer
        limit, asked = multiplexer.not_after, list[tuple[float, float]]()

        def noted(until: float) -> int:
            asked.append((until - _clock.now(), lease.remaining()))
            return limit(until)

        await forgets(on, on.locks)
        on.ways[0].seconds = 0.01  # it is the last one to answer
        multiplexer.not_after = noted  # type: ignore[method-assign]
        await returns(on)
        ((allowed, left),) = asked
        assert allowed == pytest.approx(min(left, LATE_TIMER_FACTOR * NODE_TIMEOUT))
        assert (left < LATE_TIMER_FACTOR * NODE_TIMEOUT) is (ttl < TTL)
        on.ways[0].seconds = 0.0

    virtual(scenario)()


@virtual
async def test_nothing_is_put_back_while_nobody_knows_when_it_would_be_too_late(on: Nodes) -> None:
    """Too few clocks are known, so the request could not say it."""
    lease = await on.locks.lock("a").acquire()
    multiplexer = on.locks._engine.multiplexer
    limit = multiplexer.not_after
    await forgets(on, on.locks)
    multiplexer.not_after = lambda until: 0  # type: ignore[method-assign]
    await asyncio.sleep(TTL)
    assert on.nodes[0].keys.get(KEY) is None
    assert lease.held
    multiplexer.not_after = limit  # type: ignore[method-assign]
    assert await returns(on) < TTL / 3 + AT_ONCE
