"""`lease.check()`: what the nodes say about a lease, on every deployment."""

import pytest

import asynclock
from asynclock.testing import memory_node
from tests.contract.faces import Face
from tests.contract.matrix import DEPLOYMENTS, faces
from tests.primitives.conftest import hold
from tests.waiting import in_virtual_time, until

Locks = asynclock.LockManager
Pair = tuple[Locks, Locks]
PATIENCE = 20.0

face = faces(DEPLOYMENTS)


async def take_away(face: Face) -> None:
    """Delete all locks behind the library's back, as an operator may."""
    for server in face.well:
        for key in await server.command("KEYS", "*"):
            if not key.endswith((":#fence", ":#primary", ":#witness")):
                await server.command("DEL", key)


async def test_a_lease_that_somebody_else_has_now(face: Face, pair: Pair) -> None:
    here, there = pair
    lease = await hold(here.lock("a"), timeout=PATIENCE)
    before = lease.remaining()
    assert await lease.check()
    assert lease.remaining() <= before, "a check renews nothing"
    await take_away(face)
    other = await hold(there.lock("a"), timeout=PATIENCE)
    assert await other.check()
    assert lease.held, "our own clock can't know"
    assert not await lease.check()
    assert not lease.held
    assert "no longer hold it" in (lease.lost_reason or "")
    assert await other.check(), "the release of what was lost leaves it alone"


@in_virtual_time
async def test_silent_nodes_say_nothing_about_a_lease() -> None:
    """The lease goes on until its deadline: an outage is no loss yet."""
    nodes = [memory_node(name) for name in "abc"]
    addresses = [f"memory://{node.name}" for node in nodes]
    async with asynclock.connect(*addresses, node_timeout=0.1, restart_guard=False) as locks:
        async with locks.lock("a").acquire(timeout=PATIENCE) as lease:
            for node in nodes[1:]:
                node.freeze()
            with pytest.raises(asynclock.QuorumUnavailableError) as caught:
                await lease.check()
            assert len(caught.value.nodes) == 2
            assert lease.held
            for node in nodes[1:]:
                node.thaw()
            await until(lambda: all(one.state == "up" for one in locks.nodes()), "all are back")
            assert await lease.check()


@in_virtual_time
async def test_a_node_in_quarantine_says_nothing_about_a_lease_won_without_it() -> None:
    """Its key may have replaced that of another owner, which it forgot."""
    nodes = a, b, c = [memory_node(name) for name in "abc"]
    addresses = [f"memory://{node.name}" for node in nodes]
    for node in nodes:
        node.born_ago(1000)
    async with asynclock.connect(*addresses, node_timeout=0.2, ttl=60) as locks:
        c.kill()
        lease = await locks.lock("a").acquire(timeout=PATIENCE)
        c.restart(keep_data=False)
        await until(lambda: locks.nodes()[2].state == "quarantined", "the third is back")
        await c.command("SET", "asynclock:a", lease.owner, "PX", "60000")
        assert await lease.check()
        b.kill()
        with pytest.raises(asynclock.QuorumUnavailableError, match="too few nodes") as caught:
            await lease.check()
        assert "quarantined" in caught.value.nodes[locks.nodes()[2].node]
        assert await a.command("GET", "asynclock:a")
        assert lease.held
