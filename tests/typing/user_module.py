"""A user's module: every public way to get and hold a lock, for type checkers only."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, assert_type

import redis.asyncio
from aiohttp import web
from fastapi import Depends, FastAPI, Request, WebSocket
from starlette.applications import Starlette

import asynclock
from asynclock import (
    AnyLease,
    AnyLock,
    Lease,
    MultiLease,
    ReentrantLease,
    blocking,
    fencing,
    testing,
)
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib.dashboard import dashboard
from asynclock.events import Acquired, Event
from asynclock.fencing.aiohttp import fence_middleware
from asynclock.fencing.fastapi import require_fence
from asynclock.fleet import Client, Fleet, FleetState, NodeState
from asynclock.observe import LogEvents
from asynclock.observe.otel import Telemetry

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


def every_lease(one: Lease, many: MultiLease, nested: ReentrantLease) -> None:
    leases: tuple[AnyLease, ...] = (one, many, nested)
    assert_type(min(lease.remaining() for lease in leases), float)


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


def name_of(order_id: int) -> str:
    return f"orders:{order_id}"


@app.post("/named")
@for_fastapi.locked(Depends(name_of), timeout=2)
async def named(order_id: int) -> int:
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
        assert_type((lease.publish("half done"), lease.detach()), tuple[bool, bytes])
        lease.on_lost(lambda lost: print(lost.name))
    assert_type(waiting.lock("a").try_acquire(), blocking.Lease | None)
    with waiting.multi_lock("a", "b") as both:
        assert_type(both.fences, dict[str, int])
    assert_type(ship_now(3), str)
    assert_type(waiting.run(lambda locks: locks.event("a").is_set()), bool)


async def primitives() -> None:
    read, write = locks.rwlock("a").read(), locks.rwlock("a", handoff=False).write()
    assert_type(await read.acquire(timeout=1), Lease)
    assert_type(await write.try_acquire(), Lease | None)
    assert_type(await locks.rwlock("a").inspect(), asynclock.Inspection)
    assert_type(await locks.semaphore("a", 3).acquire(), Lease)
    assert_type(await locks.fair_lock("a", timeout=1).acquire(), Lease)
    assert_type(await locks.multi_lock("a", "b").try_acquire(), MultiLease | None)
    assert_type(await locks.reentrant_lock("a").acquire(), ReentrantLease)
    latch, barrier, event = locks.latch("a", 2), locks.barrier("a", 2), locks.event("a", keep=60)
    assert_type(await latch.count_down(by=1, timeout=1), int)
    assert_type(await latch.remaining(), int)
    await latch.wait(timeout=1)
    assert_type(await barrier.wait(timeout=1), int)
    assert_type(await barrier.waiting(), int)
    await event.clear(timeout=1)
    assert_type(await event.wait(timeout=1), bool)
    for primitive in (latch, barrier, event, locks.semaphore("a", 3), locks.fair_lock("a")):
        assert_type(await primitive.inspect(), asynclock.Inspection)


async def lead() -> None:
    election = locks.election("cron", ttl=5)
    async with election.campaign("host-1", timeout=None) as term:
        assert_type(term, asynclock.Term)
        assert_type(term.number, int)
        assert_type(await term.publish("host-1: busy"), bool)
    assert_type(await election.leader(), asynclock.Leader | None)
    async for leader in election.observe():
        assert_type(leader, asynclock.Leader)


async def look() -> None:
    assert_type(locks.nodes(), tuple[asynclock.NodeHealth, ...])
    assert_type(locks.leases(), tuple[Lease, ...])
    assert_type(locks.waiters(), dict[str, int])
    assert_type(locks.waits(), dict[str, list[float]])
    assert_type(locks.statistics(), asynclock.Statistics)
    assert_type((await locks.inspect("a")).nodes, tuple[asynclock.NodeView, ...])
    assert_type((await locks.inspect("a")).waiting, tuple[asynclock.Waiter, ...])
    await locks.ready()
    await locks.aclose()


def observer(event: Event) -> None:
    if isinstance(event, Acquired):
        assert_type(event.name, str)


locks.observe(observer)
locks.unobserve(observer)
locks.observe(Telemetry())


async def fenced(lease: Lease) -> None:
    store = fencing.FencedRedis(client, retention=60)
    await store.claim(lease)
    await store.set(lease, "order:42", "paid", ttl=60)
    assert_type(await store.hset(lease, "order:42", {"state": "paid"}), int)
    assert_type(await store.delete(lease, "order:42"), int)
    headers = fencing.fence_headers(lease)
    assert_type(headers, dict[str, str])
    assert_type(fencing.read_fence_headers(headers), fencing.FenceStamp)
    memory = fencing.MemoryFenceStore()
    assert_type(await fencing.check_fence(headers, memory, "orders:42"), fencing.FenceStamp)
    assert_type(fencing.FenceStamp.of(lease).rivals, tuple[str, ...])


@app.put("/orders/{order_id}")
async def put(
    stamp: Annotated[
        fencing.FenceStamp, Depends(require_fence(fencing.MemoryFenceStore(), "orders:{order_id}"))
    ],
    request: Request,
) -> int:
    assert_type(for_fastapi.locks_of(request), asynclock.LockManager)
    assert_type(for_fastapi.key_lease(), asynclock.Lease | None)
    return stamp.fence


app.add_api_route("/health/locks", for_fastapi.health)
FastAPI(lifespan=for_fastapi.lifespan("redis://localhost", ttl=3))
assert_type(dashboard(locks, token="0123456789abcdef", hosts=["locks.example"]), Starlette)

inner = web.Application(
    middlewares=[
        for_aiohttp.problems(423),
        fence_middleware(fencing.MemoryFenceStore(), "orders:{order_id}"),
    ]
)
inner.cleanup_ctx.append(for_aiohttp.cleanup_context("redis://localhost", ttl=3))
inner.router.add_get("/health/locks", for_aiohttp.health)


async def found(request: web.Request) -> None:
    assert_type(for_aiohttp.locks_of(request), asynclock.LockManager)
    assert_type(for_aiohttp.key_lease(), asynclock.Lease | None)
    assert_type(request.app[for_aiohttp.LOCKS], asynclock.LockManager)


async def tried() -> None:
    async with testing.local_servers(3, aof=True) as servers:
        assert_type(servers, list[testing.LocalServer])
        assert_type(servers[0].url, str)
        await servers[0].kill()
        async with testing.FaultProxy(servers[1]) as proxy:
            asynclock.connect(proxy.url)
    async with testing.busy("orders:42", locks) as lease:
        testing.lose(lease, "a test took it away")
    testing.freeze("memory://a")
    testing.thaw("memory://a")
    assert_type(testing.memory_node("memory://a"), testing.MemoryNode)
    assert_type(testing.run_virtual(held()), Lease)
    async with testing.Quorum(3) as quorum:
        assert_type(quorum.addresses, list[str])


async def of_a_lease(lease: Lease) -> None:
    assert_type(await lease.check(), bool)
    lease.adopt()
    await lease.wait_lost()
    assert_type(lease.task, asyncio.Task[Any] | None)
    assert_type((lease.name, lease.part, lease.owner, lease.ttl), tuple[str, str, str, float])
    assert_type((lease.held, lease.lost_reason), tuple[bool, str | None])
    async for found in locks.inspect_all():
        assert_type((found.name, found.since), tuple[str, float | None])


@locks.once("rate:{currency}", keep=60)
async def rate(currency: str) -> float:
    return len(currency)


async def results_and_requests(lease: Lease) -> None:
    assert_type((await rate("EUR"), await lease.wanted()), tuple[float, str | None])
    async with locks.once("a") as run, locks.lock("b", at_least=20):
        assert_type((run, run.lease), tuple[asynclock.Run, Lease | None])
    assert_type(await locks.resume(await lease.detach(), ttl=5), Lease)
    asked, taken = await locks.ask_back("a"), await locks.release_held("a", owner=lease.owner)
    assert_type((asked, taken, await lease.publish("half done")), tuple[bool, bool, bool])


async def several_and_upgraded() -> None:
    assert_type(await locks.semaphore("a", 4).several(3).acquire(timeout=1), MultiLease)
    assert_type(await locks.semaphore("a", 4).several(3).try_acquire(), MultiLease | None)
    book = locks.rwlock("a")
    async with book.read() as reading, book.upgrade(reading, timeout=1) as writing:
        assert_type(writing, Lease)
    assert_type(await book.upgrade(reading), Lease)
    assert_type(await book.downgrade(writing), Lease)
    barrier = locks.barrier("a", 2)
    await barrier.abort(timeout=1)
    await barrier.reset()
    assert_type(await barrier.broken(), bool)
    async with locks.election("cron").campaign() as term:
        assert_type(await term.resign(), bool)


async def change_the_set() -> None:
    async with Fleet("redis://a", "redis://b", "redis://c", max_ttl=30) as fleet:
        state = await fleet.show()
        assert_type(state, FleetState)
        assert_type(state.lagging, tuple[NodeState, ...])
        assert_type(state.clients, tuple[Client, ...] | None)
        if state.record is not None:
            assert_type((state.record.epoch, state.record.nodes), tuple[int, tuple[str, ...]])
        assert_type(await fleet.record(force=True), FleetState)
        await fleet.add("redis://d")
        await fleet.remove("a:6379")
        await fleet.replace("a:6379", "redis://d")
        assert_type(await fleet.finish(), FleetState)
        await fleet.back(force=True)


async def record_and_check(lease: Lease) -> None:
    history = testing.History(Path("history.jsonl"))
    began = history.now()
    with history.body(lease, began=began):
        pass
    assert_type(testing.check(history), list[testing.Violation])


def of_an_error(error: asynclock.AsyncLockError) -> None:
    assert_type(error.name, str | None)
    match error:
        case asynclock.AcquireTimeoutError() | asynclock.NotAcquiredError():
            assert_type((error.holder, error.owner), tuple[str | None, str | None])
            assert_type((error.remaining, error.retry_after), tuple[float | None, float])
            assert_type(error.votes, dict[str, int])
        case asynclock.QuorumUnavailableError():
            assert_type((error.nodes, error.retry_after), tuple[dict[str, str], float])
        case asynclock.LeaseLostError():
            assert_type((error.reason, error.owner, error.fence), tuple[str, str, int])
        case fencing.StaleFenceError():
            assert_type((error.fence, error.highest), tuple[int, int | None])
        case fencing.FenceHeaderError():
            assert_type((error.header, error.missing), tuple[str, bool])
        case _:
            pass
