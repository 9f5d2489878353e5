"""redis-py's ``Lock``: one node, polls every 0.1 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.asyncio import Redis
from redis.asyncio.lock import Lock

from . import Adapter


class RedisPy(Adapter):
    async def open(self) -> None:
        self.client = Redis.from_url(self.urls[0])

    def entered(self, name: str) -> Lock:
        return self.client.lock(name, timeout=self.ttl)

    async def acquire(self, name: str) -> Lock:
        lock = self.entered(name)
        await lock.acquire()
        return lock

    async def try_acquire(self, name: str) -> Lock | None:
        lock = self.entered(name)
        return lock if await lock.acquire(blocking=False) else None

    async def acquire_within(self, name: str, seconds: float) -> Lock | None:
        lock = self.entered(name)
        return lock if await lock.acquire(blocking_timeout=seconds) else None

    def blocking(self) -> tuple[Callable[[str], Any], Callable[[Any], object]]:
        client = redis.Redis.from_url(self.urls[0])

        def take(name: str) -> Any:
            lock = client.lock(name, timeout=self.ttl)
            lock.acquire()
            return lock

        return take, lambda lock: lock.release()

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def close(self) -> None:
        await self.client.aclose()


ADAPTER = RedisPy
