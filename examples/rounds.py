"""Workers compute in rounds: an event to start, a barrier between rounds, a latch at the end."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing import local_servers

WORKERS = 3
ROUNDS = 2


async def worker(urls: list[str], number: int) -> None:
    async with asynclock.connect(*urls, restart_guard=False) as locks:  # like a process
        await locks.event("start").wait()
        for step in range(ROUNDS):
            await asyncio.sleep(0.01 * number)
            print(f"worker {number} did round {step}")
            place = await locks.barrier("round", WORKERS).wait(timeout=10)
            if place == WORKERS - 1:  # exactly one party, the last to arrive
                print(f"round {step} is complete")
        await locks.latch("finished", WORKERS).count_down()


async def main() -> None:
    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        workers = [asyncio.create_task(worker(urls, number)) for number in range(WORKERS)]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            print("all set")
            await locks.event("start").set()
            await locks.latch("finished", WORKERS).wait(timeout=20)
            print("all finished")
        await asyncio.gather(*workers)


if __name__ == "__main__":
    asyncio.run(main())
