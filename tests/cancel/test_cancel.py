"""Cancelled at each await point, with a healthy, slow, mute, dead and frozen node: nothing stays.

Ttls are long, so that what is gone was released and has not merely expired.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

import asynclock
from asynclock.testing import FaultProxy, LocalServer
from asynclock.testing.plugin import StartServers
from tests.cancel.stepping import Moment, cancelled_at
from tests.waiting import until

NODE_TIMEOUT = 0.25
HURTS = ["healthy", "slow", "mute", "dead", "frozen"]
MOMENTS: list[Moment] = ["waiting", "resuming"]
ROUNDS = 2
"""How often each await point of each work is cancelled."""
BUSY = 5.0
"""Seconds of grace for a busy machine, where a bound is checked."""


@dataclass
class Stage:
    """Three nodes, the last one hurt, and two processes' worth of managers."""

    servers: list[LocalServer]
    proxy: FaultProxy
    here: asynclock.LockManager
    there: asynclock.LockManager
    hurt: str
    number: int = 0

    def name(self) -> str:
        self.number += 1
        return f"n{self.number}"

    async def heal(self) -> None:
        self.proxy.heal()
        if self.hurt == "dead":
            await self.servers[2].start()
        await self.servers[2].thaw()

    async def keys(self) -> set[str]:
        found = [await server.command("KEYS", "*") for server in self.servers]
        return {
            key
            for keys in found
            for key in keys
            if not key.endswith((":#fence", ":#primary", ":#witness"))
        }


@contextlib.asynccontextmanager
async def staged(start: StartServers, hurt: str) -> AsyncIterator[Stage]:
    servers = await start(3)
    async with FaultProxy(servers[2]) as proxy:
        urls = [servers[0].url, servers[1].url, proxy.url]
        options: dict[str, Any] = {
            "ttl": 120.0,
            "max_ttl": 120.0,
            "node_timeout": NODE_TIMEOUT,
            "restart_guard": False,
        }
        async with (
            asynclock.connect(*urls, **options) as here,
            asynclock.connect(*urls, **options) as there,
        ):
            stage = Stage(servers, proxy, here, there, hurt)
            if hurt == "slow":
                proxy.delay(0.02, 0.02)
            elif hurt == "mute":
                proxy.drop_replies()
            elif hurt == "dead":
                await servers[2].kill()
            elif hurt == "frozen":
                await servers[2].freeze()
            yield stage
            await servers[2].thaw()


Work = Callable[[Stage], Coroutine[Any, Any, None]]


async def acquire_free(stage: Stage) -> None:
    await (await stage.here.lock(stage.name()).acquire(timeout=20)).release()


async def acquire_held(stage: Stage) -> None:
    """Held by another process, which gives it back a little later."""
    await _after_another(stage.there, stage.here, stage.name())


async def acquire_in_line(stage: Stage) -> None:
    """Held by this process: the lease is handed over, or just about to be."""
    await _after_another(stage.here, stage.here, stage.name())


async def _after_another(one: asynclock.LockManager, other: asynclock.LockManager, n: str) -> None:
    held = asyncio.Event()
    holder = asyncio.ensure_future(_hold_shortly(one.lock(n), held))
    try:
        await held.wait()
        async with other.lock(n).acquire(timeout=20):
            await asyncio.sleep(0)
    finally:
        await asyncio.shield(holder)


async def _hold_shortly(lock: asynclock.Lock, held: asyncio.Event) -> None:
    async with lock.acquire(timeout=20):
        held.set()
        await asyncio.sleep(0.003)


async def hand_over(stage: Stage) -> None:
    """Left while others of this process wait: they must get it, whatever happens to the leaver."""
    lock = stage.here.lock(stage.name(), handoff="strict")
    lease = await lock.acquire(timeout=20)
    others = [asyncio.ensure_future(_enter(lock)) for _ in range(2)]
    try:
        await asyncio.sleep(0)
        await lease.extend()
    finally:
        try:
            await lease.release()
        finally:
            await asyncio.shield(asyncio.gather(*others))


async def _enter(lock: asynclock.Lock) -> None:
    async with lock.acquire(timeout=20):
        await asyncio.sleep(0)


WORKS: list[Work] = [acquire_free, acquire_held, acquire_in_line, hand_over]


async def cancel_everywhere(stage: Stage, work: Work, moment: Moment) -> int:
    """Cancel `work` at its first, second, … await point until it has no more. Return how often."""
    done = 0
    for _ in range(ROUNDS):
        for point in range(200):
            if not await cancelled_at(work(stage), point, moment):
                break
            done += 1
        else:
            pytest.fail("the work never ends")
    return done


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("hurt", HURTS)
async def test_nothing_stays(asynclock_servers: StartServers, hurt: str, moment: Moment) -> None:
    async with staged(asynclock_servers, hurt) as stage:
        before = asyncio.all_tasks()
        done = [await cancel_everywhere(stage, work, moment) for work in WORKS]
        assert min(done) >= 2 * ROUNDS
        await asyncio.sleep(0.05)
        await stage.heal()
        await until(lambda: _seen_by_all(stage), "the node is not met again", timeout=2 * BUSY)
        await asyncio.sleep(NODE_TIMEOUT)
        assert await _none_left(stage) == set()
        await until(lambda: asyncio.all_tasks() <= before, "tasks are left", timeout=2 * BUSY)
        for locks in (stage.here, stage.there):
            assert locks.leases() == ()
            assert locks.statistics().waiting == 0


async def _none_left(stage: Stage) -> set[str]:
    # At once on an idle machine; on a busy one the releases may still be on their way.
    async with asyncio.timeout(30):
        for _ in range(int(BUSY / 0.05)):
            if not (left := await stage.keys()):
                break
            await asyncio.sleep(0.05)
    return left


def _seen_by_all(stage: Stage) -> bool:
    health = (*stage.here.nodes(), *stage.there.nodes())
    return all(node.state in ("up", "quarantined") for node in health)


async def test_the_stepper_cancels_where_it_says() -> None:
    seen: list[int] = []

    async def three_points() -> None:
        for number in range(3):
            await asyncio.sleep(0.001)
            seen.append(number)

    for moment in MOMENTS:
        for point, so_far in [(0, []), (1, [0]), (2, [0, 1])]:
            seen.clear()
            assert await cancelled_at(three_points(), point, moment)
            assert seen == so_far
        assert not await cancelled_at(three_points(), 3, moment)
