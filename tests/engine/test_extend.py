"""What `extend` accepts, and what a lease is good for while its answer is out. In virtual time."""

import asyncio
import functools
from typing import Any

import pytest

import asynclock
from tests.engine.batches import listen
from tests.engine.kinds import calls
from tests.engine.virtual_nodes import KEY, Nodes, start, virtual_single
from tests.engine.virtual_nodes import virtual as on_three
from tests.waiting import go_through, until

TTL, LONGEST = 5.0, 20.0
virtual = functools.partial(virtual_single, ttl=TTL, max_ttl=LONGEST, node_timeout=1.0)


async def agrees(on: Nodes, lease: Any) -> None:
    """The node keeps the key for as long as the lease counts on it."""
    left = await on.nodes[0].command("PTTL", KEY)
    assert left >= lease.remaining() * 1000 - 1


KINDS = calls("strict", "semaphore", "several")


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_ttl_is_checked_as_that_of_a_lock_is(on: Nodes, kind: str) -> None:
    """A wrong one reaches no node."""
    held = await KINDS[kind](on.locks)
    lease = held.lease if kind == "election" else held
    before, seen = lease.remaining(), listen(on.nodes[0])
    for wrong in (LONGEST + 1, 1e9, float("inf"), float("nan"), "5", True, 0, -1, 0.5):
        with pytest.raises(asynclock.ConfigurationError, match="ttl"):
            await lease.extend(wrong)
        assert lease.remaining() == before
    assert seen == []
    await lease.extend(LONGEST)
    assert lease.remaining() > TTL
    await lease.release()


@virtual
async def test_a_usual_renewal_after_a_last_long_one_is_a_shorter_one(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=2.0, max_hold=6.0).acquire()
    await lease.extend(LONGEST)
    assert lease.remaining() > 4
    await lease.extend()
    await agrees(on, lease)


@pytest.mark.parametrize("renew", [True, False])
@virtual
async def test_max_hold_is_not_stepped_over(on: Nodes, *, renew: bool) -> None:
    lease = await on.locks.lock("a", ttl=2.0, max_hold=4.0, renew=renew).acquire()
    await lease.extend(LONGEST)
    assert 3.0 < lease.remaining() <= 4.0
    assert await on.nodes[0].command("PTTL", KEY) < 4500
    await lease.extend()
    assert lease.remaining() <= 4.0
    async with asyncio.timeout(5):
        await lease.wait_lost()


@virtual
async def test_a_lease_outlives_its_max_hold_only_by_its_first_ttl(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=4.0, max_hold=1.0).acquire()
    before = lease.remaining()
    await lease.extend(LONGEST)
    assert lease.remaining() == before, "an extension takes nothing away"
    await agrees(on, lease)


@virtual
async def test_what_ends_the_lease_sooner_is_refused(on: Nodes) -> None:
    """To end it is what `release` is for. A shorter ttl that ends later is taken."""
    lease, seen = await on.locks.lock("a").acquire(), listen(on.nodes[0])
    before = lease.remaining()
    with pytest.raises(asynclock.ConfigurationError, match="release it instead"):
        await lease.extend(TTL - 0.5)
    assert (lease.remaining(), lease.ttl, seen) == (before, TTL, [])
    await asyncio.sleep(TTL / 3 - 0.1)
    await lease.extend(TTL - 0.5)
    assert lease.ttl == TTL - 0.5
    assert lease.remaining() > TTL - 1
    await lease.release()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (TTL, LONGEST, LONGEST),
        (None, LONGEST, LONGEST),
        (LONGEST, None, LONGEST),  # it names no ttl, and so takes none back
    ],
)
@virtual
async def test_of_two_calls_at_once_the_second_ones_ttl_counts(
    on: Nodes, first: float | None, second: float | None, expected: float
) -> None:
    lease = await on.locks.lock("a").acquire()
    await asyncio.gather(lease.extend(first), lease.extend(second))
    assert lease.ttl == expected
    assert expected - 1 < lease.remaining() <= expected
    await agrees(on, lease)
    await lease.extend(LONGEST)
    assert lease.remaining() > TTL


@virtual
async def test_a_renewal_does_not_overtake_a_longer_call(on: Nodes) -> None:
    """It is due while the answer is out, and would let the keys end with the old ttl."""
    lease = await on.locks.lock("a", ttl=2).acquire()
    on.slow(0.45)  # a renewal is due after 0.67 s
    await lease.extend(LONGEST)
    assert lease.ttl == LONGEST
    assert lease.remaining() > LONGEST - 3
    await agrees(on, lease)


@virtual
async def test_a_renewal_between_two_answers_keeps_to_the_later_call(on: Nodes) -> None:
    lease, seen = await on.locks.lock("a", ttl=2).acquire(), listen(on.nodes[0])
    on.slow(0.4)  # a renewal is due every 0.67 s
    first = start(lease.extend(2))
    await until(lambda: seen, "the node has extended it")
    await lease.extend(LONGEST)
    await first
    assert lease.ttl == LONGEST
    assert lease.remaining() > LONGEST - 3
    on.slow(0.0)
    await lease.extend()
    assert lease.ttl == LONGEST
    assert await on.nodes[0].command("PTTL", KEY) > 1000 * (LONGEST - 3)


@on_three
async def test_the_later_calls_ttl_stays_when_the_earlier_one_is_answered_last(on: Nodes) -> None:
    """The first node's answer counts for the later call only: its quarantine ends in between."""
    async with on.connect(ttl=TTL, max_ttl=LONGEST, node_timeout=2.0) as locks:
        await go_through(locks.lock("warm"))
        await asyncio.sleep(0.1)
        on.nodes[0].flush()
        await until(lambda: locks.nodes()[0].state == "quarantined")
        await asyncio.sleep(locks.nodes()[0].votes_in - 3)
        lease = await locks.lock("a", renew=False).acquire()
        await on.nodes[0].command("SET", KEY, lease.owner, "PX", 60_000)
        await asyncio.sleep(locks.nodes()[0].votes_in - 0.5)
        on.ways[2].seconds = 0.9
        earlier = start(lease.extend(TTL))
        await until(lambda: locks.nodes()[0].votes_in == 0, every=0.01)
        await lease.extend(LONGEST)
        assert not earlier.done()
        assert lease.ttl == LONGEST
        await earlier
        assert lease.ttl == LONGEST
        assert lease.remaining() > LONGEST - 3
        on.slow(0.0)
