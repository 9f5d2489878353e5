"""Several names on a Cluster whose servers are slow: each timeout is kept, and no key is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import asynclock
from asynclock._nodes.endpoint import Endpoint
from asynclock.testing import FaultProxy, RedisCluster, until
from tests.replicated.conftest import Connect
from tests.replicated.test_cluster import name_on, values

NODE_TIMEOUT = 0.5
TRIP = 0.35
"""One round trip fits into a node timeout, two do not."""
SLACK = 0.3
"""Less than a further round trip would take."""
TTL = 60.0
"""Seconds; far longer than a test, so that no key goes by expiring."""


@pytest_asyncio.fixture
async def proxies(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[int, FaultProxy]]:
    """One in front of each server, by the server's port; clients dial these."""
    made = {server.port: FaultProxy(server) for server in cluster.servers}
    at = Endpoint.at

    def by_proxy(self: Endpoint, host: str, port: int) -> Endpoint:
        return at(self, host, made[port].port if port in made else port)

    monkeypatch.setattr(Endpoint, "at", by_proxy)
    for proxy in made.values():
        await proxy.start()
    yield made
    for proxy in made.values():
        await proxy.aclose()


async def meet(cluster: RedisCluster, connect: Connect, names: list[str]) -> asynclock.LockManager:
    locks = connect(
        *cluster.addresses,
        node_timeout=NODE_TIMEOUT,
        ttl=TTL,
        max_ttl=TTL,
        restart_guard=False,
    )
    async with locks.multi_lock(*names, timeout=20):
        pass
    return locks


async def left(cluster: RedisCluster, names: list[str]) -> list[str]:
    """Return the names that are still held."""
    owners = [(await values(await cluster.primary(n), name))[0] for n, name in enumerate(names)]
    return [name for name, owner in zip(names, owners, strict=True) if owner is not None]


async def freed(cluster: RedisCluster, names: list[str]) -> None:
    async def free() -> bool:
        return not await left(cluster, names)

    await until(free, "no key is left")


@pytest.mark.parametrize("timeout", [0, 0.05, 0.9])
@pytest.mark.parametrize("slow", ["all", "the second", "the last"])
async def test_a_timeout_is_kept_and_no_key_is_left(
    cluster: RedisCluster,
    connect: Connect,
    proxies: dict[int, FaultProxy],
    timeout: float,
    slow: str,
) -> None:
    names = [name_on(cluster, shard) for shard in range(3)]
    locks = await meet(cluster, connect, names)
    slowed = {"all": [0, 1, 2], "the second": [1], "the last": [2]}[slow]
    for shard in slowed:
        port = (await cluster.primary(shard)).port
        # Two round trips do not fit into the time of the one that is slow by itself.
        proxies[port].delay(TRIP if slow == "all" else max(timeout, NODE_TIMEOUT) + SLACK)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises((asynclock.AcquireTimeoutError, asynclock.QuorumUnavailableError)):
        await locks.multi_lock(*names).acquire(timeout=timeout)
    assert loop.time() - began < max(timeout, NODE_TIMEOUT) + SLACK
    await freed(cluster, names)
    for proxy in proxies.values():
        proxy.heal()
    async with locks.multi_lock(*names, timeout=20):
        assert len(await left(cluster, names)) == 3
    await freed(cluster, names)
