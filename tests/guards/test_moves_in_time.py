"""The set changes under the traffic of four managers while nodes fail, in virtual time.

No two holders, fences rise, no lease is lost, and the time without a grant is what the rules cost.
Each manager moves to the new nodes at its own moment, so both sets of a step are in use at once.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import asynclock
from asynclock.fleet import Fleet
from asynclock.testing import History, check, run_virtual
from asynclock.testing.memory import MemoryNode
from tests.guards.nodes import far_nodes
from tests.tables.inside import now
from tests.waiting import call_off

NAMES = ("x", "y", "z")
TASKS = 2
TTL = 4.0
SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.8}
TRIP = 0.05
USE = 0.15
"""Seconds that a task has a lock and then does without, on average."""
LONGEST_FAULT = 1.0
PUT_BACK = 2 * TTL + 1
"""Seconds after which a node that restarted empty votes again and has the keys of held leases."""
LONGEST_GAP = LONGEST_FAULT + 3 * SETTINGS["node_timeout"]
"""Maximum seconds without a grant to anybody: a fault without a spare node, a pause between two
attempts to connect, an acquire that is lost, and the next one. A quarantine would be longer."""
GROWN_AND_SHRUNK = ("abcd", "abcde", "bcde")
DEAD_REPLACED = ("abc", "abcd", "bcd")


class Seen(History):
    """What all services held, in virtual time."""

    now = staticmethod(now)


class Service:
    """A manager and its tasks, which lock the same names as those of other services."""

    def __init__(self, number: int, history: History) -> None:
        self._random = random.Random(number)
        self._history = history
        self._uses: Counter[asynclock.LockManager] = Counter()
        self._locks: asynclock.LockManager | None = None

    async def use(self, nodes: Sequence[Any]) -> None:
        """Use these nodes for new calls, and close the old manager when its calls have ended."""
        if self._locks is not None:
            await asyncio.sleep(self._random.random())
        old, self._locks = self._locks, asynclock.connect(*nodes, **SETTINGS)
        if old is not None:
            while self._uses[old]:
                await asyncio.sleep(0.01)
            await old.aclose()

    async def close(self) -> None:
        if self._locks is not None:
            await self._locks.aclose()

    async def work(self) -> None:
        while True:
            locks = self._locks
            assert locks is not None
            self._uses[locks] += 1
            name, began = self._random.choice(NAMES), now()
            try:
                async with locks.lock(name, timeout=3.0) as lease:
                    with self._history.body(lease, began=began):
                        await asyncio.sleep(self._random.expovariate(1 / USE))
            except (asynclock.NotAcquiredError, asynclock.QuorumUnavailableError):
                await asyncio.sleep(0.01)
            finally:
                self._uses[locks] -= 1
            await asyncio.sleep(self._random.expovariate(1 / USE))


async def _faults(
    servers: Sequence[MemoryNode], nodes: Sequence[Any], kinds: Sequence[str]
) -> None:
    """One node at a time; the next must not forget a lease that this one lacks."""
    chance = random.Random(5)
    for kind in itertools.cycle(kinds):
        number, seconds = chance.randrange(len(servers)), chance.uniform(0.1, LONGEST_FAULT)
        server, way = servers[number], nodes[number].way
        if kind == "restart":
            server.kill()
            server.restart(keep_data=False)
        elif kind == "freeze":
            server.freeze()
            await asyncio.sleep(seconds)
            server.thaw()
        else:
            way.go_mute()
            await asyncio.sleep(seconds)
            muted = list(way.mute)
            way.mute.clear()
            for stream in muted:
                stream.pump()
        await asyncio.sleep(PUT_BACK)


async def _repeated(command: Callable[[], Awaitable[object]]) -> None:
    """Call `command` until no failing node is in its way."""
    async with asyncio.timeout(120):
        while True:
            try:
                await command()
            except (asynclock.QuorumUnavailableError, asynclock.ConfigurationError):
                await asyncio.sleep(0.2)
            else:
                return


async def _step(services: Sequence[Service], old: list[Any], new: list[Any]) -> None:
    (changed,) = set(old) ^ set(new)
    async with Fleet(*old, **SETTINGS) as fleet:
        adding = changed in new
        await _repeated(lambda: fleet.add(changed) if adding else fleet.remove(changed.address))
        await asyncio.gather(*(service.use(new) for service in services))
        await _repeated(fleet.finish)


@pytest.mark.timeout(600)  # a minute of virtual time costs seconds, or more on a busy machine
@pytest.mark.parametrize(
    ("sets", "dead", "kinds"),
    [
        (GROWN_AND_SHRUNK, "", ("restart", "cut off", "freeze")),
        (DEAD_REPLACED, "a", ("cut off", "freeze")),
    ],
)
def test_somebody_gets_a_lock_all_the_time(
    sets: Sequence[str], dead: str, kinds: Sequence[str]
) -> None:
    """Beside a dead node no node forgets: without a spare node that is an outage of a `max_ttl`."""
    run_virtual(_moves(sets, dead, kinds))


async def _moves(sets: Sequence[str], dead: str, kinds: Sequence[str]) -> None:
    letters = sorted(set("".join(sets)))
    servers, addresses = far_nodes("".join(letters))
    for address in addresses:
        address.way.seconds = TRIP / 2
    nodes = dict(zip(letters, addresses, strict=True))
    history = Seen()
    services = [Service(number, history) for number in range(4)]
    await asyncio.gather(*(service.use([nodes[one] for one in sets[0]]) for service in services))
    tasks = [asyncio.create_task(one.work()) for one in services for _ in range(TASKS)]
    async with Fleet(*(nodes[one] for one in sets[0]), **SETTINGS) as fleet:
        await fleet.record()
    if dead:
        servers[0].kill()
        del servers[0], addresses[0]
    tasks.append(asyncio.create_task(_faults(servers, addresses, kinds)))
    for old, new in itertools.pairwise(sets):
        await _step(services, [nodes[one] for one in old], [nodes[one] for one in new])
    assert not [task for task in tasks if task.done()]
    await call_off(*tasks)
    await asyncio.gather(*(service.close() for service in services))
    assert check(history) == []
    grants = [event.at for event in history if event.kind == "acquired"]
    gaps = [later - sooner for sooner, later in itertools.pairwise(grants)]
    assert max(gaps) <= LONGEST_GAP
    assert len(grants) > 100
