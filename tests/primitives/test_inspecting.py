"""What a manager says about all that is held, and since when, on every deployment."""

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


async def all_held(locks: Locks) -> list[asynclock.Inspection]:
    await locks.ready(voting=True, timeout=PATIENCE)  # a Cluster's slots are known then
    return [one async for one in locks.inspect_all()]


async def clock(face: Face) -> float:
    seconds, _ = (await face.command("TIME"))[0]
    return float(seconds)


async def test_since_when_it_is_held(face: Face, pair: Pair) -> None:
    here, there = pair
    before = await clock(face)
    lease = await hold(here.lock("a"), timeout=PATIENCE)
    after = await clock(face)
    (found,) = await all_held(there)
    assert (found.name, found.kind, found.part) == ("a", "lock", "")
    assert found.owner == lease.owner
    assert found.since is not None
    assert before - OFF <= found.since <= after + 1 + OFF
    await lease.extend()
    (later,) = await all_held(there)
    assert later.since == found.since, "a renewal is no new acquire"
    assert await lease.release()
    lease = await hold(there.lock("a"), timeout=PATIENCE)
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


@in_virtual_time
async def test_an_owner_that_is_no_text_is_listed() -> None:
    await memory_node("a").command("SET", "asynclock:a", b"\xff", "PX", 60_000)
    async with asynclock.connect("memory://a") as locks:
        assert [one.owner for one in await all_held(locks)] == ["\ufffd"]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(("event", "a"), ("latch", "a 2"), ("barrier", "a 2"), ("multi_lock", "a b")),
        *(("fair_lock", "a"), ("semaphore", "a 2"), ("rwlock", "a"), ("election", "a")),
    ],
)
@in_virtual_time
async def test_what_is_inspected_has_its_kind_and_its_name(kind: str, given: str) -> None:
    words = [int(word) if word.isdigit() else word for word in given.split()]
    async with asynclock.connect("memory://", prefix="app:") as locks:
        found = await getattr(locks, kind)(*words).inspect()
    assert (found.name, found.kind) == ("a", kind)
