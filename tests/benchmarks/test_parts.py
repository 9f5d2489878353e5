"""The parts of the benchmarks: what they compare with, judge and measure beside the scenarios."""

import asyncio
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from asynclock.testing import local_servers
from benchmarks import judged
from benchmarks.adapters import Adapter
from benchmarks.adapters.floor import Floor
from benchmarks.adapters.wrappers import EverNew, Queued
from benchmarks.capacity import DEPLOYMENTS, costs, memory, ratio
from benchmarks.page import QUERIES
from benchmarks.page import measure as measure_page
from benchmarks.retention import measure as measure_retention
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.timeout(180)  # servers on a busy machine start slowly


# ---- the floor does what a plain Redlock does, or it would be no limit ---------------------------
async def test_the_floor_locks_with_a_ttl_and_frees_only_its_own_lock() -> None:
    async with local_servers(1) as [server]:
        floor = Floor([server.url], 10.0, {})
        await floor.open()
        lease = await floor.acquire("name")
        assert await server.command("GET", "name") == lease[1].decode()
        left = await server.command("PTTL", "name")
        assert isinstance(left, int)
        assert 0 < left <= 10_000
        await floor.release((lease[0], b"another owner"))
        assert await server.command("GET", "name") == lease[1].decode()
        await floor.release(lease)
        assert await server.command("GET", "name") is None
        await floor.close()


# ---- recorded histories are judged ---------------------------------------------------------------
def written(path: Path, *bodies: tuple[float, float, float, int]) -> Path:
    with path.open("wb") as file:
        array("d", [number for body in bodies for number in body]).tofile(file)
    return path


def test_bodies_of_all_processes_come_in_order(tmp_path: Path) -> None:
    fence = 2**53 - 1  # microseconds since 1970 need 51 bits: a double keeps them whole
    one = written(tmp_path / "0", (0.0, 1.0, 2.0, 7), (2.2, 5.0, 6.0, fence))
    two = written(tmp_path / "1", (0.0, 3.0, 4.0, 8))
    assert judged.recorded([one, two]) == [
        (0.0, 1.0, 2.0, 7, 0),
        (0.0, 3.0, 4.0, 8, 1),
        (2.2, 5.0, 6.0, fence, 0),
    ]


def test_violations_are_counted() -> None:
    clean = [(0.0, 1.0, 2.0, 1, 0), (0.0, 2.0, 3.0, 2, 1)]
    assert judged.violations(clean) == 0
    together = [(0.0, 1.0, 2.5, 1, 0), (0.0, 2.0, 3.0, 2, 1)]
    assert judged.violations(together) == 1
    falling = [(0.0, 1.0, 2.0, 2, 0), (1.5, 2.0, 3.0, 1, 1)]
    assert judged.violations(falling) == 1
    repeated = [(0.0, 1.0, 2.0, 2, 0), (0.5, 2.0, 3.0, 2, 1)]
    assert judged.violations(repeated) == 1


def test_the_longest_wait_is_told_in_bodies_of_others() -> None:
    order = [0, 0, 1, 1, 1, 0, 0, 0, 0]
    bodies = [(n, n, n + 1, n, process) for n, process in enumerate(order)]
    # Process 1 waited for two before its turn and for four after it; process 0 for three.
    assert judged.longest_wait(bodies, 2) == 4
    assert judged.longest_wait(bodies, 3) == len(order)  # process 2 never had it


# ---- what a scenario puts around a lock ----------------------------------------------------------
class Recorder(Adapter):
    """Notes the names, and how many calls of `acquire` and bodies there are at once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.busy = self.peak = 0

    async def open(self) -> None:
        """Nothing to open."""

    async def acquire(self, name: str) -> Any:
        self.names.append(name)
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        await asyncio.sleep(0)
        return name

    async def release(self, lease: Any) -> None:
        await asyncio.sleep(0)
        self.busy -= 1

    async def close(self) -> None:
        """Nothing to close."""


async def cycle(lock: Any, name: str) -> None:
    lease = await lock.acquire(name)
    await asyncio.sleep(0)
    await lock.release(lease)


async def test_behind_a_local_lock_one_task_at_a_time_asks() -> None:
    alone, together = Recorder(), Recorder()
    queued = Queued(alone)
    await asyncio.gather(*(cycle(queued, "a") for _ in range(5)))
    await asyncio.gather(*(cycle(together, "a") for _ in range(5)))
    assert (alone.peak, together.peak) == (1, 5)
    assert alone.names == ["a"] * 5


async def test_ever_new_names_are_all_different() -> None:
    recorder = Recorder()
    fresh = EverNew(recorder)
    await asyncio.gather(*(cycle(fresh, name) for name in "aab"))
    assert len(set(recorder.names)) == 3


# ---- the measurement of the live page ------------------------------------------------------------
async def test_updates_and_snapshots_are_measured() -> None:
    found = await measure_page(300, 40, 3, browser=False)
    assert found.updates.keys() == QUERIES.keys()
    assert all(0 < wall < 60 for times in found.updates.values() for wall, _ in times)
    assert 0 <= found.stall <= found.snapshot
    assert found.drawn == {}


# ---- the tables of docs/capacity.md --------------------------------------------------------------
@pytest.mark.parametrize(
    ("deployment", "connections"), list(zip(DEPLOYMENTS, (1, 3, 5, 1, 4, 6), strict=True))
)
async def test_what_a_deployment_costs(deployment: str, connections: int) -> None:
    found = await costs(deployment, 200)
    assert found.connections == connections
    for each in (found.client, found.servers):
        assert set(each) == {1, 100}
        assert all(figure > 0 for figure in each.values())
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8")
    assert re.search(rf"^\| {re.escape(deployment)} \| {connections} \|", page, re.MULTILINE)


async def test_what_names_and_waiters_take() -> None:
    # A server counts the buffers of its connections as well: some 40 KB that come and go.
    found = await memory(2000, 200)
    assert 0 < found.counter < found.held < 2000
    assert 0 < found.later_waiter < 3000
    assert 0 < found.first_waiter < 3000


async def test_what_a_lock_costs_a_node() -> None:
    assert await ratio(blocks=2, cycles=200) > 1  # scripts do more than one plain command


# ---- names cost a node nothing once they are free ------------------------------------------------
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("records", [False, True])
async def test_the_memory_is_back_after_the_retention(records: bool) -> None:
    found = await measure_retention(20_000, 66, records=records)
    assert found.keys > 10_000
    assert found.most > found.before + 1_000_000
    assert found.keys_left == 0
    assert found.back, found
    assert found.fences_rise
