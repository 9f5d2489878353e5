"""coredis' ``Lock``: one node, polls every 0.1 s."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from coredis import Redis
from coredis.patterns.lock import Lock

from . import Adapter


class Coredis(Adapter):
    async def open(self) -> None:
        self.stack = AsyncExitStack()
        self.client = await self.stack.enter_async_context(Redis.from_url(self.urls[0]))

    async def acquire(self, name: str) -> Any:
        lock = Lock(self.client, name, timeout=self.ttl)
        await lock.acquire()
        return lock

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def close(self) -> None:
        await self.stack.aclose()


ADAPTER = Coredis
