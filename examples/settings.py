"""Many tasks read the settings, one task rewrites them: a read-write lock."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing import local_servers

settings = {"color": "red", "version": 1}


async def read(locks: asynclock.LockManager, number: int) -> None:
    async with locks.rwlock("settings").read():
        before = dict(settings)
        await asyncio.sleep(0.02)
        unchanged = settings == before
        print(f"reader {number}: version {before['version']}, unchanged: {unchanged}")


async def rewrite(locks: asynclock.LockManager) -> None:
    async with locks.rwlock("settings").write() as lease:
        settings["color"] = "half"  # no reader ever sees this
        await asyncio.sleep(0.01)
        settings["color"], settings["version"] = "green", 2
        print(f"rewritten under fence {lease.fence}")


async def main() -> None:
    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            early = [asyncio.create_task(read(locks, number)) for number in range(4)]
            await asyncio.sleep(0.01)
            writer = asyncio.create_task(rewrite(locks))
            await asyncio.sleep(0.01)
            late = [asyncio.create_task(read(locks, number)) for number in range(4, 8)]
            await asyncio.gather(*early, writer, *late)


if __name__ == "__main__":
    asyncio.run(main())
