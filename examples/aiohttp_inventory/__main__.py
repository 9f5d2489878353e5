"""Starts nodes, services and customers; counts what was reserved."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from typing import Any

import aiohttp
from redis.asyncio import Redis

from asynclock.testing import LocalServer
from examples._stage import PATIENCE, free_ports, process, stage

NODES, SERVICES, CUSTOMERS = 3, 2, 60
STOCK = {"apples": 10, "books": 5, "chairs": 1, "desks": 20, "eggs": 3}
TRIES = 60


async def until_healthy(session: aiohttp.ClientSession, url: str) -> None:
    """Wait for the service, and for nodes that are old enough to vote."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health/locks") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


async def customer(
    session: aiohttp.ClientSession, urls: list[str], number: int, statuses: Counter[int]
) -> None:
    """A customer who wants one piece of each item."""
    for item in random.sample(list(STOCK), len(STOCK)):
        for attempt in range(TRIES):
            url = f"{urls[(number + attempt) % len(urls)]}/items/{item}/reserve"
            async with session.post(url, params={"customer": str(number)}) as answer:
                statuses[answer.status] += 1
                if answer.status in (200, 410):
                    break
                pause = float(answer.headers.get("Retry-After", 1))
            await asyncio.sleep(random.uniform(0, min(pause, 1)))


async def kill_half_way(server: LocalServer, statuses: Counter[int]) -> None:
    """Kill one node while customers are served."""
    while statuses[200] < sum(STOCK.values()) // 2:
        await asyncio.sleep(0.01)
    await server.kill()
    print(f"node {server.url} is killed", flush=True)


async def main() -> int:
    """Run the example and return the exit status."""
    statuses: Counter[int] = Counter()
    # The stock has its own server, because the locks protect it and don't depend on it.
    async with stage(NODES + 1) as (_, servers), contextlib.AsyncExitStack() as stack:
        store, *nodes = servers
        redis = await stack.enter_async_context(Redis.from_url(store.url, decode_responses=True))
        for item, left in STOCK.items():
            await redis.hset(f"stock:{item}", mapping={"left": left, "customers": "[]"})
        ports = stack.enter_context(free_ports(SERVICES))
        for port in ports:
            arguments = [str(port), store.url, *(node.url for node in nodes)]
            service = process("examples.aiohttp_inventory.service", *arguments)
            await stack.enter_async_context(service)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as crowd:
            await asyncio.gather(*(until_healthy(session, url) for url in urls))
            killing = crowd.create_task(kill_half_way(nodes[0], statuses))
            await asyncio.gather(
                *(customer(session, urls, number, statuses) for number in range(CUSTOMERS))
            )
            await killing
        found = {item: await redis.hgetall(f"stock:{item}") for item in STOCK}
    return report(found, statuses)


def report(found: dict[str, dict[Any, Any]], statuses: Counter[int]) -> int:
    """Print what happened; return 0 if everything went as it should."""
    right = statuses[200] == sum(STOCK.values()) and not statuses[500]
    for item, stock in found.items():
        names = json.loads(stock["customers"])
        good = stock["left"] == "0" and len(names) == len(set(names)) == STOCK[item]
        print(f"{item}: {STOCK[item]} in stock, {len(names)} reserved, {stock['left']} left")
        right = right and good
    shown = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    print(f"{CUSTOMERS} customers: {shown}")
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
