"""A lock of another client, written after docs/protocol.md alone: plain commands, one server."""

import asyncio
import secrets

import redis.asyncio

TICKET_MS, RETENTION_MS = 2000, 1_080_000
PAUSE = 0.01


class Foreign:
    """One holder at a time of one name; a waiter has a ticket in the queue of all clients."""

    def __init__(self, client: redis.asyncio.Redis, name: str, *, ttl_ms: int) -> None:
        self.client, self.ttl_ms = client, ttl_ms
        self.lock = f"asynclock:{name}"
        self.counter, self.queue = f"{self.lock}:#fence", f"{self.lock}:#queue"
        self.owner = ""

    async def acquire(self) -> int:
        """Wait for the lock, however long that takes; return the fence."""
        self.owner = ticket = secrets.token_hex(16)
        number = await self._clock()
        while not await self._wins(ticket):
            left = await self.client.pttl(self.queue)
            async with self.client.pipeline(transaction=True) as pipe:
                pipe.set(f"{self.queue}:#{ticket}", "1", px=TICKET_MS)
                pipe.zadd(self.queue, {ticket: number})
                pipe.pexpire(self.queue, max(left, TICKET_MS))
                await pipe.execute()
            await asyncio.sleep(PAUSE)
        async with self.client.pipeline(transaction=True) as pipe:
            pipe.zrem(self.queue, ticket)
            pipe.delete(f"{self.queue}:#{ticket}")
            await pipe.execute()
        return await self._raise_counter()

    async def _wins(self, ticket: str) -> bool:
        while head := await self.client.zrange(self.queue, 0, 0):
            first = head[0].decode()
            if first == ticket:
                break
            if await self.client.exists(f"{self.queue}:#{first}"):
                return False
            await self.client.zrem(self.queue, first)  # its waiter has died
        return bool(await self.client.set(self.lock, self.owner, nx=True, px=self.ttl_ms))

    async def _raise_counter(self) -> int:
        async with self.client.pipeline(transaction=True) as pipe:
            await pipe.watch(self.lock, self.counter)
            if await pipe.get(self.lock) != self.owner.encode():
                raise TimeoutError
            fence = max(int(await pipe.get(self.counter) or 0) + 1, await self._clock())
            pipe.multi()
            pipe.set(self.counter, fence, px=RETENTION_MS)
            await pipe.execute()  # raises WatchError if the lock or the counter has changed
        return fence

    async def release(self) -> None:
        """Give the lock back, and wake the first waiter."""
        async with self.client.pipeline(transaction=True) as pipe:
            await pipe.watch(self.lock)
            if await pipe.get(self.lock) != self.owner.encode():
                return
            head = await pipe.zrange(self.queue, 0, 0)
            pipe.multi()
            pipe.delete(self.lock)
            for ticket in head:
                pipe.set(f"{self.queue}:#{ticket.decode()}", "go", xx=True, keepttl=True)
            await pipe.execute()

    async def _clock(self) -> int:
        seconds, micros = await self.client.time()
        return int(seconds) * 1_000_000 + int(micros)
