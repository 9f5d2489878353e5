"""One worker per order, even if the queue delivers a message twice: the synchronized decorator."""

from __future__ import annotations

import asyncio

import asynclock
from asynclock.testing import local_servers


async def main() -> None:
    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        async with asynclock.connect(*urls, restart_guard=False) as locks:
            shipped: dict[int, int] = {}

            @locks.synchronized("orders:{order_id}", timeout=10, lease="lease")
            async def ship(order_id: int, *, lease: asynclock.Lease | None = None) -> str:
                assert lease is not None
                if order_id in shipped:
                    return f"order {order_id} was shipped under fence {shipped[order_id]}"
                await asyncio.sleep(0.01)  # the other delivery waits in the meantime
                shipped[order_id] = lease.fence
                return f"order {order_id} shipped"

            for line in await asyncio.gather(*(ship(number) for number in (1, 2, 1, 2, 3))):
                print(line)


if __name__ == "__main__":
    asyncio.run(main())
