"""One name wanted by many, in one process and in several: every body is recorded and judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import asynclock
from asynclock.testing import Event, History, LocalServer, check, until
from asynclock.testing.plugin import StartServers
from tests import patient
from tests.contention.worker import Orders, work

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
HANDOFFS = (True, "strict", False)


@contextlib.asynccontextmanager
async def processes(orders: Orders, count: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Workers that are ready and wait for the end of their input."""
    command = (sys.executable, "-m", "tests.contention.worker", json.dumps(asdict(orders)))
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT, env=env)
        for _ in range(count)
    ]
    try:
        for process in started:
            assert await said(process) == "ready"
        yield started
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def begin(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


async def waits(locks: asynclock.LockManager) -> bool:
    return bool(locks.waiters())


def urls(servers: list[LocalServer]) -> list[str]:
    return [server.url for server in servers]


def bodies(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "acquired"]


@pytest.mark.parametrize("handoff", HANDOFFS)
@pytest.mark.parametrize("n", [1, 5])
async def test_a_hundred_tasks_of_one_process(
    asynclock_servers: StartServers, n: int, handoff: Any
) -> None:
    orders = Orders(urls(await asynclock_servers(n)), "", 100, 0.5, handoff)
    history = History()
    async with patient.connect(*orders.urls, restart_guard=False) as locks:
        await work(locks, history, orders)
        handed_over = locks.statistics().handovers
    events = list(history)
    assert check(events) == []
    assert len(bodies(events)) >= 100  # each task at least once: no task was passed over
    assert (handed_over > 0) is bool(handoff)


@pytest.mark.parametrize("handoff", HANDOFFS)
@pytest.mark.parametrize("n", [1, 5])
async def test_four_processes(
    asynclock_servers: StartServers, tmp_path: Path, n: int, handoff: Any
) -> None:
    history = tmp_path / "history.jsonl"
    orders = Orders(urls(await asynclock_servers(n)), str(history), 25, 1.0, handoff)
    async with processes(orders, 4) as started:
        for process in started:
            begin(process)
        assert [await process.wait() for process in started] == [0] * 4
    events = list(History(history))
    assert check(events) == []
    counts = Counter(event.pid for event in bodies(events))
    assert counts.keys() == {process.pid for process in started}


@pytest.mark.parametrize("n", [1, 5])
async def test_after_a_killed_holder(
    asynclock_servers: StartServers, tmp_path: Path, n: int
) -> None:
    history = History(tmp_path / "history.jsonl")
    orders = Orders(
        urls(await asynclock_servers(n)), str(tmp_path / "history.jsonl"), 10, 0.2, ttl=1.5
    )
    holding = replace(orders, hold=True)
    async with processes(holding, 1) as (holder,), processes(orders, 2) as waiters:
        begin(holder)
        assert await said(holder) == "held"
        async with patient.connect(*orders.urls, restart_guard=False) as locks:
            waiting = asyncio.create_task(work(locks, history, orders))
            for waiter in waiters:
                begin(waiter)
            await until(partial(waits, locks), "somebody waits for it")
            holder.kill()
            await waiting
            assert [await waiter.wait() for waiter in waiters] == [0, 0]
    events = list(history)
    assert check(events) == []
    first, *others = bodies(events)
    assert first.pid == holder.pid
    assert first.until is not None
    assert min(event.at for event in others) >= first.until


async def test_two_holders_are_noticed(asynclock_servers: StartServers) -> None:
    """Two clients that have different nodes exclude nobody."""
    history = History()

    async def client(server: LocalServer) -> None:
        orders = Orders([server.url], "", 2, 0.2)
        async with patient.connect(*orders.urls, restart_guard=False) as locks:
            await work(locks, history, orders)

    await asyncio.gather(*map(client, await asynclock_servers(2)))
    assert "overlap" in {violation.rule for violation in check(history)}
