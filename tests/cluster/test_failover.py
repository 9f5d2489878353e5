"""Failovers under traffic: no two holders at once, fences that rise, and how long no task got in.

Every lease is acknowledged by a replica and every promoted one waits for one longest ttl, so a
round's outage is the failover itself (about the time in which silence is believed to be death)
and that wait.
"""

import asyncio
from collections.abc import Callable

import pytest

import asynclock
from asynclock.testing import History, RedisCluster, SentinelGroup, check
from tests.waiting import until

TTL = 2.0
NAMES = [f"name-{number}" for number in range(6)]

DEPLOYMENTS: dict[str, Callable[[], SentinelGroup | RedisCluster]] = {
    "sentinel": lambda: SentinelGroup(2, 3),
    "cluster": lambda: RedisCluster(3, 2),
}


async def traffic(locks: asynclock.LockManager, history: History, stop: asyncio.Event) -> None:
    """Hold one name after the other, whatever happens to the servers."""
    turn = 0
    while not stop.is_set():
        turn += 1
        began = history.now()
        try:
            async with locks.lock(NAMES[turn % len(NAMES)], timeout=30) as lease:
                with history.body(lease, began=began):
                    await asyncio.sleep(0.02)
        except (asynclock.QuorumUnavailableError, asynclock.LeaseLostError):
            await asyncio.sleep(0.05)
        except asynclock.AcquireTimeoutError:
            continue


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", DEPLOYMENTS)
async def test_failovers(kind: str, rounds: int) -> None:
    stop, history = asyncio.Event(), History()
    settings = {"acks": 1, "ttl": TTL, "max_ttl": TTL}
    async with DEPLOYMENTS[kind]() as deployment:
        managers = [asynclock.connect(*deployment.addresses, **settings) for _ in range(2)]
        async with managers[0], managers[1], asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(traffic(managers[number % 2], history, stop))
            await until_served(history, 0)
            for number in range(rounds):
                served = len(list(history))
                if isinstance(deployment, RedisCluster):
                    await deployment.fail_over(shard=number % 3)
                else:
                    await deployment.fail_over()
                await until_served(history, served)
                await deployment.repair()
            stop.set()
    assert check(history) == []


async def until_served(history: History, seen: int) -> None:
    """Wait until every name has been granted again."""

    def served() -> bool:
        events = list(history)[seen:]
        return {event.name for event in events if event.kind == "acquired"} >= set(NAMES)

    await until(served, "every name is granted", timeout=60, every=0.2)
