"""One service process of the demo: ten users, who all grab each order at a given moment.

    python -m asynclock.cli.demo.service FOLDER SERVICE USERS TTL NODE…

Reads lines like `{"act": 1, "order": 7, "at": <monotonic seconds>}` from stdin, and answers
`{"order": 7, "sold": 1}` when all its users are done. Ends at the end of stdin, so it can't outlive
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

from .store import Guard, Store, buy

ACQUIRE_TIMEOUT = 30.0
"""Maximum seconds that a user waits for the lock before giving up."""


class Guards:
    """Returns the protection of the orders in an act."""

    def __init__(self, locks: asynclock.LockManager) -> None:
        self._locks = locks
        self._local: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of_act(self, act: int) -> Guard:
        """Return no lock, a lock per process, or a lock for all."""
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
        async with self._locks.lock(name, timeout=ACQUIRE_TIMEOUT) as lease:
            yield lease.fence


async def user(store: Store, act: int, order: int, buyer: str, guard: Guard) -> bool:
    """Buy one order; try again when a lease is lost or too few nodes answer."""
    give_up = time.monotonic() + ACQUIRE_TIMEOUT
    while True:
        try:
            return await buy(store, act, order, buyer, guard)
        except (asynclock.LeaseLostError, asynclock.QuorumUnavailableError):
            if time.monotonic() > give_up:
                raise


async def serve(folder: Path, service: str, users: int, ttl: float, nodes: Sequence[str]) -> None:
    """Serve until stdin ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    store = Store(folder / "store.sqlite")
    async with asynclock.connect(*nodes, ttl=ttl, max_ttl=ttl, label=service) as locks:
        guards = Guards(locks)
        print(json.dumps({"ready": service}), flush=True)
        while line := await reader.readline():
            task = json.loads(line)
            act, order = task["act"], task["order"]
            await asyncio.sleep(max(0.0, task["at"] - time.monotonic()))
            guard = guards.of_act(act)
            sold = await asyncio.gather(
                *(user(store, act, order, f"{service}/{n}", guard) for n in range(users))
            )
            print(json.dumps({"order": order, "sold": sum(sold)}), flush=True)
    store.close()


def main() -> None:
    """Run one service until its stdin ends, with the arguments of this process."""
    # On Ctrl-C the demo itself ends its services.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nodes fail on purpose here; the library's warnings about them would only clutter the screen.
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    folder, service, users, ttl, *nodes = sys.argv[1:]
    asyncio.run(serve(Path(folder), service, int(users), float(ttl), nodes))


if __name__ == "__main__":
    main()
