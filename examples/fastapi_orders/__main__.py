"""Starts nodes, services and buyers; counts what was sold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter

import httpx

from examples._stage import PATIENCE, free_ports, percentile, process, stage
from examples.fastapi_orders.buyers import Buyers, Tally
from examples.fastapi_orders.store import open_store

NODES, SERVICES, BUYERS, ORDERS = 5, 2, 200, 50


async def until_healthy(url: str) -> None:
    """Wait for the service, and for nodes that are old enough to vote."""
    async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/health/locks")).status_code == 200:
                    return
            await asyncio.sleep(0.1)


async def main() -> int:
    """Run the example and return the exit status."""
    async with stage(NODES) as (folder, servers), contextlib.AsyncExitStack() as services:
        database = os.environ.get("DATABASE") or str(folder / "orders.sqlite")
        store = open_store(database)
        store.create(ORDERS)
        environment = {
            "ASYNCLOCK_NODES": ",".join(server.url for server in servers),
            "DATABASE": database,
        }
        ports = services.enter_context(free_ports(SERVICES))
        for port in ports:
            arguments = ("examples.fastapi_orders.service:app", "--port", str(port))
            quiet = ("--log-level", "warning", "--no-access-log")
            # Longer than the clients keep idle connections, so that none is closed at a request.
            keep = ("--timeout-keep-alive", "30")
            started = process("uvicorn", *arguments, *quiet, *keep, environment=environment)
            await services.enter_async_context(started)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        await asyncio.gather(*map(until_healthy, urls))
        print(f"{SERVICES} services at {', '.join(urls)}; {NODES} nodes", flush=True)
        killing: list[asyncio.Task[None]] = []

        def kill_a_node() -> None:
            print(f"node {servers[1].url} is killed", flush=True)
            killing.append(asyncio.create_task(servers[1].kill()))

        began = time.monotonic()
        tally = await Buyers(urls, ORDERS, kill_a_node).run(BUYERS)
        await asyncio.gather(*killing)
        return report(tally, store.sales(), time.monotonic() - began)


def report(tally: Tally, sales: list[tuple[int, str]], seconds: float) -> int:
    """Print what happened; return 0 if everything went as it should."""
    sold = Counter(order for order, _ in sales)
    once = sum(count == 1 for count in sold.values())
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(tally.statuses.items()))
    print(f"{BUYERS} buyers, {len(tally.seconds)} requests in {seconds:.1f} s: {statuses}")
    p50, p99 = percentile(tally.seconds, 0.5), percentile(tally.seconds, 0.99)
    print(f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
    print(f"{once} of {ORDERS} orders sold once, {len(sales) - len(sold)} sales too many")
    for text in tally.unexplained:
        print(f"unexplained: {text}")
    right = once == ORDERS == len(sales) and not tally.unexplained and not tally.open
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
