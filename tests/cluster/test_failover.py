"""Failovers under traffic: no two holders at once, fences that rise, and how long no task got in.

Every lease is acknowledged by a replica and every promoted one waits for one longest ttl, so a
round's outage is the failover itself (about the time in which silence is believed to be death)
and that wait.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

import asynclock
from asynclock.testing import History, RedisCluster, SentinelGroup, check

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


async def failovers(kind: str, rounds: int, folder: Path) -> None:
    stop = asyncio.Event()
    history = History(folder / "history.jsonl")
    async with contextlib.AsyncExitStack() as stack, DEPLOYMENTS[kind]() as deployment:
        managers = [
            await stack.enter_async_context(
                asynclock.connect(*deployment.addresses, acks=1, ttl=TTL, max_ttl=TTL)
            )
            for _ in range(2)
        ]
        async with asyncio.TaskGroup() as group:
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
        await stack.aclose()
    assert check(history) == []


async def until_served(history: History, seen: int) -> None:
    """Wait until every name has been granted again."""
    async with asyncio.timeout(60):
        while True:
            events = list(history)[seen:]
            if {e.name for e in events if e.kind == "acquired"} >= set(NAMES):
                return
            await asyncio.sleep(0.2)


@pytest.mark.cluster
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", DEPLOYMENTS)
async def test_two_failovers(kind: str, tmp_path: Path) -> None:
    await failovers(kind, 2, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", DEPLOYMENTS)
async def test_twenty_failovers(kind: str, tmp_path: Path) -> None:
    await failovers(kind, 20, tmp_path)
