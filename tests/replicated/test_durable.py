"""Grants that are on disk when they count: WAITAOF on real servers (Redis 7.2 and later)."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import LocalServer, Replicated
from tests.able_servers import server_with_waitaof
from tests.access.test_acl import minimal
from tests.replicated.conftest import Connect
from tests.replicated.test_acks import calls
from tests.replicated.topologies import Topologies
from tests.waiting import becomes, go_through


@pytest_asyncio.fixture
async def saving(topologies: Topologies) -> Replicated:
    """A primary with two replicas, each with an append-only file."""
    binary = server_with_waitaof()
    group = await topologies.get("saving", lambda: Replicated(2, aof=True, binary=binary))
    for server in group.servers:
        await server.command("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
    return group


async def test_a_grant_outlives_the_death_of_all(saving: Replicated, connect: Connect) -> None:
    locks = connect(*saving.addresses, acks="all", durable=True, ttl=60, restart_guard=False)
    lease = await locks.lock("a").acquire(timeout=20)
    await asyncio.gather(*(server.kill() for server in saving.servers))
    await saving.repair()
    for server in saving.servers:
        assert await server.command("GET", "asynclock:a") == lease.owner
    other = connect(*saving.addresses, acks="all", durable=True, restart_guard=False)
    assert await other.lock("a").try_acquire() is None


async def test_replicas_are_not_waited_for_until_they_speak_unasked(
    saving: Replicated, connect: Connect
) -> None:
    locks = connect(
        *saving.addresses, acks="all", durable=True, node_timeout=2.5, restart_guard=False
    )
    before = await calls(saving, "waitaof")
    cycles = 20
    async with asyncio.timeout(50):
        await go_through(locks.lock("warm"))
        began = asyncio.get_running_loop().time()
        for _ in range(cycles):
            await go_through(locks.lock("a"))
    # They speak once a second by themselves.
    assert asyncio.get_running_loop().time() - began < 0.8 * cycles
    assert await calls(saving, "waitaof") - before >= cycles


async def test_one_server_alone(saving: Replicated, connect: Connect) -> None:
    locks = connect(*saving.addresses, durable=True, restart_guard=False)
    async with locks.lock("a", timeout=20) as lease:
        await lease.extend()
    assert await calls(saving, "waitaof") >= 2
    assert await calls(saving, "wait") <= 1  # the test bed's own


LONG: dict[str, Any] = {"ttl": 60, "max_ttl": 60}


async def none_saved(locks: asynclock.LockManager, cause: str) -> None:
    with pytest.raises(asynclock.QuorumUnavailableError, match=cause):
        await locks.lock("a").try_acquire()

    async def owner() -> str | None:
        return (await locks.inspect("a")).owner

    await becomes(owner, None)  # it is given back, long before its ttl is over


async def test_what_is_not_saved_is_no_grant(saving: Replicated, connect: Connect) -> None:
    locks = connect(*saving.addresses, durable=True, restart_guard=False, **LONG)
    await go_through(locks.lock("a", timeout=20))
    await saving.primary.command("CONFIG", "SET", "appendfsync", "no")
    await none_saved(locks, "it had not saved the grant to disk within 0.5 s")


async def test_replicas_that_keep_nothing_save_nothing(
    saving: Replicated, connect: Connect
) -> None:
    locks = connect(*saving.addresses, acks="all", durable=True, restart_guard=False, **LONG)
    await go_through(locks.lock("a", timeout=20))
    forgetful: LocalServer = saving.replicas[0]
    await forgetful.command("CONFIG", "SET", "appendonly", "no")
    await none_saved(locks, "1 of 2 replicas saved the grant within 0.5 s")
    enough = connect(*saving.addresses, acks=1, durable=True, restart_guard=False)
    await go_through(enough.lock("a", timeout=20))


async def test_the_right_it_needs(connect: Connect) -> None:
    users = [" ".join([*minimal(), "+waitaof"])]
    async with Replicated(1, aof=True, users=users, binary=server_with_waitaof()) as group:
        url = group.primary.url_for("locks", "secret")
        allowed = connect(url, acks=1, durable=True, restart_guard=False)
        await go_through(allowed.lock("a", timeout=20))
        await group.primary.command("ACL", "SETUSER", "locks", "-waitaof")
        forbidden = connect(url, acks=1, durable=True, restart_guard=False)
        with pytest.raises(asynclock.ConfigurationError, match="waitaof"):
            await forbidden.lock("a").acquire(timeout=20)
