"""aioredlock 0.7.3: polls every 0.1 to 0.3 s, by default three times, here without limit."""

from __future__ import annotations

from typing import Any

from aioredlock import Aioredlock

from . import Adapter


class AioRedlock(Adapter):
    async def open(self) -> None:
        self.manager = Aioredlock(
            list(self.urls), retry_count=1_000_000, internal_lock_timeout=self.ttl
        )

    async def acquire(self, name: str) -> Any:
        return await self.manager.lock(name)

    async def release(self, lease: Any) -> None:
        await self.manager.unlock(lease)

    async def close(self) -> None:
        await self.manager.destroy()

    def held(self, lease: Any) -> bool:
        return bool(lease.valid)


ADAPTER = AioRedlock
