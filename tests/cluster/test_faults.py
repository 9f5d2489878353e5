"""Traffic from several processes on real servers that are broken all the time, and the history of
it checked. The seed is printed; it fixes what is broken in which order, not the exact moments.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
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
from tests.waiting import becomes, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAMES = ["a", "b", "c"]
TTL = 2.0
SETTLE = TTL * 1.01 + 0.5
"""A node that was restarted, flushed or whose clock jumped is out of the vote for so long."""
WINDOW = 5.0
HAMMER = ("kill", "freeze", "restart")
MOST_ROUNDS = 2
"""Maximum number of rounds until a sabotage is caught."""


class Stage:
    """Servers, proxies of the first client, and client processes."""

    def __init__(
        self, folder: Path, servers: Sequence[LocalServer], proxies: Sequence[FaultProxy]
    ) -> None:
        self.folder, self.servers, self.proxies = folder, servers, proxies
        self.clients: list[subprocess.Popen[bytes]] = []

    def start_clients(self, seed: int, store: LocalServer, *, count: int, **settings: Any) -> None:
        for number in range(count):
            orders = Orders(
                number=number,
                seed=seed,
                urls=[one.url for one in (self.servers if number else self.proxies)],
                store=store.url,
                folder=str(self.folder),
                stop=str(self.folder / "stop"),
                names=NAMES,
                options={"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.25},
                **settings,
            )
            command = [sys.executable, "-m", "tests.cluster.worker", json.dumps(vars(orders))]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.clients.append(subprocess.Popen(command, cwd=ROOT, env=env))

    async def end(self) -> None:
        """Let the clients end. The proxies live in this loop, which must turn until then."""
        (self.folder / "stop").touch()
        await becomes(
            lambda: [client.poll() for client in self.clients], [0] * len(self.clients), timeout=60
        )

    async def freeze(self, seconds: float) -> None:
        """Stop a server and all clients but one, and let them go on."""
        await self.servers[0].freeze()
        for client in self.clients[1:]:
            client.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for client in self.clients[1:]:
            client.send_signal(signal.SIGCONT)
        await self.servers[0].thaw()

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


@contextlib.asynccontextmanager
async def staged(
    folder: Path, seed: int, *, count: int = 4, nodes: int = 5, aof: bool = False, **settings: Any
) -> AsyncIterator[Stage]:
    """Servers, and clients that lock until the block ends."""
    need_clock_jumps()
    async with contextlib.AsyncExitStack() as stack:
        servers = await start_servers(nodes, clock=True, aof=aof)
        for server in servers:
            stack.callback(server.close)
        (store,) = await start_servers(1)
        stack.callback(store.close)
        for server in servers:
            server.jump_clock(3600)  # old enough for the restart guard
        proxies = [await stack.enter_async_context(FaultProxy(server)) for server in servers]
        stage = Stage(folder, servers, proxies)
        try:
            stage.start_clients(seed, store, count=count, **settings)
            # Clients that lock know the nodes, and guards have facts.
            await until(stage.history, "the clients lock", timeout=60)
            yield stage
        finally:
            for client in stage.clients:
                client.kill()
                client.wait()


async def play(
    folder: Path, seed: int, seconds: float, *, kinds: Sequence[str] = (), **settings: Any
) -> Stage:
    print(f"seed {seed}")
    async with staged(folder, seed, **settings) as stage:
        nemesis = Nemesis(
            stage.servers, stage.proxies, stage.clients, seed=seed, settle=SETTLE, kinds=kinds
        )
        await nemesis.rage(seconds)
        print(f"{len(nemesis.done)} faults: {', '.join(nemesis.done[:50])}")
        await stage.end()
        assert await stage.keys_that_last() == []
    return stage


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
    ("sabotage", "body"),
    [
        ("acquire_without_owner_check", 0.002),
        ("release_without_owner_check", 0.5),
        ("quorum_minus_one", 0.002),
    ],
)
async def test_a_sabotage_is_caught(tmp_path: Path, sabotage: str, body: float) -> None:
    """A server and all clients but one stop for longer than leases last.

    The other client takes their names, on two servers. It has them when the server grants them to
    others, and when the clients release what they have lost.
    """
    async with staged(tmp_path, 3, tasks=6, nodes=3, body=body, sabotage=sabotage) as stage:
        for _ in range(MOST_ROUNDS):
            await stage.freeze(SETTLE)
            with contextlib.suppress(TimeoutError):
                await until(stage.broken, timeout=5, every=0.1)
                return
    pytest.fail("it broke no promise")
