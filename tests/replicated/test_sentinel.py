"""Primaries behind Sentinels: found, left when replaced, and several of them as a quorum."""

import asyncio
import contextlib
from functools import partial

import pytest
from redis.asyncio.sentinel import Sentinel

import asynclock
from asynclock.testing import FaultProxy, SentinelGroup, until
from tests.replicated.conftest import Connect
from tests.replicated.topologies import Topologies
from tests.waiting import go_through, refused


async def test_settings_of_a_redis_py_client(service: SentinelGroup, connect: Connect) -> None:
    hosts = [(one.host, one.port) for one in service.sentinels]
    client = Sentinel(hosts).master_for("mymaster", db=3)
    locks = connect(client, restart_guard=False)
    async with locks.lock("a"):
        assert "db3:keys=" in await service.primary.command("INFO", "keyspace")
    await client.aclose()


async def test_a_failover_with_a_holder_and_a_waiter(
    service: SentinelGroup, connect: Connect
) -> None:
    here = connect(*service.addresses, acks="all", ttl=20, max_ttl=20, restart_guard=False)
    there = connect(*service.addresses, acks=1, ttl=20, max_ttl=20)
    lease = await here.lock("a").acquire(timeout=20)
    waiter = asyncio.create_task(_fence(there, "a"))
    await until(lambda: met(there), "the waiter has met the old primary")
    await service.primary.command("WAIT", "2", "2000")
    old = service.primary
    await service.fail_over()
    assert service.primary is not old
    assert lease.held
    await until(lambda: extended(lease), "the heir, which has the lease, extends it")
    assert not waiter.done()
    assert await lease.release()
    # The waiter's own manager guards: it knows that the heir is new, and waits for one max_ttl.
    # The lease was released, so an unguarded client gets it as soon as the heir is found.
    other = connect(*service.addresses, acks=1, restart_guard=False)
    again = await other.lock("a").acquire(timeout=20)
    assert again.fence > lease.fence
    # The mark tells this term of the process from a later one, should it be named again.
    mark = await service.primary.command("GET", "asynclock::#primary")
    said = await service.sentinels[0].command("SENTINEL", "MASTER", "mymaster")
    epoch = said[said.index("config-epoch") + 1]
    assert epoch != "0"
    assert mark.split()[0].endswith(f".{epoch}")
    assert not waiter.done()
    waiter.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiter


async def met(locks: asynclock.LockManager) -> bool:
    return [node.state for node in locks.nodes()] == ["quarantined"]


async def extended(lease: asynclock.Lease) -> bool:
    with contextlib.suppress(asynclock.QuorumUnavailableError):
        await lease.extend()
        return True
    return False


async def _fence(locks: asynclock.LockManager, name: str) -> int:
    async with locks.lock(name, timeout=60) as lease:
        return lease.fence


async def test_a_primary_that_wakes_up_again_is_not_believed(
    service: SentinelGroup, connect: Connect
) -> None:
    """A Sentinel takes seconds to demote it; connected clients must not use it until then."""
    locks = connect(*service.addresses, restart_guard=False)
    lease = await locks.lock("a", renew=False, ttl=60 / 7).acquire(timeout=20)
    assert await lease.release()
    old = service.primary
    await old.freeze()
    await service.failed_over(old)
    fresh = connect(*service.addresses, restart_guard=False)
    held = await fresh.lock("a").acquire(timeout=20)

    async def moved() -> bool:
        return await locks.lock("b").try_acquire() is not None

    async def tries() -> bool:
        with contextlib.suppress(asynclock.QuorumUnavailableError):
            return await moved()
        return False

    await until(tries, "the client follows its Sentinels")
    await old.thaw()
    assert (await old.command("ROLE"))[0] == "master"
    assert await refused(locks.lock("a"))
    assert held.held


async def test_a_client_that_is_cut_off_with_the_old_primary_stops(
    service: SentinelGroup, connect: Connect
) -> None:
    """It sees the old primary, which lives on, and one Sentinel of three."""
    old, ttl = service.primary, 2.0
    async with contextlib.AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(one)) for one in service.sentinels]
        seen = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        cut_off = connect(f"redis+sentinel://{seen}/mymaster", ttl=ttl, max_ttl=ttl)
        lease = await cut_off.lock("a").acquire(timeout=20)
        proxies[0].partition()
        proxies[1].partition()
        await old.command("ACL", "SETUSER", "default", "-slaveof")  # no Sentinel demotes it
        await service.sentinels[0].command("SENTINEL", "FAILOVER", "mymaster")
        there = connect(*service.addresses, ttl=ttl, max_ttl=ttl)
        async with there.lock("a", timeout=40):
            assert not lease.held
            with pytest.raises(asynclock.QuorumUnavailableError, match="1 of 3 Sentinels"):
                await cut_off.lock("b").try_acquire()
            assert cut_off.nodes()[0].state == "down"
            assert (await old.command("ROLE"))[0] == "master"
        await old.command("ACL", "SETUSER", "default", "+slaveof")
        proxies[0].heal()
        assert await cut_off.lock("b").acquire(timeout=40)
    await service.failed_over(old)


async def test_sentinels_and_servers_with_logins(topologies: Topologies, connect: Connect) -> None:
    group = await topologies.get("password", lambda: SentinelGroup(1, 1, password="geheim:@/"))
    (watcher,) = group.sentinels
    address = group.addresses[0]
    await watcher.command("ACL", "SETUSER", "default", "resetpass", ">y&z=")
    watcher.password = "y&z="
    with pytest.raises(asynclock.ConfigurationError, match="NOAUTH"):
        await connect(address).lock("a").acquire(timeout=20)
    locks = connect(f"{address}?sentinel_password=y%26z%3D", acks=1, restart_guard=False)
    await go_through(locks.lock("a", timeout=20))


async def test_three_groups_are_three_nodes(topologies: Topologies, connect: Connect) -> None:
    groups = [
        await topologies.get(f"group-{n}", partial(SentinelGroup, 1, 1, service=f"s{n}"))
        for n in range(3)
    ]
    addresses = [address for group in groups for address in group.addresses]
    locks = connect(*addresses, acks=1, ttl=5, restart_guard=False)
    lease = await locks.lock("a").acquire(timeout=20)
    await groups[0].primary.kill()
    other = connect(*addresses, acks=1, restart_guard=False)
    assert await refused(other.lock("a"))
    assert await other.lock("b").acquire(timeout=20)
    await groups[0].failed_over(groups[0].primary)
    assert lease.held
    assert await lease.release()

    async def three_votes() -> bool:
        return [node.state for node in locks.nodes()] == ["up"] * 3

    await until(three_votes, "the group is back with its new primary")
