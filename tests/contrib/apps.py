"""The same small service in both frameworks, and servers for it: in this process or their own.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.

    python -m tests.contrib.apps fastapi PORT NODE…
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import uvicorn
from aiohttp import web
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib.fastapi import Locked, Locks, locked

FRAMEWORKS = ("fastapi", "aiohttp")
PATIENCE = 0.2
"""Seconds that the service waits for a lock: too short for a lock that stays taken."""


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


def fastapi_app(witness: Witness, *nodes: Any, **settings: Any) -> FastAPI:
    app = FastAPI()
    for_fastapi.setup(app, *nodes, **settings)
    app.add_api_route("/health/locks", for_fastapi.health)

    @app.post("/orders/{order_id}/quick")
    async def quick(
        lease: Annotated[Lease, Locked("orders:{order_id}", timeout=PATIENCE)],
    ) -> dict[str, int]:
        await witness.work(lease.name, wait=False)
        return {"fence": lease.fence}

    @app.post("/orders/{order_id}/hold")
    async def hold(
        lease: Annotated[Lease, Locked("orders:{order_id}")],
    ) -> dict[str, int]:
        await witness.work(lease.name)
        return {"fence": lease.fence}

    @app.post("/orders/{order_id}/decorated")
    @locked("orders:{order_id}", timeout=PATIENCE)
    async def decorated(order_id: int, locks: Locks) -> dict[str, Any]:
        return {"held": [lease.name for lease in locks.leases()], "order": order_id}

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
    app = web.Application()
    for_aiohttp.setup(app, *nodes, **settings)
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


@contextlib.asynccontextmanager
async def _uvicorn(app: Any) -> AsyncIterator[str]:
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def main(framework: str, port: int, nodes: list[str]) -> None:
    """A process of its own, which ends by SIGTERM as it would in production."""
    settings = {"restart_guard": False, "ttl": 60.0, "max_ttl": 60.0, "node_timeout": 5.0}
    witness = Witness()
    app = MAKERS[framework](witness, *nodes, **settings)
    if framework == "fastapi":
        uvicorn.run(app, port=port, log_level="warning", timeout_graceful_shutdown=1)
    else:
        web.run_app(app, host="127.0.0.1", port=port, shutdown_timeout=1, print=None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
