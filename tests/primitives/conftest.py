"""The deployments that every primitive is tried on: one server, and five masters, hurt or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers


class Connect(Protocol):
    """Makes managers on the servers of a test; all are closed at its end."""

    def __call__(
        self, servers: Sequence[LocalServer] = (), **settings: Any
    ) -> asynclock.LockManager: ...


@dataclass
class Setup:
    """The servers of one test, the last of which may be dead or frozen."""

    name: str
    servers: list[LocalServer]

    @property
    def well(self) -> list[LocalServer]:
        """Those that answer."""
        return [server for server in self.servers if server.alive and not server.frozen]

    async def keys(self) -> set[str]:
        """Keys left on any server that answers, without fence counters."""
        found = {key for server in self.well for key in await server.command("KEYS", "*")}
        return {key for key in found if not key.endswith((":#fence", ":#primary"))}

    async def empty(self, *allowed: str) -> None:
        """Wait until only keys with these endings are left, at most a fraction of any key's ttl."""
        async with asyncio.timeout(KEYS_GONE_WITHIN):
            while {key for key in await self.keys() if not key.endswith(allowed or ("\0",))}:
                await asyncio.sleep(0.02)


TTL = 120.0
"""Seconds; far longer than any test, so that no key goes by expiring."""
KEYS_GONE_WITHIN = 10.0
"""Seconds that releases may take on a loaded machine; far below TTL."""

SETUPS = {
    "single": (1, ""),
    "quorum": (5, ""),
    "one dead": (5, "dead"),
    "one frozen": (5, "frozen"),
}


@pytest_asyncio.fixture(params=list(SETUPS))
async def setup(request: pytest.FixtureRequest, asynclock_servers: StartServers) -> Setup:
    number, hurt = SETUPS[request.param]
    servers = await asynclock_servers(number)
    if hurt == "dead":
        await servers[-1].kill()
    elif hurt == "frozen":
        await servers[-1].freeze()
    return Setup(request.param, servers)


def ttls(settings: dict[str, Any]) -> dict[str, float]:
    """The ttl of managers whose test names none."""
    return {} if {"ttl", "max_ttl"} & settings.keys() else {"ttl": TTL, "max_ttl": TTL}


@pytest_asyncio.fixture
async def connect_to() -> AsyncIterator[Connect]:
    """Managers on servers that the test names."""
    made: list[asynclock.LockManager] = []

    def make(servers: Sequence[LocalServer] = (), **settings: Any) -> asynclock.LockManager:
        urls = [server.url for server in servers]
        usual: dict[str, Any] = {"restart_guard": False, **ttls(settings)}
        made.append(asynclock.connect(*urls, **{**usual, **settings}))
        return made[-1]

    yield make
    for locks in made:
        await locks.aclose()


@pytest.fixture
def connect(setup: Setup, connect_to: Connect) -> Connect:
    """Managers on the servers of the setup."""
    return lambda servers=setup.servers, **settings: connect_to(servers, **settings)


async def hold(lock: Any, **settings: Any) -> asynclock.Lease:
    """`acquire` as a coroutine, for create_task."""
    lease: asynclock.Lease = await lock.acquire(**settings)
    return lease
