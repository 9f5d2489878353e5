"""The deployments that every primitive is tried on: one server, and five masters, hurt or not."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

import asynclock
from asynclock.testing import LocalServer
from tests.contract.faces import Face
from tests.contract.matrix import faces
from tests.patient import lasting


class Connect(Protocol):
    """Makes managers on the servers of a test; all are closed at its end."""

    def __call__(
        self, servers: Sequence[LocalServer] = (), **settings: Any
    ) -> asynclock.LockManager: ...


face = faces(("1-up", "5-up", "5-dead", "5-frozen"))


@pytest.fixture
def connect_to(connecting: Callable[..., asynclock.LockManager]) -> Connect:
    """Managers on servers that the test names."""

    def make(servers: Sequence[LocalServer] = (), **settings: Any) -> asynclock.LockManager:
        urls = (server.url for server in servers)
        return connecting(*urls, **{"restart_guard": False, **lasting(settings)})

    return make


@pytest.fixture
def connect(face: Face, connect_to: Connect) -> Connect:
    """Managers on the servers of the face."""
    return lambda servers=face.servers, **settings: connect_to(servers, **settings)


@pytest.fixture
def pair(
    face: Face, connecting: Callable[..., asynclock.LockManager]
) -> tuple[asynclock.LockManager, asynclock.LockManager]:
    """Two managers, as of two processes."""
    settings = {"restart_guard": False, "ttl": 60, "max_ttl": 60, **face.options}
    here, there = (connecting(*face.addresses, **settings) for _ in range(2))
    return here, there


async def hold(lock: Any, **settings: Any) -> asynclock.Lease:
    """`acquire` as a coroutine, for create_task."""
    lease: asynclock.Lease = await lock.acquire(**settings)
    return lease
