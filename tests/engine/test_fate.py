"""What becomes of a lease: handed on, renewed, lost, released, put back. In virtual time."""

import pytest

import asynclock
from tests.engine.virtual_nodes import (
    KEY,
    TTL,
    Nodes,
    seconds_until,
    virtual,
)
from tests.tables.inside import now

AT_ONCE = 0.05


@virtual
async def test_a_lease_that_a_quorum_has_dropped_is_lost_and_given_back(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    for node in on.nodes[:2]:
        await node.command("DEL", KEY)
    with pytest.raises(asynclock.LeaseLostError):
        await lease.extend()
    assert await seconds_until(lambda: on.nodes[2].keys.get(KEY) is None) < AT_ONCE


@virtual
async def test_a_key_of_others_need_not_be_text(on: Nodes) -> None:
    for node in on.nodes:
        await node.command("SET", KEY, b"\xff\xfe", "PX", 3000)
    assert await on.locks.lock("a").try_acquire() is None
    with pytest.raises(asynclock.AcquireTimeoutError):
        await on.locks.lock("a").acquire(timeout=1)
    async with on.locks.lock("a"):
        pass


@virtual
async def test_a_last_renewal_ends_with_max_hold_to_the_millisecond(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=4.0, max_hold=6.0).acquire()
    ends = now() + 6.0
    await lease.extend(TTL)
    assert now() + lease.remaining() == pytest.approx(ends, abs=0.0005)
    await lease.wait_lost()
    assert now() == pytest.approx(ends, abs=0.001)
