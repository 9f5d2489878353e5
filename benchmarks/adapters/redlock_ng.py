"""redlock-ng's ``AsyncRedlock``: polls every 0.1 to 0.3 s, socket timeout 0.1 s."""

from __future__ import annotations

from typing import Any

from redlock import AsyncRedlock

from . import Adapter


class RedlockNg(Adapter):
    async def open(self) -> None:
        self.manager = AsyncRedlock(list(self.urls))

    async def acquire(self, name: str) -> Any:
        return await self.manager.acquire(name, int(self.ttl * 1000), blocking=True)

    async def release(self, lease: Any) -> None:
        await self.manager.release(lease)

    async def close(self) -> None:
        for client in self.manager.client.instances:
            await client.aclose()


ADAPTER = RedlockNg
