"""The same small service in both frameworks, servers in this process for it, and clients.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import uvicorn
from aiohttp import web
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from asynclock import Lease, LockManager
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib.dashboard import dashboard
from asynclock.contrib.fastapi import Locked

FRAMEWORKS = ("fastapi", "aiohttp")
NUMBERS = itertools.count()
PATIENT: dict[str, Any] = {
    "restart_guard": False,
    "ttl": 60.0,
    "max_ttl": 60.0,
    "node_timeout": 5.0,
}
"""Leases that outlive every test: a key that is gone was released. And time for a busy machine."""
TOKEN = "Token-of-16-chars"
"""The token of the live page."""
PATIENCE = 0.05
"""Seconds that the service waits for a lock: too short for a lock that stays taken."""


def memory(count: int = 3) -> list[str]:
    """Return addresses of nodes in memory that no other test has."""
    return [f"memory://contrib-{next(NUMBERS)}" for _ in range(count)]


def client_for(
    locks: LockManager, url: str = "http://localhost", *, token: str | None = TOKEN, **more: Any
) -> httpx.AsyncClient:
    """Return a client of the live page of a manager, without a server."""
    app = dashboard(locks, token=TOKEN, **more)
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url=url, headers=headers, timeout=60)


class Witness:
    """What the service saw."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []
        self.go_on = asyncio.Event()

    async def work(self, name: str, *, wait: bool = True) -> None:
        self.entered.append(name)
        try:
            if wait:
                await self.go_on.wait()
        except asyncio.CancelledError:
            self.left.append("interrupted")
            raise
        else:
            self.left.append("done")


def with_locks(framework: str, *nodes: Any, **settings: Any) -> Any:
    """Make an application without routes, on nodes of its own unless some are given."""
    app = FastAPI() if framework == "fastapi" else web.Application()
    setup = for_fastapi.setup if framework == "fastapi" else for_aiohttp.setup
    setup(app, *(nodes or memory()), **settings)
    return app


def manager_of(app: Any) -> LockManager:
    """Return the manager of an application that runs."""
    locks: LockManager = (
        app[for_aiohttp.LOCKS] if isinstance(app, web.Application) else app.state.asynclock
    )
    return locks


@contextlib.asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[tuple[httpx.AsyncClient, LockManager]]:
    """Run an application; yield a client and the manager. FastAPI has no server and no task."""
    async with contextlib.AsyncExitStack() as stack:
        transport, url = None, "http://test"
        if isinstance(app, web.Application):
            url = await stack.enter_async_context(serving(app))
        else:
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url=url, timeout=60)
        yield await stack.enter_async_context(client), manager_of(app)


def fastapi_app(witness: Witness, *nodes: Any, **settings: Any) -> FastAPI:
    app: FastAPI = with_locks("fastapi", *nodes, **settings)
    app.add_api_route("/health/locks", for_fastapi.health)

    @app.post("/orders/{order_id}/quick")
    async def quick(
        lease: Annotated[Lease, Locked("orders:{order_id}", timeout=PATIENCE)],
    ) -> dict[str, int]:
        await witness.work(lease.name, wait=False)
        return {"fence": lease.fence}

    @app.post("/orders/{order_id}/hold")
    async def hold(lease: Annotated[Lease, Locked("orders:{order_id}")]) -> dict[str, int]:
        await witness.work(lease.name)
        return {"fence": lease.fence}

    @app.post("/orders/{order_id}/upload")
    async def upload(
        request: Request, lease: Annotated[Lease, Locked("orders:{order_id}")]
    ) -> dict[str, int]:
        await asyncio.sleep(0.05)  # so that the body has time to arrive unread
        return {"size": sum([len(part) async for part in request.stream()])}

    @app.post("/orders/{order_id}/thread")
    def thread(lease: Annotated[Lease, Locked("orders:{order_id}")]) -> dict[str, int]:
        witness.entered.append(lease.name)
        while not witness.go_on.is_set():
            time.sleep(0.01)
        witness.left.append("done" if lease.held else "without the lease")
        return {"fence": lease.fence}

    @app.post("/orders/{order_id}/stream")
    async def stream(lease: Annotated[Lease, Locked("orders:{order_id}")]) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"held " if lease.held else b"free "
            await witness.work("streaming")
            yield b"end"

        return StreamingResponse(parts())

    return app


def aiohttp_app(witness: Witness, *nodes: Any, **settings: Any) -> web.Application:
    app: web.Application = with_locks("aiohttp", *nodes, **settings)
    app.router.add_get("/health/locks", for_aiohttp.health)

    @for_aiohttp.locked("orders:{order_id}", timeout=PATIENCE)
    async def quick(request: web.Request, lease: Lease) -> web.Response:
        await witness.work(lease.name, wait=False)
        return web.json_response({"fence": lease.fence})

    @for_aiohttp.locked("orders:{order_id}")
    async def hold(request: web.Request, lease: Lease) -> web.Response:
        await witness.work(lease.name)
        return web.json_response({"fence": lease.fence})

    @for_aiohttp.locked("orders:{order_id}")
    async def upload(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response({"size": len(await request.read())})

    app.router.add_post("/orders/{order_id}/quick", quick)
    app.router.add_post("/orders/{order_id}/hold", hold)
    app.router.add_post("/orders/{order_id}/upload", upload)
    return app


MAKERS: dict[str, Any] = {"fastapi": fastapi_app, "aiohttp": aiohttp_app}


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Run a server for `app` in this process and yield its address."""
    async with _aiohttp(app) if isinstance(app, web.Application) else _uvicorn(app) as url:
        yield url


@contextlib.asynccontextmanager
async def _aiohttp(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class _Server(uvicorn.Server):
    """Leaves the signals of the test's process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _uvicorn(app: Any) -> AsyncIterator[str]:
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
