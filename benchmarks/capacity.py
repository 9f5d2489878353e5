"""``python -m benchmarks capacity``: what locks cost, as the tables of docs/capacity.md.

CPU is processor time, of this process and of all servers: other load on the machine changes it
little, but it does change any pace. Memory is what a server itself says, and what Python allocates.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.asyncio import Redis

import asynclock
from asynclock.testing import (
    LocalServer,
    Quorum,
    RedisCluster,
    Replicated,
    SentinelGroup,
    Single,
    Topology,
    local_servers,
    until,
)
from asynclock.testing.load import processor_seconds

from .nodes import Nodes

T = TypeVar("T")
TASKS = 100
USUAL: dict[str, Any] = {"restart_guard": False, "node_timeout": 2.0}
DEPLOYMENTS: dict[str, tuple[Callable[[], Topology], dict[str, Any]]] = {
    "one node": (Single, {}),
    "quorum of 3": (lambda: Quorum(3), {}),
    "quorum of 5": (lambda: Quorum(5), {}),
    "`acks=1`, two replicas": (Replicated, {"acks": 1}),
    "3 Sentinels, `acks=1`": (SentinelGroup, {"acks": 1}),
    "Cluster of 3": (lambda: RedisCluster(3, 0), {}),
}


@dataclass(frozen=True)
class Costs:
    """What one deployment costs; CPU in microseconds per acquire and release."""

    connections: int
    """Connections of one process, to all servers."""
    client: dict[int, float]
    """Number of tasks -> CPU of the client."""
    servers: dict[int, float]
    """Number of tasks -> CPU of all servers together."""


async def costs(name: str, cycles: int) -> Costs:
    """Measure a deployment of local servers with 1 and with 100 tasks, a name each."""
    make, settings = DEPLOYMENTS[name]
    async with make() as group:
        sentinels: list[LocalServer] = getattr(group, "sentinels", [])
        able, everyone = Nodes(group.servers, {}), [*group.servers, *sentinels]
        before = await _connections(everyone)
        async with asynclock.connect(*group.addresses, **USUAL, **settings) as locks:
            await _cycles(locks, TASKS, TASKS)
            found = Costs(await _connections(everyone) - before, {}, {})
            for tasks in (1, TASKS):
                await _cycles(locks, tasks, cycles // 4)  # warms up
                began, own = await able.counters(), processor_seconds()
                await _cycles(locks, tasks, cycles)
                found.client[tasks] = (processor_seconds() - own) / cycles * 1e6
                found.servers[tasks] = (await able.counters() - began).cpu / cycles * 1e6
            return found


async def _connections(servers: Sequence[LocalServer]) -> int:
    """Count the clients of all servers, without Sentinels, which connect again at any time."""
    texts = [str(await server.command("CLIENT", "LIST")) for server in servers]
    return sum(" name=sentinel-" not in line for text in texts for line in text.splitlines())


async def _cycles(locks: asynclock.LockManager, tasks: int, cycles: int) -> None:
    async def task(number: int) -> None:
        for _ in range(max(1, cycles // tasks)):
            async with locks.lock(f"cpu:{number}"):
                pass

    await asyncio.gather(*map(task, range(tasks)))


@dataclass(frozen=True)
class Bytes:
    """Memory of a node and of a client."""

    held: float
    counter: float
    first_waiter: float
    later_waiter: float
    lease: float
    waiting: float


async def memory(names: int, waited_for: int) -> Bytes:
    """Measure one node with names that are held or waited for, and the clients."""
    async with local_servers(1) as [server], Redis.from_url(server.url) as redis:

        async def used() -> int:
            found = int((await redis.info("memory"))["used_memory"])
            # The buffers of connections come and go.
            return found - sum(int(client["tot-mem"]) for client in await redis.client_list())

        async def take(prefix: str, count: int) -> list[asynclock.Lease]:
            each = [first.lock(f"{prefix}:{number:08}") for number in range(count)]
            bursts = (each[at : at + TASKS] for at in range(0, count, TASKS))
            return [one for some in bursts for one in await _together([o.acquire() for o in some])]

        async def wait(locks: asynclock.LockManager) -> int:
            each = (f"waited:{number:08}" for number in range(waited_for))
            tasks.extend(asyncio.ensure_future(locks.lock(one).acquire()) for one in each)

            async def all_wait() -> bool:
                return len(locks.waiters()) == waited_for

            await until(all_wait, "all wait", timeout=60)
            return await used()

        # Nothing is lost where other load makes this process stand still for long.
        usual = {**USUAL, "ttl": 60.0, "max_ttl": 60.0}
        managers = [asynclock.connect(server.url, **usual) for _ in range(3)]
        first, second, third = managers
        for locks in managers:
            async with locks.lock("warm"):
                pass
        tasks: list[asyncio.Future[asynclock.Lease]] = []
        empty = await used()
        leases = await take("orders", names)
        held = await used()
        for at in range(0, names, TASKS):
            await _together([lease.release() for lease in leases[at : at + TASKS]])
        counters = await used()
        tracemalloc.start()
        own = tracemalloc.get_traced_memory()[0]
        leases = await take("waited", waited_for)
        before, held_here = await used(), tracemalloc.get_traced_memory()[0]
        one = await wait(second)
        waits_here = tracemalloc.get_traced_memory()[0]
        two = await wait(third)
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.gather(*(locks.aclose() for locks in managers))
    return Bytes(
        held=(held - empty) / names,
        counter=(counters - empty) / names,
        first_waiter=(one - before) / waited_for,
        later_waiter=(two - one) / waited_for,
        lease=(held_here - own) / waited_for,
        waiting=(waits_here - held_here) / waited_for,
    )


async def _together(calls: Sequence[Awaitable[T]]) -> list[T]:
    return await asyncio.gather(*calls)


async def ratio(blocks: int, cycles: int) -> float:
    """Return a node's CPU for locks, as a multiple of a plain `SET NX PX` and its `DEL`.

    Both run in blocks in turns; this is the median of the ratios of the blocks.
    """
    async with local_servers(1) as [server], Redis.from_url(server.url) as redis:
        able, found = Nodes([server], {}), []
        async with asynclock.connect(server.url, **USUAL) as locks:
            for block in range(blocks + 1):
                began = await able.counters()
                await _cycles(locks, TASKS, cycles)
                between = await able.counters()
                await _plain(redis, cycles)
                after = await able.counters()
                if block:  # the first one warms up
                    found.append((between - began).cpu / (after - between).cpu)
        return statistics.median(found)


async def _plain(redis: Redis, cycles: int) -> None:
    # As many are in flight as the tasks of `_cycles` have.
    for _ in range(cycles // TASKS):
        async with redis.pipeline(transaction=False) as pipeline:
            for number in range(TASKS):
                pipeline.set(f"plain:{number}", "owner", nx=True, px=10_000)
            await pipeline.execute()
            for number in range(TASKS):
                pipeline.delete(f"plain:{number}")
            await pipeline.execute()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--cycles", type=int, default=10_000, help="of each deployment")
    parser.add_argument("--names", type=int, default=20_000, help="held at a time")
    parser.add_argument("--waited-for", type=int, default=2000, help="names with waiters")
    parser.add_argument("--blocks", type=int, default=15)


def main(arguments: argparse.Namespace) -> int:
    """Measure and print the tables."""
    print("| deployment | connections | client, 1 task | client, 100 | servers, 1 | servers, 100 |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in DEPLOYMENTS:
        found = asyncio.run(costs(name, arguments.cycles))
        cells = [each[tasks] for each in (found.client, found.servers) for tasks in (1, TASKS)]
        numbers = " | ".join(f"{cell:.0f} µs" for cell in cells)
        print(f"| {name} | {found.connections} | {numbers} |", flush=True)
    seen = asyncio.run(memory(arguments.names, arguments.waited_for))
    print("\n| memory | bytes |\n|---|--:|")
    for what, count in (
        ("of a node, for a name that is held", seen.held),
        ("of a node, for the counter of a name that was released", seen.counter),
        ("of a node, for the first process that waits for a name", seen.first_waiter),
        ("of a node, for each further process that waits for it", seen.later_waiter),
        ("of a client, for a lease", seen.lease),
        ("of a client, for a task that waits", seen.waiting),
    ):
        print(f"| {what} | {count:,.0f} |")
    times = asyncio.run(ratio(arguments.blocks, arguments.cycles // 5))
    print(f"\nA node's CPU for locks: {times:.2f} times that of SET NX PX and DEL, in a pipeline.")
    print(f"Load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
    return 0
