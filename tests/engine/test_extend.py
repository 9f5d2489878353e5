"""What `extend` accepts, and what a lease is good for while its answer is out. In virtual time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asynclock
from tests.engine.batches import listen
from tests.engine.virtual_nodes import KEY, Nodes, start, virtual_single
from tests.engine.virtual_nodes import virtual as on_three
from tests.waiting import until

TTL, LONGEST = 5.0, 20.0
SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": LONGEST, "node_timeout": 1.0}
Scenario = Callable[..., Awaitable[None]]


def virtual(scenario: Scenario) -> Callable[..., None]:
    """Make a test that plays `scenario` on one node, with a manager that has met it."""

    async def play(on: Nodes, **given: Any) -> None:
        async with on.connect(**SETTINGS) as locks:
            async with locks.lock("warm"):
                pass
            await scenario(on, locks, **given)
            on.slow(0.0)

    play.__name__, play.__doc__ = scenario.__name__, scenario.__doc__
    first, _, *parameters = inspect.signature(scenario).parameters.values()
    play.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    return virtual_single(play)


async def agrees(on: Nodes, lease: Any, key: bytes = KEY) -> None:
    """The node keeps the key for as long as the lease counts on it."""
    left = await on.nodes[0].command("PTTL", key)
    assert left >= lease.remaining() * 1000 - 1


KINDS: dict[str, Callable[[asynclock.LockManager], Awaitable[Any]]] = {
    "lock": lambda locks: locks.lock("a").acquire(),
    "reentrant_lock": lambda locks: locks.reentrant_lock("a").acquire(),
    "multi_lock": lambda locks: locks.multi_lock("a", "b").acquire(),
    "semaphore": lambda locks: locks.semaphore("a", 2).acquire(),
    "read": lambda locks: locks.rwlock("a").read().acquire(),
    "write": lambda locks: locks.rwlock("a").write().acquire(),
    "fair_lock": lambda locks: locks.fair_lock("a").acquire(),
    "election": lambda locks: locks.election("a").campaign(),
}


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_ttl_is_checked_as_that_of_a_lock_is(
    on: Nodes, locks: asynclock.LockManager, kind: str
) -> None:
    """A wrong one reaches no node."""
    held = await KINDS[kind](locks)
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
async def test_a_usual_renewal_after_a_last_long_one_is_a_shorter_one(
    on: Nodes, locks: asynclock.LockManager
) -> None:
    lease = await locks.lock("a", ttl=2.0, max_hold=6.0).acquire()
    await lease.extend(LONGEST)
    assert lease.remaining() > 4
    await lease.extend()
    await agrees(on, lease)
    other = await locks.lock("b", ttl=4.0, max_hold=2.0).acquire()
    await other.extend(2)
    await agrees(on, other, b"asynclock:b")


@pytest.mark.parametrize("renew", [True, False])
@virtual
async def test_max_hold_is_not_stepped_over(
    on: Nodes, locks: asynclock.LockManager, *, renew: bool
) -> None:
    lease = await locks.lock("a", ttl=2.0, max_hold=4.0, renew=renew).acquire()
    await lease.extend(LONGEST)
    assert 3.0 < lease.remaining() <= 4.0
    assert await on.nodes[0].command("PTTL", KEY) < 4500
    await lease.extend()
    assert lease.remaining() <= 4.0
    async with asyncio.timeout(5):
        await lease.wait_lost()


@virtual
async def test_a_lease_outlives_its_max_hold_only_by_its_first_ttl(
    on: Nodes, locks: asynclock.LockManager
) -> None:
    lease = await locks.lock("a", ttl=4.0, max_hold=1.0).acquire()
    before = lease.remaining()
    await lease.extend(LONGEST)
    assert lease.remaining() == before, "an extension takes nothing away"
    await agrees(on, lease)


@virtual_single
async def test_a_shorter_ttl_counts_before_the_nodes_have_answered(on: Nodes) -> None:
    """They shorten the keys; if their answers are lost, the lease must not outlive these."""
    async with on.connect(**{**SETTINGS, "node_timeout": 0.1}) as locks:
        lease = await locks.lock("a", ttl=LONGEST).acquire()
        on.slow(0.02)
        fence, extending = lease.fence, start(lease.extend(2))
        await asyncio.sleep(0.03)
        on.ways[0].go_mute()
        with pytest.raises(asynclock.QuorumUnavailableError):
            await extending
        assert await on.nodes[0].command("PTTL", KEY) <= 2000
        assert lease.remaining() <= 2
        assert lease.ttl == 2
        before = locks.statistics().renewed
        await until(lambda: locks.statistics().renewed >= before + 2, timeout=10)
        assert lease.held, "it goes on as a lease of two seconds"
        assert lease.remaining() <= 2
        assert lease.fence == fence


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (LONGEST, TTL, TTL),
        (LONGEST, 2.0, 2.0),
        (TTL, LONGEST, LONGEST),
        (2.0, LONGEST, LONGEST),
        (None, LONGEST, LONGEST),
        (LONGEST, None, LONGEST),  # it names no ttl, and so takes none back
    ],
)
@virtual
async def test_of_two_calls_at_once_the_second_ones_ttl_counts(
    on: Nodes,
    locks: asynclock.LockManager,
    first: float | None,
    second: float | None,
    expected: float,
) -> None:
    lease = await locks.lock("a").acquire()
    await asyncio.gather(lease.extend(first), lease.extend(second))
    assert lease.ttl == expected
    assert expected - 1 < lease.remaining() <= expected
    await agrees(on, lease)
    await lease.extend(LONGEST)
    assert lease.remaining() > TTL


@virtual
async def test_a_renewal_does_not_overtake_a_longer_call(
    on: Nodes, locks: asynclock.LockManager
) -> None:
    """It is due while the answer is out, and would let the keys end with the old ttl."""
    lease = await locks.lock("a", ttl=2).acquire()
    on.slow(0.45)  # a renewal is due after 0.67 s
    await lease.extend(LONGEST)
    assert lease.ttl == LONGEST
    assert lease.remaining() > LONGEST - 3
    await agrees(on, lease)


@virtual
async def test_a_lease_is_renewed_once_at_a_time(on: Nodes, locks: asynclock.LockManager) -> None:
    """A shorter ttl asks for a look at the lease at the moment that one was due anyway."""
    lease, seen = await locks.lock("a", ttl=2).acquire(), listen(on.nodes[0])
    on.slow(0.45)
    asking = start(lease.extend(1.5))
    await asyncio.sleep(2 / 3 + 0.1)
    assert not asking.done()
    on.slow(0.0)
    await asking
    await asyncio.sleep(0.01)
    assert seen == ["extend", "extend"]


@virtual
async def test_a_renewal_between_two_answers_keeps_to_the_later_call(
    on: Nodes, locks: asynclock.LockManager
) -> None:
    lease, seen = await locks.lock("a", ttl=2).acquire(), listen(on.nodes[0])
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
        async with locks.lock("warm"):
            pass
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


@virtual
async def test_a_node_that_may_still_shorten_it_does_not_prolong_it(
    on: Nodes, locks: asynclock.LockManager
) -> None:
    """The request of a connection that broke may be executed after one that came later."""
    lease = await locks.lock("a", renew=False).acquire()
    on.slow(0.4)
    shorter = start(lease.extend(2))
    await asyncio.sleep(0.1)
    on.nodes[0].cut()
    on.slow(0.0)
    with pytest.raises(asynclock.QuorumUnavailableError):
        await shorter
    await until(lambda: locks.nodes()[0].state == "up")
    with pytest.raises(asynclock.QuorumUnavailableError, match="too few") as raised:
        await lease.extend(20)
    assert "sooner" in raised.value.nodes["memory://a"]
    assert lease.remaining() <= 2
    await lease.extend(2)


@pytest.mark.parametrize(
    ("waits", "missed", "refused", "allowed"),
    [
        # Of several that a node missed, the shortest counts, and not the last.
        (0.0, (5, 20, 10), 10, 5),
        # A shorter ttl that ends later than the lease may cut a later request short as well.
        (10.0, (25,), 30, 25),
    ],
)
@on_three
async def test_a_node_that_missed_a_shorter_ttl_prolongs_nothing_beyond_it(
    on: Nodes, waits: float, missed: tuple[float, ...], refused: float, allowed: float
) -> None:
    settings: dict[str, Any] = {"ttl": 30.0, "max_ttl": 30.0, "node_timeout": 0.1}
    async with on.connect(restart_guard=False, **settings) as locks:
        lease = await locks.lock("a", renew=False).acquire()
        on.nodes[0].durable = True
        await asyncio.sleep(waits)
        on.nodes[0].kill()
        for ttl in missed:
            await lease.extend(ttl)
        on.nodes[0].restart()
        await until(lambda: locks.nodes()[0].state == "up", every=0.001)
        on.nodes[2].kill()
        with pytest.raises(asynclock.QuorumUnavailableError) as raised:
            await lease.extend(refused)
        assert "sooner" in raised.value.nodes["memory://a"]
        await lease.extend(allowed)
