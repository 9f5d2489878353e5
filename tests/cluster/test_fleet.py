"""The set of nodes changes under the traffic of four processes, while nodes fail.

No two holders, fences rise, and no lease is lost. Each process moves to the new nodes at a moment
of its own, so both sets of a step are in use at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from asynclock.fleet import Fleet
from asynclock.testing import LocalServer
from tests.able_servers import need_clock_jumps
from tests.cluster.nemesis import Nemesis
from tests.cluster.test_faults import TTL, Stage, judge, running
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROCESSES = 4
PUT_BACK = 2 * TTL + 1
"""Seconds after which a node that restarted empty votes again and has the keys of held leases."""
OPTIONS = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.5}


class Moving:
    """Four processes on a set of nodes, and the operator who changes it."""

    def __init__(self, stage: Stage, servers: Sequence[LocalServer]) -> None:
        self.stage = stage
        self.servers = servers

    def use(self, *numbers: int) -> None:
        """Name the nodes that all processes move to; one write, so that none reads a part."""
        file = self.stage.folder / "nodes"
        file.with_suffix(".new").write_text(json.dumps(self.urls(*numbers)))
        file.with_suffix(".new").replace(file)

    def urls(self, *numbers: int) -> list[str]:
        return [self.servers[number].url for number in numbers]

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

    async def change(self, old: Sequence[int], new: Sequence[int]) -> None:
        """One step, from the first command to the last."""
        (changed,) = set(old) ^ set(new)
        async with self.fleet(*old) as fleet:
            if changed in new:
                await fleet.add(self.servers[changed].url)
            else:
                await fleet.remove(self.servers[changed].url)
            self.use(*new)
            await self.moved(*new)
            # Connections of closed managers end a moment later.
            await until(lambda: _finished(fleet), "the step is finished", timeout=120, every=0.2)


async def _finished(fleet: Fleet) -> bool:
    clients = (await fleet.show()).clients
    if clients is None or any(client.uses == "old" for client in clients):
        return False
    record = (await fleet.finish()).record
    return record is not None and record.phase == "settled"


@contextlib.asynccontextmanager
async def traffic(folder: Path, seed: int) -> AsyncIterator[Moving]:
    """Five servers, of which four processes use the first three, with a record."""
    print(f"seed {seed}")
    need_clock_jumps()
    async with running(5, clock=True) as servers, running(1) as (store,):
        for server in servers:
            server.jump_clock(3600)  # old enough for the restart guard
        moving = Moving(Stage(folder, servers, store), servers)
        moving.use(0, 1, 2)
        moving.stage.start_clients(seed, [], count=PROCESSES, tasks=6, program="mover")
        try:
            await moving.moved(0, 1, 2)
            async with moving.fleet(0, 1, 2) as fleet:
                await fleet.record()
            yield moving
            (folder / "stop").touch()
        finally:
            moving.stage.end_clients(60.0)
    judge(moving.stage)


@contextlib.asynccontextmanager
async def faults(moving: Moving, seed: int, kinds: Sequence[str]) -> AsyncIterator[Nemesis]:
    """One node at a time, until the end of the block."""
    nemesis = Nemesis(moving.servers, [], [], seed=seed, settle=PUT_BACK, kinds=kinds, most=1)
    raging = asyncio.create_task(nemesis.rage(600.0))
    try:
        yield nemesis
    finally:
        raging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await raging
        print(f"{len(nemesis.done)} faults: {', '.join(nemesis.done[:50])}")
        for server in moving.servers:
            await server.thaw()


async def test_three_nodes_become_five_and_three_again(tmp_path: Path) -> None:
    """While nodes are restarted without their data, one after the other."""
    async with traffic(tmp_path, seed=5) as moving, faults(moving, 5, ("restart", "flush_scripts")):
        sets = [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4), (1, 2, 3, 4), (2, 3, 4)]
        for old, new in itertools.pairwise(sets):
            await moving.change(old, new)


async def test_a_dead_node_is_replaced(tmp_path: Path) -> None:
    async with traffic(tmp_path, seed=6) as moving:
        await moving.servers[0].kill()
        await moving.change((0, 1, 2), (0, 1, 2, 3))
        await moving.change((0, 1, 2, 3), (1, 2, 3))
