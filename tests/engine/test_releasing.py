"""When a release or a check is certain, and what the nodes' answers to it mean."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asynclock
from asynclock.events import Lost, Released
from asynclock.testing import lose
from tests.engine.virtual_nodes import GONE, KEY, NODE_TIMEOUT, Nodes, start, virtual
from tests.tables.inside import now
from tests.waiting import until

AT_ONCE = 0.05


async def takes(call: Awaitable[object]) -> float:
    """Return the seconds that `call` takes."""
    began = now()
    await call
    return now() - began


def notes(locks: asynclock.LockManager, kind: type[object]) -> list[asynclock.events.Event]:
    """Return a list that gets all events of one kind from now on."""
    seen: list[asynclock.events.Event] = []
    locks.observe(lambda event: seen.append(event) if isinstance(event, kind) else None)
    return seen


KINDS: dict[str, Callable[[asynclock.LockManager], Any]] = {
    "lock": lambda locks: locks.lock("a"),  # its release goes out with those of other names
    "semaphore": lambda locks: locks.semaphore("a", 2),
    "write": lambda locks: locks.rwlock("a").write(),
}


@pytest.mark.parametrize("left", ["by release", "by the end of the block"])
@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_release_that_no_node_gets_delays_nobody(on: Nodes, kind: str, left: str) -> None:
    async def work() -> None:
        async with KINDS[kind](on.locks) as lease:
            on.kill()
            await until(lambda: {one.state for one in on.locks.nodes()} == {"down"})
            if left == "by release":
                assert await lease.release()

    async with asyncio.timeout(20):
        assert await takes(work()) <= NODE_TIMEOUT + AT_ONCE


@virtual
async def test_two_nodes_without_the_lease_decide_although_the_third_is_silent(on: Nodes) -> None:
    lost = notes(on.locks, Lost)
    lease = await on.locks.lock("a").acquire()
    await asyncio.sleep(2)
    on.nodes[2].freeze()
    await on.command("DEL", KEY, only="ab")
    assert await takes(lease.release()) < AT_ONCE
    assert await lease.release() is False
    assert lease.lost_reason == GONE
    on.nodes[2].thaw()
    await asyncio.sleep(1)
    (event,) = lost
    assert isinstance(event, Lost)
    assert (event.name, event.owner, event.fence) == ("a", lease.owner, lease.fence)
    assert event.reason == GONE
    assert event.held == pytest.approx(2.0, abs=0.01)
    assert on.locks.statistics().lost == 1


async def handed_over(locks: asynclock.LockManager) -> asynclock.Lease:
    """A lease on a grant that another lease had for 0.05 s."""
    lock = locks.lock("a")
    first = await lock.acquire()
    waiting = start(lock.acquire())
    await until(lambda: locks.statistics().waiting)
    await asyncio.sleep(0.05)
    await first.release()
    second = await waiting
    assert second.owner == first.owner
    return second


@virtual
async def test_a_release_tells_how_long_it_was_held_and_what_was_left(on: Nodes) -> None:
    """Also where several leases follow each other on one grant."""
    released = notes(on.locks, Released)
    second = await handed_over(on.locks)
    await asyncio.sleep(2)
    left = second.remaining()
    await second.release()
    held = [event.held for event in released if isinstance(event, Released)]
    assert held == [pytest.approx(0.05, abs=0.02), pytest.approx(2.0, abs=0.01)]
    assert isinstance(released[1], Released)
    assert released[1].remaining == pytest.approx(left, abs=0.001)
    assert on.locks.statistics().released == 3, "and the first of the manager"


@virtual
async def test_a_loss_tells_how_long_the_lease_was_held_that_was_lost(on: Nodes) -> None:
    """The grant is older: another lease had it before."""
    lost = notes(on.locks, Lost)
    second = await handed_over(on.locks)
    await asyncio.sleep(0.02)
    lose(second)
    (event,) = lost
    assert isinstance(event, Lost)
    assert event.held == pytest.approx(0.02, abs=0.005)
    assert event.fence == second.fence


@virtual
async def test_an_outage_refuses_no_releases(on: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    lease = await on.locks.lock("a").acquire()
    on.nodes[0].freeze()
    await lease.release()
    await asyncio.sleep(2 * NODE_TIMEOUT)
    on.nodes[0].thaw()
    assert not [one for one in caplog.messages if "releases" in one]


@virtual
async def test_a_node_whose_quarantine_is_over_counts_in_a_check(on: Nodes) -> None:
    for node in on.nodes[:2]:
        node.flush()
    await until(lambda: [one.state for one in on.locks.nodes()][:2] == ["quarantined"] * 2)
    await on.locks.ready(voting=True)
    lease = await on.locks.lock("a").acquire()
    on.nodes[2].kill()
    assert await lease.check()


@virtual
async def test_a_check_of_a_lease_that_is_released_meanwhile_reports_no_loss(on: Nodes) -> None:
    lost = notes(on.locks, Lost)
    lease = await on.locks.lock("a").acquire()
    on.slow(0.2)
    checking = start(lease.check())
    await asyncio.sleep(0.01)
    await on.command("DEL", KEY)
    await on.command("SET", KEY, lease.owner, "PX", 300)
    releasing = start(lease.release())
    assert await checking is False
    assert await releasing
    assert not lost


@virtual
async def test_a_check_of_a_lease_that_has_ended_asks_no_node(on: Nodes) -> None:
    lease = await on.locks.lock("a", renew=False).acquire()
    loop: Any = asyncio.get_running_loop()
    loop.now += lease.remaining() + 0.01  # the loop was busy, so nothing has noticed the end
    on.go_mute()
    assert await takes(lease.check()) == 0.0
    assert not lease.held


@virtual
async def test_a_lease_that_ends_during_a_check_is_not_ours(on: Nodes) -> None:
    lease = await on.locks.lock("a", ttl=1.5, renew=False).acquire()
    await asyncio.sleep(1.3)
    on.slow(0.1)
    await on.command("PEXPIRE", KEY, 5000)  # as a server whose clock is slow
    assert await lease.check() is False


@virtual
async def test_a_closed_manager_checks_nothing(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    await on.locks.aclose()
    assert await lease.check() is False
    assert lease.lost_reason == "the manager was closed"
