"""The link and the node: order, deadlines, scripts that were forgotten, connections that break."""

import asyncio
import tracemalloc

import pytest

import asynclock
from asynclock.testing import FaultProxy, LocalServer
from tests import patient
from tests.waiting import go_through, until


def connect(*urls: str, **settings: float) -> asynclock.LockManager:
    return patient.connect(*urls, restart_guard=False, **settings)


async def test_a_forgotten_script_is_healed(asynclock_nodes: list[LocalServer]) -> None:
    async with connect(*(node.url for node in asynclock_nodes)) as locks:
        async with locks.lock("a"):
            for node in asynclock_nodes:
                await node.command("SCRIPT", "FLUSH")
        # A whole burst is out before the first NOSCRIPT comes back.
        for node in asynclock_nodes:
            await node.command("SCRIPT", "FLUSH")
        leases = await asyncio.gather(*(locks.lock(f"n{i}").acquire() for i in range(50)))
        assert all([await lease.release() for lease in leases])
    for node in asynclock_nodes:
        assert await node.command("EXISTS", *(f"asynclock:n{i}" for i in range(50))) == 0


async def test_a_reply_takes_little_memory(asynclock_nodes: list[LocalServer]) -> None:
    """asyncio takes 256 KiB for each, which the system may map and unmap each time."""
    async with connect(*(node.url for node in asynclock_nodes)) as locks:
        await locks.lock("a").acquire()
        await until(
            lambda: all(node.state == "up" for node in locks.nodes())
        )  # a handshake takes more
        tracemalloc.start()
        try:
            await locks.lock("b").acquire()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 100_000


async def test_garbage_ends_a_connection_not_the_manager(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    async with FaultProxy(node) as proxy:
        urls = [proxy.url, *(other.url for other in asynclock_nodes[1:])]
        async with connect(*urls, node_timeout=0.5) as locks:
            await go_through(locks.lock("a"))
            proxy.garbage()
            for _ in range(3):
                async with locks.lock("a", timeout=10) as lease:
                    assert lease.held


async def test_garbage_of_a_node_that_was_met_will_pass(asynclock_nodes: list[LocalServer]) -> None:
    """It is an outage, in the connection that is open and in each new one, not a wrong setting."""
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        async with connect(proxy.url, ttl=60, max_ttl=60, node_timeout=0.5) as locks:
            await go_through(locks.lock("a"))
            proxy.garbage()
            for _ in range(3):
                with pytest.raises(asynclock.QuorumUnavailableError):
                    await locks.lock("a").acquire(timeout=0.5)
            proxy.heal()
            async with locks.lock("a", timeout=20) as lease:
                assert lease.held


async def test_what_never_spoke_redis_is_a_wrong_setting(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        proxy.garbage()
        locks = connect(proxy.url)
        with pytest.raises(asynclock.ConfigurationError, match="does not speak the Redis protocol"):
            await go_through(locks.lock("a", timeout=20))
        await locks.aclose()


async def test_a_peer_that_takes_nothing_delays_no_close(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    locks = connect(node.url, node_timeout=0.5)
    await go_through(locks.lock("a"))
    await node.freeze()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.lock("x" * (16 << 20)).try_acquire()
    async with asyncio.timeout(10):
        await locks.aclose()
    await node.thaw()
