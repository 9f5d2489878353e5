"""A user's module: every public way to get and hold a lock, for type checkers only."""

from __future__ import annotations

import asyncio
from typing import Annotated, assert_type

import redis.asyncio
from aiohttp import web
from fastapi import FastAPI, WebSocket

import asynclock
from asynclock import AnyLease, AnyLock, Lease, MultiLease, ReentrantLease, blocking
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.observe import LogEvents

client = redis.asyncio.Redis(host="localhost")
locks = asynclock.connect("redis://a", "redis://b", client, ttl=30, observers=[LogEvents()])


async def use() -> None:
    async with locks, locks.lock("a", ttl=5, timeout=2, handoff="strict") as lease:
        assert_type(lease, Lease)
        assert_type(lease.fence, int)
        await lease.extend(3)
    assert_type(await locks.lock("a").acquire(timeout=None), Lease)
    assert_type(await locks.lock("a").try_acquire(), Lease | None)
    async with locks.lock("a").acquire() as lease:
        assert_type(await lease.release(), bool)
    task = asyncio.create_task(held())
    assert_type(await task, Lease)
    async with locks.rwlock("a").read(), locks.rwlock("a").write():
        pass
    async with locks.semaphore("a", 3, timeout=1), locks.fair_lock("a"):
        pass
    async with locks.multi_lock("a", "b") as both:
        assert_type(both, MultiLease)
        assert_type(both.fences, dict[str, int])
    async with locks.reentrant_lock("a", inherit=True) as nested:
        assert_type(nested, ReentrantLease)
    await locks.event("a").set()
    assert_type((await locks.inspect("a")).holder, str | None)


async def any_lock(lock: AnyLock) -> None:
    async with lock as lease:
        assert_type(lease, AnyLease)
        assert_type(lease.remaining(), float)
    async with lock.acquire(timeout=2) as lease:
        assert_type(await lease.release(), bool)
    assert_type(await asyncio.create_task(lock.acquire()), AnyLease)
    assert_type(await lock.try_acquire(), AnyLease | None)


async def every_lock() -> None:
    book = locks.rwlock("a")
    await any_lock(locks.lock("a"))
    await any_lock(locks.reentrant_lock("a"))
    await any_lock(locks.semaphore("a", 3))
    await any_lock(locks.fair_lock("a"))
    await any_lock(locks.multi_lock("a", "b"))
    await any_lock(book.read())
    await any_lock(book.write())


def left(*leases: AnyLease) -> float:
    return min(lease.remaining() for lease in leases)


def every_lease(one: Lease, many: MultiLease, nested: ReentrantLease) -> None:
    assert_type(left(one, many, nested), float)


async def held() -> Lease:
    return await locks.lock("b").acquire()


@locks.synchronized("orders:{order_id}", timeout=2)
async def ship(order_id: int) -> str:
    return str(order_id)


async def call() -> None:
    assert_type(await ship(3), str)


app = FastAPI()
for_fastapi.setup(app, locks, contended=423)


@app.post("/orders/{order_id}")
async def order(
    lease: Annotated[Lease, for_fastapi.Locked("orders:{order_id}", timeout=2, retry_after=1)],
    locks: for_fastapi.Locks,
) -> int:
    return lease.fence


@app.post("/free/{order_id}")
@for_fastapi.locked("orders:{order_id}")
async def free(order_id: int) -> int:
    return order_id


@app.websocket("/orders/{order_id}")
async def socket(
    socket: WebSocket, lease: Annotated[Lease, for_fastapi.Locked(lambda ws: str(ws.url))]
) -> None: ...


site = web.Application()
for_aiohttp.setup(site, "redis://localhost", ttl=3)


@for_aiohttp.locked("orders:{order_id}", timeout=2)
async def handler(request: web.Request, lease: Lease) -> web.Response:
    return web.Response(text=str(lease.fence))


class View(web.View):
    @for_aiohttp.locked("orders:{order_id}")
    async def get(self, lease: Lease) -> web.Response:
        return web.Response(text=str(lease.fence))


site.router.add_get("/orders/{order_id}", handler)
site.router.add_view("/view/{order_id}", View)

waiting = blocking.connect("redis://localhost", ttl=3)


@waiting.synchronized("orders:{order_id}")
def ship_now(order_id: int) -> str:
    return str(order_id)


def block() -> None:
    with waiting, waiting.lock("a", timeout=2) as lease:
        assert_type(lease, blocking.Lease)
        lease.on_lost(lambda lost: print(lost.name))
    assert_type(waiting.lock("a").try_acquire(), blocking.Lease | None)
    with waiting.multi_lock("a", "b") as both:
        assert_type(both.fences, dict[str, int])
    assert_type(ship_now(3), str)
    assert_type(waiting.run(lambda locks: locks.event("a").is_set()), bool)
