"""One service process of the demo: ten users, each grabbing every order at the moment it is told.

    python -m asynclock.cli._demo_service FOLDER SERVICE USERS TTL NODE…

Reads `{"act": 1, "order": 7, "at": <monotonic seconds>}` from stdin, a line each, and answers
`{"order": 7, "sold": 1}` when all its users are done. Ends when stdin does, so it cannot outlive
the demo.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asynclock

from ._demo_shop import Guard, Shop, grab

PATIENCE = 30.0
"""Seconds that a user waits for a turn before the order is somebody else's problem."""


class Guards:
    """What protects an order in each act."""

    def __init__(self, locks: asynclock.LockManager) -> None:
        self._locks = locks
        self._local: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of_act(self, act: int) -> Guard:
        """No lock, one per process, one for all."""
        return (self._nothing, self._in_process, self._distributed)[act - 1]

    @asynccontextmanager
    async def _nothing(self, _order: int) -> AsyncIterator[int]:
        yield 0

    @asynccontextmanager
    async def _in_process(self, order: int) -> AsyncIterator[int]:
        async with self._local[order]:
            yield 0

    def _distributed(self, order: int) -> AbstractAsyncContextManager[int]:
        return self._hold(f"order:{order}")

    @asynccontextmanager
    async def _hold(self, name: str) -> AsyncIterator[int]:
        async with self._locks.lock(name, timeout=PATIENCE) as lease:
            yield lease.fence


async def user(shop: Shop, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """One user, who tries again when a lease is lost or too few nodes answer."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            return await grab(shop, act, order, buyer, guard)
        except (asynclock.LeaseLostError, asynclock.QuorumUnavailableError):
            if time.monotonic() > give_up:
                raise


async def serve(folder: Path, service: str, users: int, ttl: float, nodes: Sequence[str]) -> None:
    """Play until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    shop = Shop(folder / "shop.sqlite")
    async with asynclock.connect(*nodes, ttl=ttl, max_ttl=ttl, label=service) as locks:
        guards = Guards(locks)
        print(json.dumps({"ready": service}), flush=True)
        while line := await reader.readline():
            task = json.loads(line)
            act, order = task["act"], task["order"]
            await asyncio.sleep(max(0.0, task["at"] - time.monotonic()))
            guard = guards.of_act(act)
            sold = await asyncio.gather(
                *(user(shop, act, order, f"{service}/{n}", guard) for n in range(users))
            )
            print(json.dumps({"order": order, "sold": sum(sold)}), flush=True)
    shop.close()


def main() -> None:
    """Play one service."""
    # Ctrl-C is for the demo, which then ends its services in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nodes die on purpose here; what the library has to say about it would only spoil the screen.
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    folder, service, users, ttl, *nodes = sys.argv[1:]
    asyncio.run(serve(Path(folder), service, int(users), float(ttl), nodes))


if __name__ == "__main__":
    main()
