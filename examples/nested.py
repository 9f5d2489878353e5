"""Functions that lock what their callers may have locked already: a reentrant lock."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing import local_servers


async def add_item(locks: asynclock.LockManager, cart: list[str], item: str) -> None:
    async with locks.reentrant_lock("cart") as lease:
        cart.append(item)
        print(f"added {item} under fence {lease.fence}, held {lease.depth} times")


async def add_bundle(locks: asynclock.LockManager, cart: list[str]) -> None:
    async with locks.reentrant_lock("cart"):  # no other task comes between the two items
        await add_item(locks, cart, "lamp")
        await add_item(locks, cart, "bulb")


async def main() -> None:
    async with (
        local_servers(1) as [server],
        asynclock.connect(server.url) as locks,
    ):
        cart: list[str] = []
        await add_item(locks, cart, "chair")
        await add_bundle(locks, cart)
        print(f"asked the server {locks.statistics().attempts} times for {len(cart)} items")


if __name__ == "__main__":
    asyncio.run(main())
