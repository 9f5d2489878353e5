"""Move money between accounts without a deadlock, whatever the order of their names: multi_lock."""

from __future__ import annotations

import asyncio
import random

import asynclock
from asynclock.testing import local_servers

accounts = {"anna": 100, "ben": 100, "cleo": 100}


async def transfer(locks: asynclock.LockManager, source: str, target: str, amount: int) -> None:
    async with locks.multi_lock(f"account:{source}", f"account:{target}", timeout=10):
        balance = accounts[source]
        await asyncio.sleep(0.001)  # without the lock, a race would lose money here
        accounts[source] = balance - amount
        accounts[target] += amount


async def main() -> None:
    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            chance = random.Random(3)
            pairs = [chance.sample(sorted(accounts), 2) for _ in range(30)]
            await asyncio.gather(*(transfer(locks, one, two, 7) for one, two in pairs))
    print(f"{len(pairs)} transfers; still {sum(accounts.values())} in all")


if __name__ == "__main__":
    asyncio.run(main())
