"""Starts nodes, servers and buyers; counts what was sold."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter

import httpx

from asynclock.testing import LocalServer
from examples._stage import PATIENCE, free_ports, process, stage
from examples.fastapi_orders.store import open_store

NODES, SERVICES, BUYERS, ORDERS = 3, 2, 60, 20
EACH = 2
"""Number of orders that each buyer wants."""
TRIES = 60


async def until_ready(client: httpx.AsyncClient) -> None:
    """Wait for the server, and for nodes that are old enough to vote."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/")).status_code == 200:
                    return
            await asyncio.sleep(0.1)


async def buyer(number: int, clients: list[httpx.AsyncClient], statuses: Counter[int]) -> None:
    """Buy some orders, at both servers in turn."""
    for order in [number % ORDERS, *random.sample(range(ORDERS), EACH - 1)]:
        for attempt in range(TRIES):
            client = clients[(number + attempt) % len(clients)]
            answer = await client.post(f"/orders/{order}/buyer-{number}")
            statuses[answer.status_code] += 1
            if answer.status_code in (201, 410):
                break
            pause = float(answer.headers.get("Retry-After", 1))
            await asyncio.sleep(random.uniform(0, pause))


async def kill_half_way(server: LocalServer, statuses: Counter[int]) -> None:
    """Kill one node while buyers are served."""
    while statuses[201] < ORDERS // 2:
        await asyncio.sleep(0.01)
    await server.kill()
    print(f"node {server.url} is killed", flush=True)


async def main(service: str = "examples.threaded_orders.service") -> int:
    """Run the example with that server and return the exit status."""
    statuses: Counter[int] = Counter()
    async with stage(NODES) as (folder, nodes), contextlib.AsyncExitStack() as stack:
        database = str(folder / "orders.sqlite")
        store = open_store(database)
        store.create(ORDERS)
        clients = []
        for port in stack.enter_context(free_ports(SERVICES)):
            arguments = (str(port), database, *(node.url for node in nodes))
            await stack.enter_async_context(process(service, *arguments))
            client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
            clients.append(await stack.enter_async_context(client))
        await asyncio.gather(*map(until_ready, clients))
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as crowd:
            crowd.create_task(kill_half_way(nodes[0], statuses))
            for number in range(BUYERS):
                crowd.create_task(buyer(number, clients, statuses))
        return report(store.sales(), statuses)


def report(sales: list[tuple[int, str]], statuses: Counter[int]) -> int:
    """Print what happened; return 0 if each order was sold exactly once."""
    sold = Counter(order for order, _ in sales)
    shown = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    print(f"{BUYERS} buyers: {shown}")
    print(f"{len(sold)} of {ORDERS} orders sold, {len(sales) - len(sold)} sales too many")
    right = len(sold) == ORDERS == len(sales) and not statuses[500]
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
