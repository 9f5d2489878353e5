"""What `extend` accepts, and what a lease is good for while its answer is out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock import _clock
from asynclock._engine.grant import Grant
from asynclock.testing import FaultProxy, LocalServer, memory_node
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.plugin import StartServers
from tests.nodes.test_late_acquires import Detour
from tests.waiting import PATIENCE, in_virtual_time, until

TTL, LONGEST = 5.0, 20.0


@pytest_asyncio.fixture
async def locks(asynclock_nodes: list[LocalServer]) -> AsyncIterator[asynclock.LockManager]:
    url = asynclock_nodes[0].url
    async with asynclock.connect(url, ttl=TTL, max_ttl=LONGEST, node_timeout=0.5) as locks:
        yield locks


KINDS: dict[str, Callable[[asynclock.LockManager], Awaitable[Any]]] = {
    "lock": lambda locks: locks.lock("a").acquire(),
    "reentrant_lock": lambda locks: locks.reentrant_lock("a").acquire(),
    "multi_lock": lambda locks: locks.multi_lock("a", "b").acquire(),
    "semaphore": lambda locks: locks.semaphore("a", 2).acquire(),
    "read": lambda locks: locks.rwlock("a").read().acquire(),
    "write": lambda locks: locks.rwlock("a").write().acquire(),
    "fair_lock": lambda locks: locks.fair_lock("a").acquire(),
}


@pytest.mark.parametrize("kind", [*KINDS, "election"])
async def test_a_ttl_is_checked_as_that_of_a_lock_is(
    locks: asynclock.LockManager, kind: str
) -> None:
    if kind == "election":
        lease = (await locks.election("a").campaign()).lease
    else:
        lease = await KINDS[kind](locks)
    before = lease.remaining()
    for wrong in (LONGEST + 1, 1e9, float("inf"), float("nan"), "5", True, 0, -1, 0.5):
        with pytest.raises(asynclock.ConfigurationError):
            await lease.extend(wrong)
        assert 0 < lease.remaining() <= before
    await lease.extend(LONGEST)
    assert lease.remaining() > TTL
    await lease.release()


async def test_a_wrong_ttl_reaches_no_node(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager
) -> None:
    lease = await locks.lock("a").acquire()
    with pytest.raises(asynclock.ConfigurationError, match="max_ttl"):
        await lease.extend(3600)
    assert await asynclock_nodes[0].command("PTTL", "asynclock:a") <= TTL * 1000


async def test_a_usual_renewal_after_a_last_long_one_is_a_shorter_one(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager
) -> None:
    lease = await locks.lock("a", ttl=1.0, max_hold=6.0).acquire()
    await lease.extend(LONGEST)
    assert lease.remaining() > 4
    await lease.extend()
    believed = lease.remaining() * 1000
    assert believed - 500 <= await asynclock_nodes[0].command("PTTL", "asynclock:a")
    lease = await locks.lock("b", ttl=4.0, max_hold=1.0).acquire()
    await lease.extend(2)
    believed = lease.remaining() * 1000
    assert believed - 500 <= await asynclock_nodes[0].command("PTTL", "asynclock:b")
    await lease.release()


@pytest.mark.parametrize("renew", [True, False])
async def test_max_hold_is_not_stepped_over(
    asynclock_nodes: list[LocalServer], locks: asynclock.LockManager, renew: bool
) -> None:
    lease = await locks.lock("a", ttl=1.0, max_hold=2.0, renew=renew).acquire()
    await lease.extend(LONGEST)
    assert 1.0 < lease.remaining() <= 2.0
    assert await asynclock_nodes[0].command("PTTL", "asynclock:a") < 2500
    await lease.extend()
    assert lease.remaining() <= 2.0
    async with asyncio.timeout(PATIENCE):
        await lease.wait_lost()


async def test_a_lease_outlives_its_max_hold_only_by_its_first_ttl(
    locks: asynclock.LockManager,
) -> None:
    lease = await locks.lock("a", ttl=4.0, max_hold=1.0).acquire()
    before = lease.remaining()
    await lease.extend(LONGEST)
    assert 3.0 < lease.remaining() <= before, "an extension takes nothing away"
    await lease.release()


async def test_a_shorter_ttl_counts_before_the_nodes_have_answered(
    asynclock_nodes: list[LocalServer],
) -> None:
    """They shorten the keys; if their answers are lost, the lease must not outlive these."""
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        async with asynclock.connect(
            proxy.url, ttl=30, max_ttl=30, node_timeout=0.2, restart_guard=False
        ) as locks:
            lease = await locks.lock("a").acquire()
            proxy.drop_replies()
            with pytest.raises(asynclock.QuorumUnavailableError):
                await lease.extend(2)
            assert await asynclock_nodes[0].command("PTTL", "asynclock:a") <= 2000
            assert lease.remaining() <= 2
            assert lease.ttl == 2
            proxy.heal()
            fence = lease.fence
            # It goes on as a lease of two seconds.
            await until(lambda: locks.statistics().renewed >= 2, timeout=10)
            assert lease.held
            assert lease.remaining() <= 2
            assert lease.fence == fence


async def test_an_older_request_does_not_undo_a_shorter_ttl(locks: asynclock.LockManager) -> None:
    lease = await locks.lock("a").acquire()
    await asyncio.gather(lease.extend(LONGEST), lease.extend(1))
    assert lease.remaining() <= 1
    await lease.extend(LONGEST)
    assert lease.remaining() > TTL


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (LONGEST, TTL, TTL),
        (TTL, LONGEST, LONGEST),
        (1.0, LONGEST, LONGEST),
        (None, LONGEST, LONGEST),
        (LONGEST, None, LONGEST),  # it names no ttl, and so takes none back
    ],
)
async def test_of_two_calls_at_once_the_second_ones_ttl_counts(
    asynclock_nodes: list[LocalServer],
    locks: asynclock.LockManager,
    first: float | None,
    second: float | None,
    expected: float,
) -> None:
    lease = await locks.lock("a").acquire()
    await asyncio.gather(lease.extend(first), lease.extend(second))
    assert lease.ttl == expected
    assert expected - 1 < lease.remaining() <= expected
    left = await asynclock_nodes[0].command("PTTL", "asynclock:a")
    assert left >= lease.remaining() * 1000 - 500


async def test_a_renewal_does_not_overtake_a_longer_call(
    asynclock_nodes: list[LocalServer],
) -> None:
    """It is due while the answer is out, and would let the keys end with the old ttl."""
    settings: dict[str, Any] = {"ttl": 2, "max_ttl": LONGEST, "node_timeout": 1.0}
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        async with asynclock.connect(proxy.url, restart_guard=False, **settings) as locks:
            lease = await locks.lock("a").acquire()
            proxy.delay(0.0, 0.9)  # a renewal is due after 0.67 s
            await lease.extend(LONGEST)
            assert lease.ttl == LONGEST
            assert lease.remaining() > LONGEST - 3
            left = await asynclock_nodes[0].command("PTTL", "asynclock:a")
            assert left >= lease.remaining() * 1000 - 500


async def test_a_lease_is_renewed_once_at_a_time(asynclock_nodes: list[LocalServer]) -> None:
    """A shorter ttl asks for a look at the lease at the moment that one was due anyway."""
    settings: dict[str, Any] = {"ttl": 2, "max_ttl": LONGEST, "node_timeout": 1.0}
    batches: list[Sequence[Grant]] = []
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        async with asynclock.connect(proxy.url, restart_guard=False, **settings) as locks:
            renewals = locks._engine.renewals
            extend = renewals.extend

            def counted(grants: Sequence[Grant], *rest: Any) -> None:
                batches.append(grants)
                extend(grants, *rest)

            renewals.extend = counted  # type: ignore[assignment, method-assign]
            lease = await locks.lock("a").acquire()
            assert lease._grant is not None
            due = lease._grant.alarm
            proxy.delay(0.0, 0.9)
            asking = asyncio.create_task(lease.extend(1.5))
            await asyncio.sleep(0)
            assert lease._grant.alarm == due
            await asyncio.sleep(due - _clock.now() + 0.1)
            assert not asking.done()
            assert [len(batch) for batch in batches] == [1, 1]
            proxy.heal()
            await asking


async def runs_scripts(node: LocalServer, times: int) -> bool:
    """Return whether the node has run scripts so often: each acquire, extend or release is one."""
    stats = await node.command("INFO", "commandstats")
    return sum(map(int, re.findall(r"cmdstat_eval\w*:calls=(\d+)", stats))) >= times


async def test_a_renewal_between_two_answers_keeps_to_the_later_call(
    asynclock_nodes: list[LocalServer],
) -> None:
    settings: dict[str, Any] = {"ttl": 2, "max_ttl": LONGEST, "node_timeout": 1.0}
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        async with asynclock.connect(proxy.url, restart_guard=False, **settings) as locks:
            lease = await locks.lock("a").acquire()
            proxy.delay(0.0, 0.9)  # a renewal is due every 0.67 s
            first = asyncio.create_task(lease.extend(2))
            await until(partial(runs_scripts, asynclock_nodes[0], 2), "the node has extended it")
            await lease.extend(LONGEST)
            await first
            assert lease.ttl == LONGEST
            assert lease.remaining() > LONGEST - 3
            proxy.heal()
            await lease.extend()
            assert lease.ttl == LONGEST
            assert await asynclock_nodes[0].command("PTTL", "asynclock:a") > 1000 * (LONGEST - 3)


async def test_the_later_calls_ttl_stays_when_the_earlier_one_is_answered_last(
    asynclock_servers: StartServers,
) -> None:
    """The first node's answer counts for the later call only: its quarantine ends in between."""
    first, second, third = await asynclock_servers(3)
    settings: dict[str, Any] = {"ttl": TTL, "max_ttl": LONGEST, "node_timeout": 2.0}
    async with FaultProxy(third) as proxy:
        urls = (first.url, second.url, proxy.url)
        async with asynclock.connect(*urls, restart_guard=False, **settings) as locks:
            lease = await locks.lock("a", renew=False).acquire()
            assert lease._grant is not None
            lease._grant.voters = (1, 2)
            proxy.delay(0.0, 1.0)
            trust = locks._engine.multiplexer.nodes[0].trust
            trust.votes_from = _clock.now() + PATIENCE
            earlier = asyncio.create_task(lease.extend(TTL))
            for server in (first, second):
                await until(partial(runs_scripts, server, 2), "the node has extended it")
            trust.votes_from = _clock.now()
            await lease.extend(LONGEST)
            assert not earlier.done()
            assert lease.ttl == LONGEST
            await earlier
            assert lease.ttl == LONGEST
            assert lease.remaining() > LONGEST - 3


