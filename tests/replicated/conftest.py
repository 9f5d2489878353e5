"""Primaries with replicas, with and without Sentinels."""

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import RedisCluster, Replicated, SentinelGroup
from tests.conftest import Connect
from tests.replicated.topologies import Topologies


@pytest.fixture(scope="session")
def topologies() -> Iterator[Topologies]:
    made = Topologies()
    yield made
    made.close()


@pytest_asyncio.fixture
async def group(topologies: Topologies) -> Replicated:
    """A primary with two replicas."""
    return await topologies.get("replicated", lambda: Replicated(2))


@pytest_asyncio.fixture
async def elders(topologies: Topologies) -> Replicated:
    """The same, and no test may kill them: a young process proves nothing."""
    return await topologies.get("elders", lambda: Replicated(2))


@pytest_asyncio.fixture
async def service(topologies: Topologies) -> SentinelGroup:
    """A primary and its replicas behind three Sentinels."""
    return await topologies.get("sentinel", lambda: SentinelGroup(2, 3))


@pytest_asyncio.fixture
async def cluster(topologies: Topologies) -> RedisCluster:
    """Three primaries with a replica each."""
    return await topologies.get("cluster", lambda: RedisCluster(3, 1))


@pytest.fixture
def connect(connecting: Connect) -> Connect:
    """`asynclock.connect`, patient with a busy machine."""

    def make(*addresses: object, **options: Any) -> asynclock.LockManager:
        shortest = min(options.get("ttl", 10), options.get("max_ttl", 10))
        return connecting(*addresses, **{"node_timeout": min(1.0, shortest / 4), **options})

    return make
