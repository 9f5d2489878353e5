"""pottery's ``AIORedlock``: polls at random within 0.2 s."""

from __future__ import annotations

from typing import Any

from pottery import AIORedlock
from redis.asyncio import Redis

from . import Adapter


class Pottery(Adapter):
    async def open(self) -> None:
        self.clients = [Redis.from_url(url) for url in self.urls]

    async def acquire(self, name: str) -> Any:
        lock = AIORedlock(key=name, masters=self.clients, auto_release_time=self.ttl)
        await lock.acquire()
        return lock

    async def release(self, lease: Any) -> None:
        await lease.release()

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


ADAPTER = Pottery
