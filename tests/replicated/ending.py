"""A program whose loop ends while its tasks hold and wait for everything; it closes no manager.

Arguments: how the loop ends, and the addresses of the nodes. It prints a line once all is held.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import asynclock

Make = Callable[[asynclock.LockManager], Any]

KINDS: dict[str, Make] = {
    "lock": lambda locks: locks.lock("a"),
    "reentrant": lambda locks: locks.reentrant_lock("b"),
    "fair": lambda locks: locks.fair_lock("c"),
    "write": lambda locks: locks.rwlock("d").write(),
    "semaphore": lambda locks: locks.semaphore("e", 1),
    "several": lambda locks: locks.semaphore("f", 3).several(2),
    "multi": lambda locks: locks.multi_lock("g", "h"),
    "election": lambda locks: locks.election("i").campaign("x"),
}


held: list[Make] = []


async def body(make: Make, locks: asynclock.LockManager) -> None:
    """Hold, and do some cleaning up at the end."""
    async with make(locks):
        held.append(make)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)


async def rows(locks: asynclock.LockManager) -> AsyncIterator[int]:
    """A generator that nobody closes."""
    async with locks.lock("rows"):
        yield 1
        yield 2


async def end(way: str) -> None:
    """End the main task in one of the ways in which programs end."""
    if way == "error":
        raise ValueError
    if way == "exit":
        sys.exit(3)
    if way == "cancels":  # a well-known recipe; the program goes on for a while after it
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    elif way.startswith("signal"):
        try:
            await asyncio.Event().wait()
        finally:
            print("ends", flush=True)
            if way == "signal twice":
                await asyncio.Event().wait()


async def main(way: str, *addresses: str) -> None:
    """Hold a lock of each kind, let as many tasks wait for them, and end."""
    settings: dict[str, Any] = {"ttl": 60, "max_ttl": 60, "node_timeout": 2}
    locks = asynclock.connect(*addresses, restart_guard=False, **settings)
    others = asynclock.connect(*addresses, restart_guard=False, **settings)
    generator = rows(locks)
    await anext(generator)
    bodies = [asyncio.create_task(body(make, locks)) for make in KINDS.values()]
    while len(held) < len(KINDS):
        await asyncio.sleep(0.01)
    waiting: list[asyncio.Task[Any]]
    waiting = [asyncio.create_task(body(make, others)) for make in KINDS.values()]
    waiting.append(asyncio.create_task(others.event("j").wait()))
    waiting.append(asyncio.create_task(others.barrier("k", 2).wait()))
    barrier = locks.barrier("k", 2)
    while others.statistics().refused < len(KINDS) or not await barrier.waiting():
        await asyncio.sleep(0.01)
    print("holds", flush=True)
    await end(way)
    del bodies, waiting


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
