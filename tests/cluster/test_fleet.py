"""The set of nodes changes under the traffic of four processes, while nodes fail.

No two holders, fences rise, no lease is lost, and after each step and each fault all processes get
locks again. Each process moves to the new nodes at a moment of its own, so both sets of a step are
in use at once.
"""

import asyncio
import contextlib
import itertools
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import asynclock
from asynclock.fleet import Fleet, FleetState
from asynclock.testing import FaultProxy, History, LocalServer
from tests.able_servers import need_clock_jumps
from tests.cluster.nemesis import FAULTS, Nemesis
from tests.cluster.test_faults import Stage, ended, judge, running
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROCESSES = 4
TTL = 4.0
PUT_BACK = 2 * TTL + 1
"""Seconds after which a node that restarted empty votes again and has the keys of held leases."""
OPTIONS = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.8}
FOR_NOW = re.compile("connected clients still use|can't be added|no node shows its clients")
"""What refuses a command for the moment only."""
FAULTS_OF_ALL = ("restart", "partition", "freeze", "flush_scripts")
FAULTS_BESIDE_A_DEAD_NODE = ("partition", "freeze", "flush_scripts")
"""Without a spare node, a node that forgets would be an outage of one `max_ttl`."""


class Moving:
    """Four processes on a set of nodes, each behind a proxy, and the operator who changes it."""

    def __init__(
        self, stage: Stage, servers: Sequence[LocalServer], proxies: Sequence[FaultProxy]
    ) -> None:
        self.stage = stage
        self.servers = servers
        self.proxies = proxies

    def use(self, *numbers: int) -> None:
        """Name the nodes that all processes move to; one write, so that none reads a part."""
        file = self.stage.folder / "nodes"
        file.with_suffix(".new").write_text(json.dumps(self.urls(*numbers)))
        file.with_suffix(".new").replace(file)

    def urls(self, *numbers: int) -> list[str]:
        return [self.proxies[number].url for number in numbers]

    def fleet(self, *numbers: int) -> Fleet:
        return Fleet(*self.urls(*numbers), **OPTIONS)

    async def moved(self, *numbers: int) -> None:
        """Wait until each process uses these nodes alone."""

        def all_moved() -> bool:
            files = list(self.stage.folder.glob("moved-*"))
            wanted = self.urls(*numbers)
            used = [json.loads(file.read_text() or "[]") for file in files]
            return len(files) == PROCESSES and all(one == wanted for one in used)

        await until(all_moved, "all processes use the new nodes", timeout=120, every=0.05)

    async def all_lock(self, when: str) -> None:
        """Wait until each process has acquired a lock since this call."""
        began = History.now()
        wanted = {client.pid for client in self.stage.clients}

        def all_have() -> bool:
            history = self.stage.history()
            return wanted <= {
                one.pid for one in history if one.kind == "acquired" and one.began > began
            }

        await until(all_have, f"each process gets a lock {when}", timeout=120, every=0.5)

    async def change(self, old: Sequence[int], new: Sequence[int]) -> None:
        """One step, from the first command to the last."""
        (changed,) = set(old) ^ set(new)
        (url,) = self.urls(changed)
        async with self.fleet(*old) as fleet:
            await _repeated(lambda: fleet.add(url) if changed in new else fleet.remove(url))
            self.use(*new)
            await self.moved(*new)
            await self.all_lock(f"while clients of {old} may work beside {new}")
            # Connections of closed managers end a moment later.
            await _repeated(fleet.finish)
        await self.all_lock(f"after the step to {new}")


async def _repeated(command: Callable[[], Awaitable[FleetState]]) -> None:
    """What an operator does whose command meets a node that fails: the same once more."""

    async def done() -> bool:
        try:
            await command()
        except asynclock.QuorumUnavailableError:
            return False
        except asynclock.ConfigurationError as error:
            if FOR_NOW.search(str(error)):
                return False
            raise
        return True

    await until(done, "the command succeeds", timeout=120, every=0.2)


@contextlib.asynccontextmanager
async def traffic(folder: Path, seed: int) -> AsyncIterator[Moving]:
    """Five servers, of which four processes use the first three, with a record."""
    print(f"seed {seed}")
    need_clock_jumps()
    async with contextlib.AsyncExitStack() as stack:
        servers = await stack.enter_async_context(running(5, clock=True))
        (store,) = await stack.enter_async_context(running(1))
        for server in servers:
            server.jump_clock(3600)  # old enough for the restart guard
        proxies = [await stack.enter_async_context(FaultProxy(server)) for server in servers]
        moving = Moving(Stage(folder, servers, store), servers, proxies)
        moving.use(0, 1, 2)
        moving.stage.start_clients(
            seed, proxies, count=PROCESSES, tasks=6, program="mover", options=OPTIONS
        )
        try:
            await moving.moved(0, 1, 2)
            async with moving.fleet(0, 1, 2) as fleet:
                await _repeated(fleet.record)
            yield moving
            (folder / "stop").touch()
            await ended(moving.stage)
        finally:
            moving.stage.end_clients(0.1)
    # The seconds without a grant depend on the machine: one process has all proxies. They are
    # measured in virtual time, with the same faults: tests/guards/test_moves_in_time.py.
    judge(moving.stage, window=math.inf)


@contextlib.asynccontextmanager
async def faults(
    moving: Moving, seed: int, kinds: Sequence[str], numbers: Sequence[int]
) -> AsyncIterator[None]:
    """One node at a time, each kind in its turn and at least once."""
    nemesis = Nemesis(moving.servers, moving.proxies, [], seed=seed, settle=PUT_BACK)
    done: list[str] = []

    async def rage() -> None:
        for kind in itertools.cycle(kinds):
            number = nemesis.random.choice(numbers)
            await FAULTS[kind](nemesis, number)
            await moving.all_lock(f"after {kind} {number}")
            # The next node must not forget a lease that this one lacks.
            await asyncio.sleep(PUT_BACK if kind != "flush_scripts" else 0.5)
            done.append(f"{kind} {number}")

    raging = asyncio.create_task(rage())
    try:
        yield
        await until(lambda: len(done) >= len(kinds) or raging.done(), "each fault", timeout=120)
    finally:
        raging.cancel()
        print(f"{len(done)} faults: {', '.join(done)}")
        for server, proxy in zip(moving.servers, moving.proxies, strict=True):
            proxy.heal()
            await server.thaw()
    with contextlib.suppress(asyncio.CancelledError):
        await raging


async def test_three_nodes_become_five_and_three_again(tmp_path: Path) -> None:
    """While nodes restart without their data, are cut off or stand still, one after the other."""
    async with traffic(tmp_path, seed=5) as moving, faults(moving, 5, FAULTS_OF_ALL, range(5)):
        sets = [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4), (1, 2, 3, 4), (2, 3, 4)]
        for old, new in itertools.pairwise(sets):
            await moving.change(old, new)


async def test_a_dead_node_is_replaced(tmp_path: Path) -> None:
    """While the others are cut off or stand still for a moment, with no node to spare."""
    async with traffic(tmp_path, seed=6) as moving:
        await moving.servers[0].kill()
        async with faults(moving, 6, FAULTS_BESIDE_A_DEAD_NODE, (1, 2, 3)):
            await moving.change((0, 1, 2), (0, 1, 2, 3))
            await moving.change((0, 1, 2, 3), (1, 2, 3))
