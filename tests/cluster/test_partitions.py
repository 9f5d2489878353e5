"""Clients on both sides of a partition among Sentinels, each side with a primary of its own.

Some clients see the old primary, which lives on, and one Sentinel of three; the others see the
majority, which has promoted a replica. At no moment may both sides hold a name.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest

import asynclock
from asynclock.testing import FaultProxy, History, SentinelGroup, check
from tests.cluster.test_failover import TTL, traffic, until_served


async def partitions(rounds: int, folder: Path) -> None:
    near, far = History(folder / "history.jsonl"), History(folder / "far.jsonl")
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(SentinelGroup(2, 3))
        proxies = [await stack.enter_async_context(FaultProxy(one)) for one in service.sentinels]
        through = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        cut_off = await stack.enter_async_context(
            asynclock.connect(f"redis+sentinel://{through}/mymaster", ttl=TTL, max_ttl=TTL)
        )
        others = await stack.enter_async_context(
            asynclock.connect(*service.addresses, ttl=TTL, max_ttl=TTL)
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(traffic(cut_off, near, stop))
                group.create_task(traffic(others, far, stop))
            await until_served(near, 0)
            for _ in range(rounds):
                await part(service, proxies, far)
                await until_served(near, len(list(near)))
            stop.set()
    events = [*near, *far]
    print(f"{rounds} partitions, {sum(event.kind == 'acquired' for event in events)} leases")
    assert [str(one) for one in check(sorted(events, key=lambda event: event.at))] == []


async def part(service: SentinelGroup, proxies: list[FaultProxy], far: History) -> None:
    """Let the majority promote another primary while one side still sees the old one; then heal."""
    old = service.primary
    proxies[0].partition()
    proxies[1].partition()
    await old.command("ACL", "SETUSER", "default", "-slaveof")  # no Sentinel demotes it
    served = len(list(far))
    await service.sentinels[0].command("SENTINEL", "FAILOVER", "mymaster")
    await until_served(far, served)
    await old.command("ACL", "SETUSER", "default", "+slaveof")
    for proxy in proxies[:2]:
        proxy.heal()
    await service.failed_over(old)


@pytest.mark.cluster
@pytest.mark.timeout(180)
async def test_a_partition_among_sentinels(tmp_path: Path) -> None:
    await partitions(1, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_ten_partitions_among_sentinels(tmp_path: Path) -> None:
    await partitions(10, tmp_path)
