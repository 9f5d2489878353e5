"""Traffic from several processes on real servers that are broken all the time, and the history of
it checked. The seed is printed; it fixes what is broken in which order, not the exact moments.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from asynclock.testing import Event, FaultProxy, History, LocalServer, check, start_servers
from tests.able_servers import need_clock_jumps
from tests.cluster.nemesis import Nemesis
from tests.cluster.worker import Orders
from tests.leftovers import LASTING
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAMES = ["a", "b", "c"]
TTL = 2.0
SETTLE = TTL * 1.01 + 0.5
"""A node that was restarted, flushed or whose clock jumped is out of the vote for so long."""
WINDOW = 5.0
HAMMER = ("kill", "freeze", "restart")
MOST_ROUNDS = 8
"""Maximum number of rounds of faults until a sabotage is caught."""


@contextlib.asynccontextmanager
async def running(n: int, **options: Any) -> AsyncIterator[list[LocalServer]]:
    servers = await start_servers(n, **options)
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


class Stage:
    """Servers, proxies of the first client, and client processes."""

    def __init__(self, folder: Path, servers: list[LocalServer], store: LocalServer) -> None:
        self.folder, self.servers, self.store = folder, servers, store
        self.clients: list[subprocess.Popen[bytes]] = []

    def start_clients(
        self,
        seed: int,
        proxies: Sequence[FaultProxy],
        *,
        count: int,
        tasks: int,
        sabotage: str = "",
    ) -> None:
        direct = [server.url for server in self.servers]
        for number in range(count):
            urls = [proxy.url for proxy in proxies] if not number and proxies else direct
            orders = Orders(
                number=number,
                seed=seed,
                urls=urls,
                store=self.store.url,
                folder=str(self.folder),
                stop=str(self.folder / "stop"),
                names=NAMES,
                tasks=tasks,
                options={"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.25},
                sabotage=sabotage,
            )
            command = [sys.executable, "-m", "tests.cluster.worker", json.dumps(vars(orders))]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.clients.append(subprocess.Popen(command, cwd=ROOT, env=env))

    def end_clients(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        try:
            for client in self.clients:
                assert client.wait(max(0.1, deadline - time.monotonic())) == 0
        finally:
            for client in self.clients:
                if client.poll() is None:
                    client.kill()
                    client.wait()

    def history(self) -> list[Event]:
        return list(History(self.folder / "history.jsonl"))

    def broken(self) -> bool:
        """Return whether two held a name at once, or as the same fence."""
        return any(one.rule in {"overlap", "fence repeats"} for one in check(self.history()))

    def complaints(self) -> list[str]:
        files = sorted(self.folder.glob("complaints-*"))
        return [line for file in files for line in file.read_text().splitlines()]

    def stale_writes(self) -> list[str]:
        """Writes that were accepted though a newer holder's write had been completed before."""
        by_name = defaultdict(list)
        for file in self.folder.glob("writes-*.jsonl"):
            for line in file.read_text().splitlines():
                write = json.loads(line)
                if write["accepted"]:
                    by_name[write["name"]].append(write)
        found = []
        for writes in by_name.values():
            newest = 0
            done = sorted(writes, key=lambda write: write["ended"])
            upcoming = iter(done)
            earlier = next(upcoming, None)
            for write in sorted(writes, key=lambda write: write["began"]):
                while earlier is not None and earlier["ended"] < write["began"]:
                    newest = max(newest, earlier["fence"])
                    earlier = next(upcoming, None)
                if write["fence"] < newest:
                    found.append(f"{write} after fence {newest}")
        return found

    async def keys_that_last(self) -> list[str]:
        """Lock keys with no ttl, or one that is longer than any lease's."""
        found = []
        for server in self.servers:
            for key in await server.command("KEYS", "asynclock:*"):
                left = await server.command("PTTL", key)
                if not key.endswith(LASTING) and (left == -1 or left > TTL * 1000):
                    found.append(f"{key} on {server.url}: {left} ms")
        return found


