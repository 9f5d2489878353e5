"""redis-py's ``Lock``: one node, polls every 0.1 s."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.lock import Lock

from . import Adapter


class RedisPy(Adapter):
    async def open(self) -> None:
        self.client = Redis.from_url(self.urls[0])

    async def acquire(self, name: str) -> Lock:
        lock = self.client.lock(name, timeout=self.ttl)
        await lock.acquire()
        return lock

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def close(self) -> None:
        await self.client.aclose()


ADAPTER = RedisPy
