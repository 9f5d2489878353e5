"""A promoted replica may have missed a grant: nobody counts its votes until that must be over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

import asynclock
from asynclock.testing import LocalServer, Replicated, until
from tests.replicated.conftest import Connect
from tests.replicated.topologies import refused

T = TypeVar("T")
TTL = 1.0
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


async def test_the_first_client_waits_and_later_ones_do_not(
    elders: Replicated, connect: Connect
) -> None:
    begin = time.monotonic()
    async with connect(*elders.addresses, acks=1, **GUARD).lock("a", timeout=20):
        assert time.monotonic() - begin >= TTL
    await grown_up(elders)
    later = connect(*elders.addresses, acks=1, **GUARD)
    assert await verdict(later) == ("up", "")


@pytest.mark.parametrize("guard", [True, False])
async def test_without_acks_a_failover_forgets_and_the_guard_waits(
    elders: Replicated, connect: Connect, guard: bool
) -> None:
    """The client that comes after the failover has never met the old primary."""
    await grown_up(elders)
    await seen_before(elders, connect)
    careless = connect(*elders.addresses, **GUARD)  # acks=0: nobody else has what it is granted
    await careless.ready()

    async def grant() -> asynclock.Lease:
        return await careless.lock("a", renew=False).acquire(timeout=20)

    lease = await forgotten(elders, grant)
    newcomer = connect(*elders.addresses, acks=1, restart_guard=guard, **GUARD)
    async with newcomer.lock("a", timeout=20):
        # Both at once is what must never be, and what happens without the guard.
        assert lease.held is not guard


async def test_with_acks_nothing_that_could_be_forgotten_was_granted(
    elders: Replicated, connect: Connect
) -> None:
    locks = connect(*elders.addresses, acks=1, restart_guard=False)
    assert await locks.lock("warm").acquire(timeout=20)

    async def grant() -> None:
        with pytest.raises(asynclock.QuorumUnavailableError, match="0 of 1 replicas"):
            await locks.lock("a").try_acquire()

    await forgotten(elders, grant)
    newcomer = connect(*elders.addresses, acks=1, restart_guard=False)
    assert await newcomer.lock("a").acquire(timeout=20)


async def test_an_acknowledged_lease_outlives_the_failover(
    group: Replicated, connect: Connect
) -> None:
    holder = connect(*group.addresses, acks=2, restart_guard=False)
    lease = await holder.lock("a", ttl=9, renew=False).acquire(timeout=20)
    await group.fail_over()
    other = connect(*group.addresses, acks=1, restart_guard=False)
    assert await refused(other.lock("a"))
    assert lease.held


async def test_if_all_replicas_had_everything_the_heir_votes_at_once(
    elders: Replicated, connect: Connect
) -> None:
    await grown_up(elders)
    old = connect(*elders.addresses, acks="all", **GUARD)
    async with old.lock("a", timeout=20):
        pass
    await elders.primary.command("WAIT", "2", "2000")
    await elders.fail_over(kill=False)
    newcomer = connect(*elders.addresses, acks="all", **GUARD)
    assert await verdict(newcomer) == ("up", "")
    lease = await newcomer.lock("a").acquire(timeout=20)
    assert await lease.release()


async def test_one_careless_client_ends_that_privilege(
    elders: Replicated, connect: Connect
) -> None:
    await grown_up(elders)
    async with connect(*elders.addresses, acks="all", **GUARD).lock("a", timeout=20):
        await connect(*elders.addresses, acks=1, **GUARD).lock("b").acquire(timeout=20)
    await elders.primary.command("WAIT", "2", "2000")
    await elders.fail_over(kill=False)
    newcomer = connect(*elders.addresses, acks="all", **GUARD)
    state, cause = await verdict(newcomer)
    assert state == "quarantined"
    assert "became the primary" in cause


async def test_a_restarted_empty_primary_waits_even_so(group: Replicated, connect: Connect) -> None:
    """All replicas then copy its emptiness: that they acknowledge is worth nothing."""
    async with connect(*group.addresses, acks="all", **GUARD).lock("a", timeout=20):
        pass
    await group.primary.restart()
    await group.ready()
    newcomer = connect(*group.addresses, acks="all", **GUARD)
    assert (await verdict(newcomer))[0] == "quarantined"


async def test_a_primary_that_was_replaced_meanwhile_is_new_again(
    elders: Replicated, connect: Connect
) -> None:
    """The same process as before, but another one granted in between."""
    first = elders.primary
    await seen_before(elders, connect)
    watcher = connect(*elders.addresses, acks=1, **GUARD)
    assert await watcher.lock("x").acquire(timeout=20)
    second = await elders.fail_over(kill=False)
    async with connect(second.url, acks=1, **GUARD).lock("b", timeout=20):
        pass
    await second.command("WAIT", "2", "2000")
    await second.command("REPLICAOF", first.host, first.port)
    await first.command("REPLICAOF", "NO", "ONE")
    elders.primary = first
    async with asyncio.timeout(20):
        while [node.state for node in watcher.nodes()] != ["quarantined"]:
            await asyncio.sleep(0.02)
    await elders.repair()
