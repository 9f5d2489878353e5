"""How long a name is free while somebody waits for it, without any fault. In virtual time."""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest

import asynclock
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import Nodes, Way
from tests.tables.inside import now, seed
from tests.waiting import call_off

NAMES = "abc"
FAR = 0.02
"""Seconds from a process to two of the three nodes, and as many back."""
LOOK = 0.004
ALONE = ("plain", "without hand-over", "strict", "reentrant", "cancelled", "extended")


class Traffic:
    """Five processes with three tasks each, which take locks of several sorts on three names."""

    def __init__(self, seed: int, sorts: tuple[str, ...]) -> None:
        self.chance = random.Random(seed)
        self.sorts = sorts
        self.nodes = [MemoryNode(str(index)) for index in range(3)]
        self.wanted: dict[object, tuple[str, ...]] = {}

    async def longest_idle(self, seconds: float) -> float:
        """Let them run; return how long a name was free at most that somebody waited for."""
        async with contextlib.AsyncExitStack() as stack:
            tasks = []
            for number in range(5):
                locks = await stack.enter_async_context(self._connect(number))
                tasks += [asyncio.create_task(self._work(locks)) for _ in range(3)]
            longest, since = 0.0, dict.fromkeys(NAMES, now())
            until = now() + seconds
            while now() < until:
                await asyncio.sleep(LOOK)
                free = {name for name in NAMES if self._is_free(name)}
                ready = {n for names in self.wanted.values() if free >= set(names) for n in names}
                for name in NAMES:
                    if name not in ready:
                        since[name] = now()
                    longest = max(longest, now() - since[name])
            await call_off(*tasks)
        return longest

    def _connect(self, number: int) -> asynclock.LockManager:
        ways = [Way() for _ in self.nodes]
        settings: dict[str, Any] = {"node_timeout": 0.25, "ttl": 5, "max_ttl": 5}
        locks = Nodes(self.nodes, ways).connect(restart_guard=False, **settings)
        seed(locks, self.chance.randrange(2**32))
        for index, way in enumerate(ways):
            way.seconds = 0.0 if index == number % 3 else FAR
        return locks

    def _is_free(self, name: str) -> bool:
        key = f"asynclock:{name}".encode()
        owners = Counter(node.keys.values.get(key) for node in self.nodes)
        del owners[None]  # type: ignore[arg-type]
        return max(owners.values(), default=0) < 2

    async def _work(self, locks: asynclock.LockManager) -> None:
        while True:
            task = asyncio.create_task(self._hold(locks, sort := self.chance.choice(self.sorts)))
            if sort == "cancelled":
                task.get_loop().call_later(self.chance.expovariate(20), task.cancel)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
            await asyncio.sleep(self.chance.expovariate(50))

    async def _hold(self, locks: asynclock.LockManager, sort: str) -> None:
        names: tuple[str, ...] = (self.chance.choice(NAMES),)
        lock: Any
        if sort == "several":
            names = tuple(self.chance.sample(NAMES, 2))
            lock = locks.multi_lock(*names)
        elif sort == "reentrant":
            lock = locks.reentrant_lock(*names)
        else:
            handoff: Any = {"without hand-over": False, "strict": "strict"}.get(sort, True)
            lock = locks.lock(*names, handoff=handoff)
        self.wanted[me := object()] = names
        try:
            lease = await lock.acquire()
        finally:
            del self.wanted[me]
        async with lease:
            await asyncio.sleep(self.chance.expovariate(60))
            if sort == "extended":
                await lease.extend()


@pytest.mark.parametrize(
    ("sorts", "trips"), [(ALONE, 3), ((*ALONE, "several"), 12), (("plain", "several"), 12)]
)
def test_a_name_that_is_waited_for_is_not_idle_for_long(sorts: tuple[str, ...], trips: int) -> None:
    """In round trips; no waiter waits for the next refresh of its ticket (0.6 s at least)."""
    idle = run_virtual(Traffic(trips, sorts).longest_idle(2.0))
    assert idle <= trips * 2 * FAR
