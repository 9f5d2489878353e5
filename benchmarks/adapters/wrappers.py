"""What a scenario changes about a system: the same four calls around another adapter."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import Any

from . import Adapter


class Queued(Adapter):
    """Any lock behind one ``asyncio.Lock`` per name, as a user shares one in a process."""

    def __init__(self, inner: Adapter) -> None:
        self.inner = inner
        self.queues: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(self) -> None:
        await self.inner.open()

    async def acquire(self, name: str) -> Any:
        queue = self.queues[name]
        await queue.acquire()
        try:
            return queue, await self.inner.acquire(name)
        except BaseException:
            queue.release()
            raise

    async def release(self, lease: Any) -> None:
        queue, held = lease
        try:
            await self.inner.release(held)
        finally:
            queue.release()

    async def close(self) -> None:
        await self.inner.close()


class EverNew:
    """Any lock, of which every cycle takes a name that nobody has used."""

    def __init__(self, inner: Adapter) -> None:
        self.inner = inner
        self.count = itertools.count()

    async def acquire(self, name: str) -> Any:
        return await self.inner.acquire(f"{name}:{next(self.count)}")

    async def release(self, lease: Any) -> None:
        await self.inner.release(lease)
