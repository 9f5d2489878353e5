"""What really happened while nodes froze: no two bodies at once that may not, fences that rise."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from asynclock.testing import History, LocalServer, check
from asynclock.testing.plugin import StartServers
from tests.primitives.conftest import Connect

SECONDS = 2.5
FEWEST = 3
"""Bodies that there are in any case, once the trouble is over."""
Locks = asynclock.LockManager

# Which lock a task takes at its turn, on how many nodes, and how the history is to be judged.
KINDS: dict[str, tuple[int, Callable[[Locks, int], Any], dict[str, Any]]] = {
    "reentrant_lock": (5, lambda locks, _: locks.reentrant_lock("a"), {}),
    "semaphore": (5, lambda locks, _: locks.semaphore("a", 2), {"permits": 2, "fences": False}),
    "rwlock": (
        5,
        lambda locks, turn: locks.rwlock("a").read() if turn % 4 else locks.rwlock("a").write(),
        {},
    ),
    "multi_lock": (5, lambda locks, turn: locks.multi_lock("a", "bcd"[turn % 3]), {}),
    "fair_lock": (1, lambda locks, _: locks.fair_lock("a"), {}),
}


async def trouble(servers: list[LocalServer], chance: random.Random) -> None:
    """Freeze a minority (or the only one) for shorter and for longer than a ttl."""
    loop = asyncio.get_running_loop()
    until = loop.time() + SECONDS
    while loop.time() < until:
        some = chance.sample(servers, max(1, len(servers) // 2))
        for server in some:
            await server.freeze()
        await asyncio.sleep(chance.choice([0.05, 0.2, 0.8]))
        for server in some:
            await server.thaw()
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", KINDS)
async def test_history_is_clean(
    asynclock_servers: StartServers, connect_to: Connect, kind: str
) -> None:
    nodes, wanted, rules = KINDS[kind]
    servers = await asynclock_servers(nodes)
    managers = [connect_to(servers, ttl=0.5, node_timeout=0.1) for _ in range(3)]
    history, chance = History(), random.Random(5)
    loop = asyncio.get_running_loop()
    until = loop.time() + SECONDS
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        turn = number
        while loop.time() < until or done < FEWEST:
            turn += 1
            began = history.now()
            with contextlib.suppress(asynclock.AsyncLockError):
                async with wanted(managers[number % 3], turn).acquire(timeout=3) as lease:
                    shared = getattr(lease, "part", "") == "read"
                    with history.body(lease, began=began, shared=shared):
                        await asyncio.sleep(chance.choice([0.001, 0.01, 0.05]))
                    done += 1

    async with asyncio.timeout(40):
        await asyncio.gather(trouble(servers, chance), *(work(number) for number in range(9)))
    # One name for all: what multi_lock takes besides "a" does not matter here.
    events = [dataclasses.replace(event, name="a") for event in history]
    assert check(events, **rules) == []
    assert done >= FEWEST
