"""Every contract test runs on every face."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing.plugin import StartServers
from tests.contract.faces import FACES, Face
from tests.contract.topology_faces import STANDING, TOPOLOGY_FACES, close

Connect = Callable[..., asynclock.LockManager]
ALL = {**FACES, **TOPOLOGY_FACES}


@pytest.fixture(scope="session", autouse=True)
def _warm_topologies() -> Iterator[None]:
    yield
    close()


def _params() -> Iterator[Any]:
    for name in ALL:
        rare = name in TOPOLOGY_FACES and name not in STANDING
        yield pytest.param(name, marks=[pytest.mark.nightly] if rare else [])


@pytest_asyncio.fixture(params=list(_params()))
async def face(
    request: pytest.FixtureRequest, asynclock_servers: StartServers
) -> AsyncIterator[Face]:
    async with ALL[request.param](asynclock_servers) as made:
        yield made


@pytest_asyncio.fixture
async def connect(face: Face) -> AsyncIterator[Connect]:
    """Managers on the face's addresses, closed at the end."""
    made: list[asynclock.LockManager] = []

    def make(**options: Any) -> asynclock.LockManager:
        settings = {"restart_guard": False, **face.options, **options}
        made.append(asynclock.connect(*face.addresses, **settings))
        return made[-1]

    yield make
    for locks in made:
        await locks.aclose()


@pytest.fixture
def locks(connect: Connect) -> asynclock.LockManager:
    return connect()
