"""What a manager says about all that is held, and since when, on every deployment."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing import memory_node
from asynclock.testing.servers.process import ReservedPort
from tests.contract.faces import Face
from tests.contract.matrix import DEPLOYMENTS, faces
from tests.primitives.conftest import hold
from tests.waiting import in_virtual_time

Locks = asynclock.LockManager
Pair = tuple[Locks, Locks]
PATIENCE = 20.0
OFF = 1.0
"""Seconds by which our reading of the nodes' clocks may be off on a busy machine."""

face = faces(DEPLOYMENTS)

LOCKS: dict[tuple[str, str], Callable[[Locks], Any]] = {
    ("lock", ""): lambda locks: locks.lock("a"),
    ("rwlock", "write"): lambda locks: locks.rwlock("a").write(),
    ("semaphore", "0"): lambda locks: locks.semaphore("a", 1),
}


async def all_held(locks: Locks) -> list[asynclock.Inspection]:
    await locks.ready(voting=True, timeout=PATIENCE)  # a Cluster's slots are known then
    return [one async for one in locks.inspect_all()]


async def clock(face: Face) -> float:
    seconds, _ = (await face.command("TIME"))[0]
    return float(seconds)


@pytest.mark.parametrize(("kind", "part"), LOCKS)
async def test_since_when_it_is_held(face: Face, pair: Pair, kind: str, part: str) -> None:
    here, there = pair
    before = await clock(face)
    lock = LOCKS[kind, part]
    lease = await hold(lock(here), timeout=PATIENCE)
    after = await clock(face)
    (found,) = await all_held(there)
    assert (found.name, found.kind, found.part) == ("a", kind, part)
    assert found.owner == lease.owner
    assert found.since is not None
    assert before - OFF <= found.since <= after + 1 + OFF
    await lease.extend()
    (later,) = await all_held(there)
    assert later.since == found.since, "a renewal is no new acquire"
    assert await lease.release()
    lease = await hold(lock(there), timeout=PATIENCE)
    (other,) = await all_held(here)
    assert other.owner == lease.owner
    assert other.since is not None
    assert other.since > found.since
    assert await lease.release()


async def test_everything_is_listed(face: Face, pair: Pair) -> None:
    here, there = pair
    assert await all_held(there) == []
    leases = [
        await hold(lock, timeout=PATIENCE)
        for lock in (here.lock("b"), here.rwlock("a").read(), there.semaphore("c", 1))
    ]
    found = await all_held(there)
    assert [(one.name, one.kind, one.part) for one in found] == [
        ("a", "rwlock", "read"),
        ("b", "lock", ""),
        ("c", "semaphore", "0"),
    ]
    assert {one.owner for one in found} == {lease.owner for lease in leases}
    assert found[0].since is None, "readers share a counter"
    assert found[1].since is not None
    async for one in there.inspect_all():
        assert one.name == "a"
        break  # the rest is not needed


async def test_the_first_call_of_a_manager_waits_for_its_connections(face: Face) -> None:
    """A Cluster's slots are not known yet: that is no reason to list nothing."""
    settings = {"restart_guard": False, **face.options, "node_timeout": 2.0}
    locks = asynclock.connect(*face.addresses, **settings)
    assert [one async for one in locks.inspect_all()] == []
    await locks.aclose()


async def test_since_outlives_a_hand_over(pair: Pair) -> None:
    """Each lease has a fence of its own, some µs above the last."""
    lock = pair[0].lock("a")
    first = await hold(lock, timeout=PATIENCE)
    before = (await pair[1].inspect("a")).since
    waiter = asyncio.create_task(hold(lock, timeout=PATIENCE))
    await asyncio.sleep(0)
    await first.release()
    second = await waiter
    after = (await pair[1].inspect("a")).since
    assert before is not None
    assert after is not None
    if second.owner == first.owner:
        assert before <= after < before + 0.1
    else:
        assert before < after


@pytest.mark.parametrize(
    ("owner", "fence"),
    [
        ("0" * 32 + ":h:1", 7),
        ("0" * 32 + ":h:1", 2**60),
        ("of another library", 1_800_000_000_000_000),
        (None, 1_800_000_000_000_000),
    ],
)
def test_what_says_nothing_about_the_time(owner: str | None, fence: int) -> None:
    views = tuple(asynclock.NodeView(f"{node}:1", owner, 1.0, fence) for node in "abc")
    assert asynclock.Inspection("a", views, 2).since is None


async def test_a_cluster_that_cannot_be_reached_is_not_listed_as_empty() -> None:
    with ReservedPort() as port:
        locks = asynclock.connect(f"redis+cluster://127.0.0.1:{port}", node_timeout=0.2)
        with pytest.raises(asynclock.QuorumUnavailableError, match="Connection refused"):
            [one async for one in locks.inspect_all()]
        await locks.aclose()


@in_virtual_time
async def test_a_list_that_may_lack_something_is_an_error() -> None:
    nodes = [memory_node(name) for name in "abc"]
    addresses = [f"memory://{node.name}" for node in nodes]
    async with asynclock.connect(*addresses, node_timeout=0.1, restart_guard=False) as locks:
        async with locks.lock("a").acquire(timeout=PATIENCE):
            nodes[0].freeze()
            assert [one.name for one in await all_held(locks)] == ["a"]
            nodes[1].freeze()
            with pytest.raises(asynclock.QuorumUnavailableError) as caught:
                async for _ in locks.inspect_all():
                    pass
            assert len(caught.value.nodes) == 2
            for node in nodes:
                node.thaw()


@pytest.mark.parametrize("kind", ["event", "latch", "barrier"])
@in_virtual_time
async def test_shared_state_is_inspected_under_its_name(kind: str) -> None:
    async with asynclock.connect("memory://", prefix="app:") as locks:
        state = locks.event("a") if kind == "event" else getattr(locks, kind)("a", 2)
        found = await state.inspect()
    assert (found.name, found.kind) == ("a", kind)
