"""pottery's ``AIORedlock``: polls at random within 0.2 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from pottery import AIORedlock, Redlock
from redis.asyncio import Redis

from . import Adapter


class Pottery(Adapter):
    async def open(self) -> None:
        self.clients = [Redis.from_url(url) for url in self.urls]

    def lock(self, name: str) -> AIORedlock:
        return AIORedlock(key=name, masters=self.clients, auto_release_time=self.ttl)

    async def acquire(self, name: str) -> Any:
        lock = self.lock(name)
        await lock.acquire()
        return lock

    def entered(self, name: str) -> AIORedlock:
        return self.lock(name)

    async def acquire_within(self, name: str, seconds: float) -> Any:
        lock = self.lock(name)
        return lock if await lock.acquire(timeout=seconds) else None

    async def try_acquire(self, name: str) -> Any:
        lock = self.lock(name)
        return lock if await lock.acquire(blocking=False) else None

    def blocking(self) -> tuple[Callable[[str], Any], Callable[[Any], object]]:
        masters = {redis.Redis.from_url(url) for url in self.urls}

        def take(name: str) -> Redlock:
            lock = Redlock(key=name, masters=masters, auto_release_time=self.ttl)
            lock.acquire()
            return lock

        return take, lambda lock: lock.release()

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


ADAPTER = Pottery
