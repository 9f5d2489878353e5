"""The contract of the mutex over containers instead of processes, deployment by deployment."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from asynclock.testing import (
    ContainerImage,
    Quorum,
    RedisCluster,
    Replicated,
    SentinelGroup,
    Single,
    container_image,
)
from asynclock.testing.plugin import StartServers
from tests.contract.conftest import connect, locks, of  # noqa: F401  # fixtures of the contract
from tests.contract.faces import Face, Setting
from tests.contract.test_mutex import *  # noqa: F403  # every test of the contract
from tests.contract.topology_faces import close, topology

pytestmark = [pytest.mark.containers, pytest.mark.timeout(240)]

FACES: dict[str, Setting] = {
    "single": topology("container", lambda: Single(binary=container_image())),
    "quorum": topology("containers", lambda: Quorum(3, binary=container_image())),
    "replicated": topology("c-group", lambda: Replicated(2, binary=container_image()), acks=1),
    "sentinel": topology("c-service", lambda: SentinelGroup(2, 3, binary=container_image())),
    "cluster": topology("c-cluster", lambda: RedisCluster(3, 1, binary=container_image())),
}


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    close()


@pytest_asyncio.fixture(params=list(FACES))
async def face(
    request: pytest.FixtureRequest, asynclock_servers: StartServers, image: ContainerImage
) -> AsyncIterator[Face]:
    async with FACES[request.param](asynclock_servers) as made:
        yield made
