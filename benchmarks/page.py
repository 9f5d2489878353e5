"""Measures an update of the live page with many locks: `python -m benchmarks.page`.

An update is what a viewer waits for: the server selects and sorts the names of the last snapshot
and makes JSON of it, the browser shows it, until its next frame. Reading all locks of all nodes
takes longer; that is done beside, in slices, and less often. Both are measured, also together, and
how long a slice keeps the loop. CPU times hardly depend on what else the machine does; others do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asynclock
from asynclock.cli.serve import GARBAGE
from asynclock.contrib.dashboard import dashboard
from asynclock.contrib.dashboard.snapshots import SORTED, Query, Snapshots
from asynclock.testing import local_servers
from tests.contrib.apps import serving
from tests.contrib.browser import binaries, browse
from tests.contrib.planted import Planted, plant, planted
from tests.waiting import until

TOKEN = "a token for measuring"  # noqa: S105 - of a server on this machine
WAITERS = 20
"""Number of waiters of a contended name; the first name has half of all."""
QUERIES = {
    "what is wrong first": Query(),
    **{f"first sorted by {column}": Query(sort=column, reverse=True) for column in SORTED},
    "searched": Query(search="worker-eu-1"),
    "one lock": Query(lock="bulk:000000"),
}
WATCH = """
window.drawn = [];
const painted = paint, channel = new MessageChannel();
channel.port1.onmessage = (event) => window.drawn.push((performance.now() - event.data) / 1000);
paint = (picture) => {
  painted(picture);
  requestAnimationFrame(() => channel.port2.postMessage(clicked));
};
"""
"""Notes the seconds from the viewer's click to the frame that shows the update."""
LOOKS = ("search=web", "sort=holder", "search=worker", "lock=bulk:000000", "offset=99900", "")
"""What the viewer asks for."""


@dataclass
class Measured:
    """Seconds, with the load average of the machine."""

    updates: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """For each query the server's part of some updates, with its CPU time; the first one sorts."""
    drawn: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Seconds from a click to its frame, with the CPU time of the browser's process for the page:
    between two snapshots, and during one; empty without a browser."""
    snapshot: float = 0.0
    cpu: float = 0.0
    stall: float = 0.0
    """CPU time of the longest slice, mostly of Python's garbage collection."""
    load: float = 0.0


async def measure(locks: int, waiters: int, nodes: int, *, browser: bool = True) -> Measured:
    """Measure with made-up locks on local servers."""
    found = Measured()
    gc.set_threshold(*GARBAGE)  # as `asynclock serve` does
    async with local_servers(nodes) as servers:
        for first in range(0, locks, 1000):
            some = range(first, min(first + 1000, locks))
            await plant(servers, [_planted(n, waiters) for n in some])
        urls = [server.url for server in servers]
        settings: dict[str, Any] = {"ttl": 60.0, "max_ttl": 3600.0, "node_timeout": 10.0}
        async with asynclock.connect(*urls, restart_guard=False, **settings) as manager:
            shots = Snapshots(manager)
            await shots.take(Query())
            await _snapshot(shots, found)
            for name, query in QUERIES.items():
                found.updates[name] = [await _update(shots, query) for _ in range(5)]
            if browser and binaries():
                found.drawn = await _drawn(manager)
    found.load = os.getloadavg()[0]
    return found


def _planted(number: int, waiters: int) -> Planted:
    waiting = waiters // 2 if number == 0 else WAITERS * (number <= waiters // 2 // WAITERS)
    return planted(number, waiting, name=f"bulk:{number:06}", left=1800)


async def _snapshot(shots: Snapshots, found: Measured) -> None:
    shots._stale_at = 0.0  # noqa: SLF001 - to take one now
    async with _stalls() as stalls:
        began, cpu = time.perf_counter(), time.process_time()
        await shots.take(Query())
        found.snapshot, found.cpu = time.perf_counter() - began, time.process_time() - cpu
    found.stall = max(stalls)


@contextlib.asynccontextmanager
async def _stalls() -> AsyncIterator[list[float]]:
    """Note for how long the event loop runs no other task."""
    noted = [0.0]

    async def note() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            noted.append(time.thread_time() - began)

    noting = asyncio.create_task(note())
    try:
        yield noted
    finally:
        noting.cancel()


async def _update(shots: Snapshots, query: Query) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.thread_time()
    json.dumps(await shots.take(query, at_once=True))
    return time.perf_counter() - began, time.thread_time() - cpu


async def _drawn(manager: asynclock.LockManager) -> dict[str, list[tuple[float, float]]]:
    async def cpu() -> float:
        metrics = (await page.command("Performance.getMetrics"))["metrics"]
        return sum(float(one["value"]) for one in metrics if one["name"] == "ProcessTime")

    async def drawn() -> Any:
        return await page.run("return drawn[0]")

    async def click() -> list[tuple[float, float]]:
        noted = []
        for look in LOOKS:
            before = await cpu()
            await page.run(f"drawn = []; clicked = performance.now(); location.hash = '{look}'")
            seconds = await until(drawn, look, timeout=120, every=0.2)
            noted.append((float(seconds), await cpu() - before))
        return noted

    app = dashboard(manager, token=TOKEN)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with serving(app) as url, browse(Path(folder)) as page:
            await page.open(f"{url}/#token={TOKEN.replace(' ', '+')}")
            rows = "return document.querySelectorAll('#locks tbody tr').length > 0"
            await until(lambda: page.run(rows), "the first picture", timeout=120, every=0.2)
            await page.run(WATCH)
            await page.command("Performance.enable")
            found = {"": await click()}
            async with _reading(manager):
                found[" during a snapshot"] = await click()
    return found


@contextlib.asynccontextmanager
async def _reading(manager: asynclock.LockManager) -> AsyncIterator[None]:
    """Read all locks again and again, as for a snapshot."""

    async def read() -> None:
        while True:
            await Snapshots(manager).take(Query())

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


def _shown(times: Sequence[float]) -> str:
    return f"median {statistics.median(times) * 1000:.0f}, at most {max(times) * 1000:.0f}"


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=100_000)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    found = asyncio.run(measure(given.locks, given.waiters, given.nodes))
    print(f"{given.locks} locks, {given.waiters} waiters, {given.nodes} nodes; ms")
    for name, times in found.updates.items():
        walls, cpus = zip(*times, strict=True)
        print(f"  update, {name}: {_shown(walls)}; CPU {_shown(cpus)}")
    for when, times in found.drawn.items():
        walls, cpus = zip(*times, strict=True)
        print(f"  from a click to its frame{when}: {_shown(walls)}; browser's CPU {_shown(cpus)}")
    print(f"  snapshot {found.snapshot * 1000:.0f} (CPU {found.cpu * 1000:.0f})", end=", ")
    print(f"longest slice CPU {found.stall * 1000:.0f}")
    print(f"  load average {found.load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
