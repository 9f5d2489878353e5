"""A paid service allows all our processes together three requests at a time: a semaphore."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing import local_servers

running = most = 0


async def call_service(locks: asynclock.LockManager, number: int) -> None:
    global running, most
    async with locks.semaphore("geocoder", permits=3, timeout=10) as lease:
        running += 1
        most = max(most, running)
        print(f"request {number} in slot {lease.part} ({running} at once)")
        await asyncio.sleep(0.02)
        running -= 1


async def main() -> None:
    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        async with (
            asynclock.connect(*urls, restart_guard=False) as one,
            asynclock.connect(*urls, restart_guard=False) as other,  # as in another process
        ):
            await asyncio.gather(*(call_service((one, other)[n % 2], n) for n in range(12)))
    print(f"never more than {most}")


if __name__ == "__main__":
    asyncio.run(main())
