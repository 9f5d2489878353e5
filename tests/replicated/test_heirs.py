"""With acks="all" a promoted replica serves at once those who know that it has every grant.

All else that may happen to an heir is in tests/nodes/test_heirs_in_time.py.
"""

import asyncio
import time

import asynclock
from asynclock.testing import SentinelGroup
from tests.replicated.conftest import Connect
from tests.waiting import refused, until

MAX_TTL = 12.0
"""Seconds for which a new primary waits; an heir must be able to serve within less."""
MARK = "asynclock::#primary"


async def roster(service: SentinelGroup) -> str:
    """Return the roster in the mark of the primary; "" without one."""
    words = (await service.primary.command("GET", MARK)).split(" ")
    return words[3] if len(words) > 3 else ""


async def test_an_heir_serves_at_once_those_who_saw_that_it_has_every_grant(
    service: SentinelGroup, connect: Connect
) -> None:
    """And others wait for it, as for any new primary."""

    def client(**more: bool) -> asynclock.LockManager:
        settings = {"ttl": MAX_TTL, "max_ttl": MAX_TTL, "node_timeout": 1.0}
        return connect(*service.addresses, acks="all", **settings, **more)

    held = await client(restart_guard=False).lock("held").acquire(timeout=20)
    names = sorted(f"{one.host}:{one.port}" for one in service.replicas)

    async def listed() -> bool:
        parts = (await roster(service)).split(";")
        return len(parts) == 3 and sorted(parts[2].split(",")) == names

    await until(listed, "both replicas must acknowledge")
    locks = client()
    await locks.ready()
    await until(lambda: locks.nodes()[0].state == "up", "its guard is over", timeout=60)
    await asyncio.sleep(3)  # for two looks
    await service.fail_over()
    began = time.monotonic()
    newcomer = client()
    await newcomer.ready()
    await until(lambda: newcomer.nodes()[0].votes_in > MAX_TTL / 2, "a newcomer waits")
    async with locks.lock("a", timeout=2 * MAX_TTL):
        assert time.monotonic() - began < 0.8 * MAX_TTL
    assert await refused(locks.lock("held"))
    assert held.held
