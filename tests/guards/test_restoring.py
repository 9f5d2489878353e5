"""A node that lost a lease's key takes it back when it votes: a rolling restart loses none."""

from functools import partial
from typing import Any

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests.guards.conftest import Connect
from tests.waiting import until

SHORT = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.5}
"""Settings with which a restarted node votes again soon."""


async def leases_on_each(
    locks: asynclock.LockManager, servers: list[LocalServer]
) -> tuple[list[Any], set[str]]:
    """Leases whose keys each server has, though a quorum is enough to win them; and the keys."""
    term = await locks.election("e").campaign(timeout=20)
    wanted: list[Any] = [
        locks.lock("a"),
        locks.reentrant_lock("reentrant"),
        locks.multi_lock("b", "c"),
        *[locks.semaphore("s", 2)] * 2,
        *[locks.rwlock("reading").read()] * 2,
        locks.rwlock("writing").write(),
    ]
    leases = [term.lease, *[await one.acquire(timeout=20) for one in wanted]]
    keys = set().union(*[await lock_keys(server) for server in servers])
    assert len(keys) == 9
    for server in servers:
        await until(partial(has, server, keys))
    return leases, keys


async def test_rolling_restarts_lose_no_lease(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Nodes that keep nothing on disk, one after the other, each as soon as the last is back."""
    servers = await asynclock_servers(5, args=["--hz", "10"])
    locks = connect(*[server.url for server in servers], **SHORT)
    await locks.ready(voting=True, timeout=20)
    await until(lambda: all(node.state == "up" for node in locks.nodes()))
    leases, keys = await leases_on_each(locks, servers)
    for server in servers:
        await server.restart()
        await until(partial(has, server, keys))
        assert all(lease.held for lease in leases)
    for lease in leases:
        assert await lease.release()


async def lock_keys(server: LocalServer) -> set[str]:
    found = await server.command("KEYS", "*")
    return {key for key in found if not key.endswith((":#fence", ":#message", ":#witness"))}


async def has(server: LocalServer, keys: set[str]) -> bool:
    return keys <= set(await server.command("KEYS", "*"))
