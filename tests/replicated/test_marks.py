"""A promoted replica may have missed a grant: it has no vote until that grant must have ended."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

import asynclock
from asynclock._rules.validity import quarantine
from asynclock.events import Event, NodeQuarantined
from asynclock.testing import LocalServer, RedisCluster, Replicated, SentinelGroup, Topology, until
from asynclock.testing.topology import follow, in_sync
from tests.replicated.conftest import Connect
from tests.replicated.topologies import Topologies
from tests.waiting import refused

T = TypeVar("T")
TTL, CONFIRMED = 1.0, 2.0
GUARD = {"ttl": TTL, "max_ttl": TTL}


async def grown_up(group: Replicated) -> None:
    """Wait until a process is older than any lease: the younger ones prove nothing."""

    async def old(server: LocalServer) -> bool:
        info = await server.command("INFO", "server")
        line = next(line for line in info.splitlines() if line.startswith("uptime_in_seconds:"))
        return int(line.partition(":")[2]) > TTL + 3

    for server in group.servers:
        await until(partial(old, server), "servers older than the longest ttl")


async def forgotten(group: Replicated, grant: Callable[[], Awaitable[T]]) -> T:
    """Let the primary grant something, fall silent before it was replicated, and be replaced.

    It is frozen rather than killed, for the sake of tests that need processes of some age.
    """
    for replica in group.replicas:
        await replica.freeze()
    # What went out before is in the replicas' buffers; on a closed connection nothing follows.
    await group.primary.command("CLIENT", "KILL", "TYPE", "replica")
    granted = await grant()
    await group.primary.freeze()
    for replica in group.replicas:
        await replica.thaw()
    await group.fail_over(kill=False)
    return granted


async def seen_before(group: Replicated, connect: Connect, **options: object) -> None:
    """Others have used the primary for long."""
    first = connect(*group.addresses, acks=1, **GUARD, **options)
    async with first.lock("warm", timeout=20):
        await group.ready()
    await group.primary.command("WAIT", "2", "2000")


async def verdict(locks: asynclock.LockManager) -> tuple[str, str]:
    """State and cause of the one node once it has been met."""
    while True:
        await locks.ready()
        (node,) = locks.nodes()
        if node.state in ("up", "quarantined"):
            return node.state, node.cause


@pytest.mark.parametrize("guard", [True, False])
async def test_without_acks_a_failover_forgets_and_the_guard_waits(
    elders: Replicated, connect: Connect, guard: bool
) -> None:
    """The client that comes after the failover has never met the old primary."""
    await grown_up(elders)
    await seen_before(elders, connect)
    careless = connect(*elders.addresses, **GUARD)  # acks=0: no other server has its grants
    await careless.ready()

    async def grant() -> asynclock.Lease:
        return await careless.lock("a", renew=False).acquire(timeout=20)

    lease = await forgotten(elders, grant)
    newcomer = connect(*elders.addresses, acks=1, restart_guard=guard, **GUARD)
    async with newcomer.lock("a", timeout=20):
        # Both at once is what must never be, and what happens without the guard.
        assert lease.held is not guard


async def test_an_acknowledged_lease_outlives_failover(group: Replicated, connect: Connect) -> None:
    holder = connect(*group.addresses, acks=2, restart_guard=False)
    lease = await holder.lock("a", ttl=9, renew=False).acquire(timeout=20)
    await group.fail_over()
    other = connect(*group.addresses, acks=1, restart_guard=False)
    assert await refused(other.lock("a"))
    assert lease.held


async def test_a_replica_that_was_away_and_is_promoted_waits_also_with_all_acks(
    elders: Replicated, connect: Connect
) -> None:
    """While it was away "all" did not mean it, and its old data can't tell."""
    await grown_up(elders)
    async with connect(*elders.addresses, acks="all", **GUARD).lock("a", timeout=20):
        pass
    stale = elders.replicas[-1]
    await in_sync(elders.primary, elders.replicas)
    await stale.command("REPLICAOF", "NO", "ONE")
    await until(partial(replicas_left, elders.primary, 1), "the primary has lost a replica")
    holder = connect(*elders.addresses, acks="all", **GUARD)
    lease = await holder.lock("a").acquire(timeout=20)
    await follow(elders.replicas[0], stale)  # as after any failover
    await until(partial(replicas_left, stale, 1), "the heir has a replica")
    newcomer = connect(stale.url, acks="all", **GUARD)
    assert (await verdict(newcomer))[0] == "quarantined"
    assert await lease.release()
    await elders.repair()


async def replicas_left(server: LocalServer, count: int) -> bool:
    return f"connected_slaves:{count}" in await server.command("INFO", "replication")


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_a_new_primary_waits_until_others_have_stopped_asking_the_old_one(
    kind: str, connect: Connect, topologies: Topologies
) -> None:
    group: Topology
    if kind == "sentinel":
        group = await topologies.get(kind, lambda: SentinelGroup(2, 3))
    else:
        group = await topologies.get(kind, lambda: RedisCluster(3, 1))
    seen: list[Event] = []
    locks = connect(*group.addresses, observers=[seen.append], **GUARD)
    async with locks.lock("a", timeout=20):
        waits = [event.seconds for event in seen if isinstance(event, NodeQuarantined)]
    assert waits
    assert min(waits) >= quarantine(TTL + CONFIRMED) - 0.5  # since the mark was left