def windows_without_progress(events: list[Event]) -> list[float]:
    """The gaps of more than WINDOW seconds between acquisitions."""
    moments = [event.at for event in events if event.kind == "acquired"]
    gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
    return [gap for gap in gaps if gap > WINDOW]


async def play(
    folder: Path,
    seed: int,
    seconds: float,
    *,
    kinds: Sequence[str] = (),
    count: int = 4,
    tasks: int = 10,
    nodes: int = 5,
    sabotage: str = "",
    **options: Any,
) -> Stage:
    print(f"seed {seed}")
    need_clock_jumps()
    async with contextlib.AsyncExitStack() as stack:
        servers = await stack.enter_async_context(running(nodes, clock=True, **options))
        (store,) = await stack.enter_async_context(running(1))
        for server in servers:
            server.jump_clock(3600)  # old enough for the restart guard
        proxies = [await stack.enter_async_context(FaultProxy(server)) for server in servers]
        stage = Stage(folder, servers, store)
        try:
            stage.start_clients(seed, proxies, count=count, tasks=tasks, sabotage=sabotage)
            await _traffic(stage)
            nemesis = Nemesis(
                servers, proxies, stage.clients, seed=seed, settle=SETTLE, kinds=kinds
            )
            for _ in range(MOST_ROUNDS if sabotage else 1):
                await nemesis.rage(seconds)
                if sabotage and stage.broken():
                    break
            print(f"{len(nemesis.done)} faults: {', '.join(nemesis.done[:50])}")
            (folder / "stop").touch()
            await ended(stage)
        finally:
            stage.end_clients(0.1 if sabotage else 60.0)
        assert sabotage or await stage.keys_that_last() == []
    return stage


async def _traffic(stage: Stage) -> None:
    """Wait until clients lock: only then they know the nodes, and guards have facts."""
    await until(
        lambda: (stage.folder / "history.jsonl").exists() and stage.history(),
        "the clients lock",
        timeout=60,
    )


async def ended(stage: Stage) -> None:
    """The proxies live in this loop: it must turn until the clients have ended."""
    clients = stage.clients
    await until(lambda: all(one.poll() is not None for one in clients), "all ended", timeout=60)


def judge(stage: Stage) -> None:
    events = stage.history()
    acquired = sum(event.kind == "acquired" for event in events)
    print(f"{acquired} leases")
    assert [str(one) for one in check(events)] == []
    assert stage.complaints() == []
    assert stage.stale_writes() == []
    assert windows_without_progress(events) == []
    assert acquired > 20  # a busy machine has made 74


async def test_everything_at_once(tmp_path: Path) -> None:
    """Eight processes, and every fault that there is."""
    judge(await play(tmp_path, seed=1, seconds=30, count=8, tasks=5))


@pytest.mark.nightly
async def test_everything_at_once_for_ten_minutes(tmp_path: Path) -> None:
    seed = int(os.environ.get("ASYNCLOCK_SEED", time.time_ns() % 1_000_000))
    judge(await play(tmp_path, seed=seed, seconds=600, count=10, tasks=10))


@pytest.mark.parametrize("seconds", [8, pytest.param(20, marks=pytest.mark.nightly)])
async def test_three_names_hammered_while_nodes_fail(tmp_path: Path, seconds: float) -> None:
    """Nodes are killed, frozen and restarted with what they had written to disk."""
    judge(await play(tmp_path, seed=2, seconds=seconds, kinds=HAMMER, tasks=25, aof=True))


@pytest.mark.parametrize(
    "sabotage", ["acquire_without_owner_check", "release_without_owner_check", "quorum_minus_one"]
)
async def test_a_sabotage_is_caught(tmp_path: Path, sabotage: str) -> None:
    """The faults go on until it is caught: on a busy machine a few of them may meet no lease."""
    options: dict[str, Any] = {"kinds": HAMMER, "tasks": 6, "nodes": 3, "aof": True}
    stage = await play(tmp_path, seed=3, seconds=4, sabotage=sabotage, **options)
    assert stage.broken(), f"{sabotage} broke no promise"
