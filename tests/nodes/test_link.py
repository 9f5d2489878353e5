"""The link and the node: order, deadlines, scripts that were forgotten, connections that break."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing import FaultProxy, LocalServer, until
from tests import patient
from tests.waiting import becomes


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


async def test_a_release_that_overtook_its_rejected_acquire_is_sent_again(
    asynclock_nodes: list[LocalServer],
) -> None:
    """Between the two, another client has taught the node the script."""
    node = asynclock_nodes[0]
    async with FaultProxy(node) as proxy, connect(node.url) as others:
        settings: dict[str, Any] = {"ttl": 60, "max_ttl": 60, "node_timeout": 5}
        async with connect(proxy.url, **settings) as locks:
            async with locks.lock("warm"), others.lock("other"):
                pass
            await node.command("SCRIPT", "FLUSH")
            await node.command("CONFIG", "RESETSTAT")
            proxy.delay(0.0, 0.5)
            acquiring = asyncio.create_task(hold(locks))

            async def rejected() -> bool:
                return "NOSCRIPT" in await node.command("INFO", "errorstats")

            await until(rejected, "the node has rejected the acquire")
            async with others.lock("other"):
                pass
            acquiring.cancel()  # its release is executed while the rejection is on its way
            await asyncio.wait([acquiring])

            async def free() -> bool:
                # The counter shows that the acquire was executed after all.
                keys = await node.command("KEYS", "asynclock:a*")
                return bool(keys == ["asynclock:a:#fence"])

            await until(free, "the key is gone")


async def hold(locks: asynclock.LockManager) -> None:
    await locks.lock("a").acquire()


async def test_a_release_that_is_answered_late_by_a_forgetful_node_is_healed(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    async with connect(node.url, ttl=60, max_ttl=60, node_timeout=0.5) as locks:
        lease = await locks.lock("a").acquire()
        await node.command("SCRIPT", "FLUSH")
        await node.freeze()
        await lease.release()
        await node.thaw()
        await becomes(lambda: node.command("EXISTS", "asynclock:a"), 0, timeout=20)


async def test_releases_are_owed_to_a_node_that_was_away(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    async with FaultProxy(node) as proxy:
        urls = [proxy.url, *(other.url for other in asynclock_nodes[1:])]
        async with connect(*urls, ttl=120, max_ttl=120) as locks:
            lease = await locks.lock("a").acquire()
            await becomes(lambda: node.command("EXISTS", "asynclock:a"), 1, timeout=10)
            proxy.partition()
            assert await lease.release() is True
            assert await node.command("EXISTS", "asynclock:a") == 1
            proxy.heal()
            await becomes(lambda: node.command("EXISTS", "asynclock:a"), 0, timeout=10)


async def test_garbage_ends_the_connection_not_the_manager(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    async with FaultProxy(node) as proxy:
        urls = [proxy.url, *(other.url for other in asynclock_nodes[1:])]
        async with connect(*urls, node_timeout=0.5) as locks:
            async with locks.lock("a"):
                pass
            proxy.garbage()
            for _ in range(3):
                async with locks.lock("a", timeout=10) as lease:
                    assert lease.held


async def test_garbage_from_a_node_that_was_met_will_pass(
    asynclock_nodes: list[LocalServer],
) -> None:
    """It is an outage, in the connection that is open and in each new one, not a wrong setting."""
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        async with connect(proxy.url, ttl=60, max_ttl=60, node_timeout=0.5) as locks:
            async with locks.lock("a"):
                pass
            proxy.garbage()
            for _ in range(3):
                with pytest.raises(asynclock.QuorumUnavailableError):
                    await locks.lock("a").acquire(timeout=0.5)
            proxy.heal()
            async with locks.lock("a", timeout=20) as lease:
                assert lease.held


async def test_a_node_that_never_spoke_redis_is_a_wrong_setting(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with FaultProxy(asynclock_nodes[0]) as proxy:
        proxy.garbage()
        locks = connect(proxy.url)
        with pytest.raises(asynclock.ConfigurationError, match="does not speak the Redis protocol"):
            async with locks.lock("a", timeout=20):
                pass
        await locks.aclose()


async def test_aclose_leaves_no_task(asynclock_nodes: list[LocalServer]) -> None:
    before = asyncio.all_tasks()
    await asynclock_nodes[1].freeze()
    locks = connect(
        *(node.url for node in asynclock_nodes),
        *("redis://127.0.0.1:1", "redis://127.0.0.1:2"),
        node_timeout=0.5,
    )
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.lock("a").try_acquire()
    await locks.aclose()
    assert asyncio.all_tasks() == before


async def test_a_peer_that_takes_nothing_more_holds_up_no_close(
    asynclock_nodes: list[LocalServer],
) -> None:
    node = asynclock_nodes[0]
    locks = connect(node.url, node_timeout=0.5)
    async with locks.lock("a"):
        pass
    await node.freeze()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await locks.lock("x" * (16 << 20)).try_acquire()
    async with asyncio.timeout(10):
        await locks.aclose()
    await node.thaw()
