"""First come, first served, across processes: a fair lock (one server keeps the queue)."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing import local_servers


async def customer(url: str, number: int, served: list[int]) -> None:
    async with asynclock.connect(url) as locks:  # normally a separate process
        async with locks.fair_lock("counter", timeout=10):
            served.append(number)
            print(f"customer {number} is served")
            await asyncio.sleep(0.005)


async def main() -> None:
    async with (
        local_servers(1) as [server],
        asynclock.connect(server.url) as locks,
    ):
        served: list[int] = []
        customers = []
        async with locks.fair_lock("counter"):  # closed for now
            for number in range(5):
                customers.append(asyncio.create_task(customer(server.url, number, served)))
                await asyncio.sleep(0.1)  # they come one after the other
        await asyncio.gather(*customers)
        print(f"in order: {served == sorted(served)}")


if __name__ == "__main__":
    asyncio.run(main())
