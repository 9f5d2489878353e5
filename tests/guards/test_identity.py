"""Nodes that are not what the address list says: the same one twice, a replica, an evicting one."""

import logging

import pytest

import asynclock
from asynclock.testing.plugin import StartServers
from tests.guards.conftest import Connect
from tests.waiting import becomes, go_through, until


def _twice(port: int) -> list[str]:
    return [f"redis://127.0.0.1:{port}", f"redis://localhost:{port}"]


async def test_one_server_never_votes_twice(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Not even in the first attempt, asked before anybody knew who the nodes are."""
    one, dead = await asynclock_servers(2)
    await dead.kill()
    locks = connect(*_twice(one.port), dead.url, restart_guard=False)
    with pytest.raises(asynclock.AsyncLockError):
        await locks.lock("a").try_acquire()
    with pytest.raises(asynclock.ConfigurationError, match="are the same server"):
        await locks.lock("a").acquire(timeout=10)


async def test_a_replica_does_not_vote(asynclock_servers: StartServers, connect: Connect) -> None:
    servers = await asynclock_servers(3, args=["--hz", "10"])
    await servers[2].command("REPLICAOF", servers[0].host, str(servers[0].port))
    locks = connect(*[server.url for server in servers], restart_guard=False)
    await locks.ready()
    await _until_state(locks, "rejected", 2)
    assert "not a primary" in locks.nodes()[2].cause
    lease = await locks.lock("a").acquire(timeout=5)
    assert lease.held
    alone = connect(servers[2].url, restart_guard=False)
    with pytest.raises(asynclock.ConfigurationError, match="not a primary"):
        await alone.lock("a").acquire(timeout=5)


async def test_a_replica_that_is_promoted_votes_once_it_may(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    """Before, other clients may have been granted what it knows nothing of."""
    primary, replica = await asynclock_servers(2, args=["--hz", "10"])
    await replica.command("REPLICAOF", primary.host, str(primary.port))
    locks = connect(replica.url, ttl=2.0, max_ttl=2.0)
    await locks.ready()
    await _until_state(locks, "rejected")
    await replica.command("REPLICAOF", "NO", "ONE")
    await _until_state(locks, "quarantined")
    assert "was a replica at the last connection" in locks.nodes()[0].cause
    async with locks.lock("a").acquire(timeout=10) as lease:
        assert lease.held


async def test_a_primary_that_is_demoted_and_promoted_again(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    primary, other = await asynclock_servers(2, args=["--hz", "10"])
    locks = connect(primary.url, ttl=2.0, max_ttl=2.0)
    await go_through(locks.lock("a"))
    await primary.command("REPLICAOF", other.host, str(other.port))
    with pytest.raises(asynclock.AsyncLockError, match=r"READONLY|not a primary"):
        await locks.lock("a").try_acquire()
    await _until_state(locks, "rejected")
    with pytest.raises(asynclock.ConfigurationError, match="not a primary"):
        await locks.lock("a").acquire(timeout=10)
    await primary.command("REPLICAOF", "NO", "ONE")
    await _until_state(locks, "quarantined")
    async with locks.lock("a").acquire(timeout=10) as lease:
        assert lease.held


async def test_an_evicting_server_is_warned_of_once(
    asynclock_servers: StartServers, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    (server,) = await asynclock_servers(1, args=["--maxmemory-policy", "allkeys-lru"])
    locks = connect(server.url)
    with caplog.at_level(logging.WARNING, "asynclock.nodes"):
        for _ in range(3):
            await go_through(locks.lock("a").acquire(timeout=5))
            await server.command("CLIENT", "KILL", "TYPE", "normal")
    warned = [record for record in caplog.records if "maxmemory-policy" in record.getMessage()]
    assert len(warned) == 1


async def test_an_evicting_server_is_an_error_under_strict(
    asynclock_servers: StartServers, connect: Connect
) -> None:
    (server,) = await asynclock_servers(1, args=["--maxmemory-policy", "allkeys-lru"])
    locks = connect(server.url, strict=True)
    with pytest.raises(asynclock.ConfigurationError, match="allkeys-lru"):
        await locks.lock("a").acquire(timeout=5)
    await server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await server.command("CLIENT", "KILL", "TYPE", "normal")
    # It is fixed without a new manager.
    await becomes(lambda: locks.nodes()[0].state, "up", timeout=10)
    async with locks.lock("a").acquire(timeout=5) as lease:
        assert lease.held


async def _until_state(locks: asynclock.LockManager, state: str, number: int = 0) -> None:
    await until(lambda: locks.nodes()[number].state == state, state)
