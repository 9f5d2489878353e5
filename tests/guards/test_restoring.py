"""A node that lost a lease's key takes it back when it votes: a rolling restart loses none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.guards.conftest import Connect
from tests.waiting import until

KEY = "asynclock:a"
SHORT = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.5}
"""Settings with which a restarted node votes again soon."""


async def leases_of_all_kinds(locks: asynclock.LockManager) -> list[Any]:
    wishes: list[Awaitable[Any]] = [
        locks.lock("a").acquire(timeout=20),
        locks.reentrant_lock("reentrant").acquire(timeout=20),
        locks.multi_lock("b", "c").acquire(timeout=20),
        locks.semaphore("s", 2).acquire(timeout=20),
        locks.semaphore("s", 2).acquire(timeout=20),
        locks.rwlock("reading").read().acquire(timeout=20),
        locks.rwlock("reading").read().acquire(timeout=20),
        locks.rwlock("writing").write().acquire(timeout=20),
    ]
    term = await locks.election("e").campaign(timeout=20)
    return [term.lease, *[await wish for wish in wishes]]


async def leases_on_each(
    locks: asynclock.LockManager, servers: list[LocalServer]
) -> tuple[list[Any], set[str]]:
    """Leases whose keys each server has, though a quorum is enough to win them; and the keys."""
    leases = await leases_of_all_kinds(locks)
    keys = set().union(*[await lock_keys(server) for server in servers])
    assert len(keys) == 9
    for server in servers:
        await until(partial(has, server, keys))
    return leases, keys


async def test_a_rolling_restart_loses_no_lease(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Nodes that keep nothing on disk, one after the other, each as soon as the last is back."""
    servers = await asynclock_servers(5, args=["--hz", "10"])
    locks = connect(*[server.url for server in servers], **SHORT)
    await everybody_votes(locks)
    leases, keys = await leases_on_each(locks, servers)
    for server in servers:
        await server.restart()
        await until(partial(has, server, keys))
        assert all(lease.held for lease in leases)
    for lease in leases:
        assert await lease.release()


async def test_a_lease_won_while_a_node_had_no_vote_outlives_the_next_restart(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    servers, locks = await young(asynclock_servers, connect)
    await servers[0].restart()
    await until(lambda: quarantined(locks, 0))
    leases, keys = await leases_on_each(locks, servers)
    await servers[1].restart()
    await until(partial(has, servers[1], keys))
    assert all(lease.held for lease in leases)
    for lease in leases:
        assert await lease.release()


async def test_a_process_that_acquires_nothing_else_gets_its_key_back(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Its only acquire was sent before it knew any clock, which a request to put back needs."""
    servers, _ = await young(asynclock_servers, connect)
    # Then the servers are too old for a first contact to be guarded.
    await asyncio.sleep(SHORT["max_ttl"] + 0.1)
    urls = [server.url for server in servers]
    locks = connect(*urls, **SHORT)
    lease = await locks.lock("a").acquire(timeout=20)
    await servers[1].restart()
    await until(lambda: has(servers[1], {KEY}))
    assert lease.held


async def test_the_counter_rises_with_the_key(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    servers, locks = await young(asynclock_servers, connect)
    lease = await locks.lock("a").acquire(timeout=20)
    await servers[1].restart()
    await until(lambda: has(servers[1], {KEY}))
    assert int(await servers[1].command("GET", f"{KEY}:#fence")) >= lease.fence
    assert 0 < await servers[1].command("PTTL", KEY) <= 1000 * SHORT["ttl"]
    await lease.release()
    async with locks.lock("a") as later:
        assert later.fence > lease.fence


async def test_a_key_that_was_deleted_by_hand_stays_deleted(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Also on a node that has restarted once during the lease and got the key back."""
    servers, locks = await young(asynclock_servers, connect)
    lease = await locks.lock("a").acquire(timeout=20)
    await servers[0].restart()
    await until(lambda: has(servers[0], {KEY}))
    before = locks.statistics().renewed
    await servers[0].command("DEL", KEY)
    await servers[1].command("DEL", KEY)
    await until(lambda: renewed(locks, before + 3))
    assert await servers[0].command("EXISTS", KEY) == 0
    assert await servers[1].command("EXISTS", KEY) == 0
    assert lease.held
    await servers[2].command("DEL", KEY)
    await asyncio.wait_for(lease.wait_lost(), 10)


async def test_somebody_elses_key_is_left_alone(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    servers, locks = await young(asynclock_servers, connect)
    lease = await locks.lock("a").acquire(timeout=20)
    await servers[0].restart()
    await servers[0].command("SET", KEY, "somebody else", "PX", 60000)
    await until(lambda: votes(locks, 0))
    before = locks.statistics().renewed
    await until(lambda: renewed(locks, before + 3))
    assert await servers[0].command("GET", KEY) == "somebody else"
    await servers[0].command("DEL", KEY)  # it has had its try: once it is free, it is ours again
    await until(lambda: has(servers[0], {KEY}))
    assert lease.held


async def test_a_reader_comes_back_while_a_writer_waits(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    servers, locks = await young(asynclock_servers, connect)
    lease = await locks.rwlock("a").read().acquire(timeout=20)
    writing = asyncio.create_task(taken(locks.rwlock("a").write()))
    readers = f"{KEY}:#readers"
    await until(partial(has, servers[0], {readers}))
    for server in servers[:3]:
        await server.restart()
        await until(partial(has, server, {readers}))
    assert lease.held
    assert not writing.done()
    await lease.release()
    await asyncio.wait_for(writing, 10)


async def young(
    start: StartServers, connect: Connect
) -> tuple[list[LocalServer], asynclock.LockManager]:
    """Servers that all vote since a moment, and a manager."""
    servers = await start(5, args=["--hz", "10"])
    locks = connect(*[server.url for server in servers], **SHORT)
    await everybody_votes(locks)
    return servers, locks


async def everybody_votes(locks: asynclock.LockManager) -> None:
    async with locks.lock("before").acquire(timeout=20):
        await until(lambda: all_vote(locks))


async def taken(lock: Any) -> None:
    async with lock:
        pass


async def votes(locks: asynclock.LockManager, number: int) -> bool:
    node = locks.nodes()[number]
    return node.state == "up" and node.votes_in == 0


async def renewed(locks: asynclock.LockManager, times: int) -> bool:
    return locks.statistics().renewed >= times


async def lock_keys(server: LocalServer) -> set[str]:
    found = await server.command("KEYS", "*")
    return {key for key in found if not key.endswith((":#fence", ":#value", ":#witness"))}


async def has(server: LocalServer, keys: set[str]) -> bool:
    return keys <= set(await server.command("KEYS", "*"))


async def all_vote(locks: asynclock.LockManager) -> bool:
    return all(node.state == "up" for node in locks.nodes())


async def quarantined(locks: asynclock.LockManager, node: int) -> bool:
    return locks.nodes()[node].state == "quarantined"
