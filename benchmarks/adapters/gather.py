"""The cycle a careful user writes by hand: one ``redis.asyncio.Redis`` per node and a gather."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from redis.asyncio import Redis

from . import Adapter

_RELEASE = 'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end'


class Gather(Adapter):
    async def open(self) -> None:
        self.clients = [Redis.from_url(url) for url in self.urls]
        self.sha = str((await asyncio.gather(*(c.script_load(_RELEASE) for c in self.clients)))[0])
        self.px = int(self.ttl * 1000)

    async def acquire(self, name: str) -> tuple[str, bytes]:
        owner = os.urandom(16)
        await asyncio.gather(*(c.set(name, owner, nx=True, px=self.px) for c in self.clients))
        return name, owner

    async def release(self, lease: Any) -> None:
        name, owner = lease
        await asyncio.gather(*(c.evalsha(self.sha, 1, name, owner) for c in self.clients))

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()


ADAPTER = Gather
