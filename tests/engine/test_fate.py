"""What becomes of a lease: handed on, renewed, lost, released, put back. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock import _clock
from tests.engine.virtual_nodes import (
    COUNTER,
    KEY,
    NODE_TIMEOUT,
    TTL,
    VALID,
    Nodes,
    seconds_until,
    start,
    virtual,
)
from tests.waiting import until

AT_ONCE = 0.05


@virtual
async def test_a_holding_with_a_bound_on_renewal_is_not_handed_on(on: Nodes) -> None:
    """The bound belongs to one lease; its successor has one of its own."""
    lock = on.locks.lock("a", max_hold=5.0)
    first = await lock.acquire()
    waiting = start(lock.acquire())
    await until(lambda: on.locks.statistics().waiting)
    await first.release()
    assert (await waiting).owner != first.owner
    assert on.locks.statistics().handovers == 0


@virtual
async def test_no_lease_is_handed_on_when_it_is_nearly_over(on: Nodes) -> None:
    lock = on.locks.lock("a", renew=False)
    first = await lock.acquire()
    waiting = start(lock.acquire())
    await until(lambda: on.locks.statistics().waiting)
    await asyncio.sleep(0.6 * TTL)
    grant = on.locks._engine.queues["asynclock:a"].grants[0]
    grant.since = _clock.now()  # as if it had just begun
    await first.release()
    assert (await waiting).remaining() > TTL / 2


@virtual
async def test_a_lease_is_handed_on_only_where_that_is_wanted(on: Nodes) -> None:
    owners = set()
    for handoff, number in ((False, 2), (True, 1)):
        lock = on.locks.lock("a", handoff=handoff)
        first = await lock.acquire()
        waiting = start(lock.acquire())
        await until(lambda: on.locks.statistics().waiting)
        await first.release()
        second = await waiting
        assert len({first.owner, second.owner}) == number
        owners |= {first.owner, second.owner}
        await second.release()
    assert len(owners) == 3


@virtual
async def test_each_lease_that_is_handed_on_has_a_fence_of_its_own(on: Nodes) -> None:
    fences = []

    async def work() -> None:
        async with on.locks.lock("a") as lease:
            fences.append(lease.fence)

    await asyncio.gather(*(work() for _ in range(20)))
    assert on.locks.statistics().handovers > 10
    assert fences == sorted(set(fences))


@virtual
async def test_a_lease_that_a_quorum_has_dropped_is_lost_and_given_back(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    for node in on.nodes[:2]:
        await node.command("DEL", KEY)
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    assert await seconds_until(lambda: on.nodes[2].keys.get(KEY) is None) < AT_ONCE


@virtual
async def test_one_node_of_three_renews_nothing(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    await asyncio.sleep(3)
    for node in on.nodes[:2]:
        node.freeze()
    before = lease.remaining()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await lease.extend()
    assert lease.remaining() <= before


@virtual
async def test_a_release_tells_whether_the_nodes_still_had_it(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    for node in on.nodes:
        await node.command("DEL", KEY)
    assert await lease.release() is False


@virtual
async def test_a_node_that_forgot_a_lease_gets_it_back_when_it_votes(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await asyncio.sleep(1)
    on.nodes[0].flush()
    trust = on.locks._engine.multiplexer.nodes[0].trust
    await asyncio.sleep(0.01)  # the news of it
    await until(lambda: _clock.now() >= trust.votes_from - AT_ONCE / 2)
    assert on.nodes[0].keys.get(KEY) is None
    assert await seconds_until(lambda: on.nodes[0].keys.get(KEY)) < AT_ONCE
    assert int(await on.nodes[0].command("GET", COUNTER)) >= lease.fence
    await on.nodes[0].command("DEL", KEY)  # by hand: so it stays
    await asyncio.sleep(3 * TTL)
    assert on.nodes[0].keys.get(KEY) is None
    assert lease.held


@virtual
async def test_a_key_that_is_being_put_back_is_not_the_first_grants(on: Nodes) -> None:
    """Executed late, it may stand where another's key was forgotten."""
    lease = await on.locks.lock("a").acquire()
    grant = on.locks._engine.renewals.find(lease.owner)
    assert grant is not None
    assert sorted(grant.voters) == [0, 1, 2] or len(grant.voters) == 2
    grant.voters = (0, 1, 2)
    on.nodes[0].flush()
    restores = on.locks._engine.renewals.restores
    await asyncio.sleep(TTL)
    on.ways[0].seconds = 0.2
    await until(lambda: restores.under_way)
    assert 0 not in grant.voters
    await until(lambda: not restores.under_way)
    assert 0 in grant.voters


@virtual
async def test_a_last_renewal_ends_with_max_hold_to_the_millisecond(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=4.0, max_hold=6.0).acquire()
    ends = lease._acquired_at + 6.0
    await lease.extend(TTL)
    assert _clock.now() + lease.remaining() == pytest.approx(ends, abs=0.0005)
    await lease.wait_lost()
    assert _clock.now() == pytest.approx(ends, abs=0.001)


@virtual
async def test_a_node_that_was_away_gets_its_releases_when_it_is_back(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    away = on.nodes[0]
    away.durable = True
    away.kill()
    await until(lambda: on.locks.nodes()[0].state == "down")
    assert await lease.release()
    assert away.keys.get(KEY)
    away.restart()
    assert await seconds_until(lambda: away.keys.get(KEY) is None) < NODE_TIMEOUT + AT_ONCE


@virtual
async def test_a_lease_that_ends_sooner_is_told_of_in_time(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    on.locks._engine.renewals.shorten(3.0)
    took = await seconds_until(lambda: lease.lost_reason)
    assert took == pytest.approx(VALID - 3.0, abs=0.01)


@virtual
async def test_a_node_that_did_not_vote_for_a_lease_only_keeps_it(on: Nodes) -> None:
    """Its grant was not part of the vote, so its renewals do not count before its own vote does."""
    lease = await on.locks.lock("a").acquire()
    grant = on.locks._engine.renewals.find(lease.owner)
    assert grant is not None
    grant.voters = (1, 2)
    on.nodes[0].flush()
    await until(lambda: on.nodes[0].keys.get(KEY))
    await asyncio.sleep(0.1)
    assert grant.voters == (1, 2)


@virtual
async def test_a_batch_for_fewer_nodes_than_a_quorum_gets_a_verdict(on: Nodes) -> None:
    for node in on.nodes[1:]:
        node.kill()
    await until(lambda: [node.state for node in on.locks.nodes()[1:]] == ["down"] * 2)
    with pytest.raises(asynclock.QuorumUnavailableError):
        await asyncio.wait_for(start(on.locks.lock("a").try_acquire()), 10)