@in_virtual_time
async def test_a_node_that_may_still_shorten_it_does_not_prolong_it() -> None:
    """The request of a connection that broke may be executed after one that came later."""
    node, detour = MemoryNode("a"), Detour()
    async with (
        asyncio.timeout(20),
        asynclock.connect(
            MemoryEndpoint("a", node, detour),
            ttl=5,
            max_ttl=30,
            node_timeout=0.1,
            restart_guard=False,
        ) as locks,
    ):
        lease = await locks.lock("a", renew=False).acquire()
        broken = locks._engine.multiplexer.nodes[0].link
        detour.seconds = 0.4
        shorter = asyncio.create_task(lease.extend(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        node.cut()
        detour.seconds = 0.0
        while locks._engine.multiplexer.nodes[0].link in (None, broken):
            await asyncio.sleep(0.001)
        with pytest.raises(asynclock.QuorumUnavailableError):
            await shorter
        with pytest.raises(asynclock.QuorumUnavailableError, match="too few") as raised:
            await lease.extend(20)
        assert "sooner" in raised.value.nodes["memory://a"]
        assert lease.remaining() <= 2
        await lease.extend(2)


@in_virtual_time
async def test_the_shortest_request_that_a_node_missed_counts() -> None:
    """A later one that it missed, too, for a longer time, doesn't take the place of the first."""
    names = ("memory://a", "memory://b", "memory://c")
    async with (
        asyncio.timeout(20),
        asynclock.connect(*names, ttl=30, node_timeout=0.1, restart_guard=False) as locks,
    ):
        lease = await locks.lock("a", renew=False).acquire()
        a, c = memory_node("a"), memory_node("c")
        a.durable = True
        a.kill()
        for ttl in (5, 20, 10):
            await lease.extend(ttl)
        a.restart()
        while locks.nodes()[0].state != "up":
            await asyncio.sleep(0.001)
        c.kill()
        with pytest.raises(asynclock.QuorumUnavailableError) as raised:
            await lease.extend(10)
        assert "sooner" in raised.value.nodes["memory://a"]
        await lease.extend(5)


@in_virtual_time
async def test_a_shorter_ttl_that_ends_later_may_cut_a_later_request_short() -> None:
    """A node that executes it late, after a request for more time, ends the lease too soon."""
    names = ("memory://a", "memory://b", "memory://c")
    async with (
        asyncio.timeout(30),
        asynclock.connect(
            *names, ttl=30, max_ttl=30, node_timeout=0.1, restart_guard=False
        ) as locks,
    ):
        lease = await locks.lock("a", renew=False).acquire()
        a, c = memory_node("a"), memory_node("c")
        a.durable = True
        await asyncio.sleep(10)
        a.kill()
        before = lease.remaining()
        await lease.extend(25)
        assert lease.remaining() > before, "it prolongs the lease, whose ttl is shorter now"
        a.restart()
        while locks.nodes()[0].state != "up":
            await asyncio.sleep(0.001)
        c.kill()
        with pytest.raises(asynclock.QuorumUnavailableError) as raised:
            await lease.extend(30)
        assert "sooner" in raised.value.nodes["memory://a"]
