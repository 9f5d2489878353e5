"""Two clients that see different parts of a set of nodes, as in the textbook counter-examples."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio

import asynclock
from asynclock.testing import FaultProxy, LocalServer
from asynclock.testing.plugin import StartServers
from tests.able_servers import need_clock_jumps
from tests.conftest import Connect

TTL = 4.0
"""Long enough that a scenario is over while the first lease is still held, on a busy machine."""


@pytest.fixture
def connect(connecting: Connect) -> Connect:
    usual: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.5}
    return lambda *nodes, **options: connecting(*nodes, **{**usual, **options})


@pytest_asyncio.fixture
async def seasoned(asynclock_servers: StartServers) -> Callable[..., Any]:
    """`await seasoned(n)`: servers that say they have been up for an hour, though they have not.

    Uptime follows the wall clock, so a clock set forward before anybody looks makes them old.
    """

    async def start(n: int, **options: Any) -> list[LocalServer]:
        need_clock_jumps()
        servers = await asynclock_servers(n, clock=True, **options)
        for server in servers:
            server.jump_clock(3600)
        return servers

    return start


@pytest_asyncio.fixture
async def cut_off() -> AsyncIterator[Callable[..., Any]]:
    """`await cut_off(servers, 3, 4)`: addresses of all, of which these can't be reached."""
    async with contextlib.AsyncExitStack() as stack:

        async def addresses(servers: Sequence[LocalServer], *lost: int) -> list[str]:
            urls = [server.url for server in servers]
            for number in lost:
                proxy = await stack.enter_async_context(FaultProxy(servers[number]))
                proxy.partition()
                urls[number] = proxy.url
            return urls

        yield addresses


@pytest.fixture(params=[True, False], ids=["guarded", "unguarded"])
def guarded(request: pytest.FixtureRequest) -> bool:
    """Each scenario is played twice: what the guard prevents must happen without it."""
    return bool(request.param)


async def second_lease(locks: asynclock.LockManager, name: str) -> asynclock.Lease | None:
    """What another client gets in a few attempts, an outage counted as nothing.

    While one node grants and another refuses, an attempt lasts a node timeout.
    """
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        await asyncio.sleep(0.05)  # clocks are read anew ten times a second at most
        with contextlib.suppress(asynclock.QuorumUnavailableError):
            if (lease := await locks.lock(name).try_acquire()) is not None:
                return lease
    return None


async def met(server: LocalServer, clients: int) -> bool:
    """Return whether this many clients are connected; each of them tracks keys."""
    listed = await server.command("CLIENT", "LIST")
    return len(re.findall(r" flags=\w*t", listed)) >= clients
