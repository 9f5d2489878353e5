"""A service in both frameworks whose holder stays until a file appears, for servers that stop.

    uvicorn tests.contrib.stopping_apps:app
    python -m tests.contrib.stopping_apps PORT [PATIENCE]     # aiohttp

NODES (redis://…,…) and GO, the file, come from the environment. Each framework is imported only
where it serves: a busy machine takes long to import both. No `from __future__ import annotations`
here: FastAPI would not find the names of an inner app.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from asynclock import Lease

SETTINGS: Any = {"restart_guard": False, "ttl": 60.0, "max_ttl": 60.0, "node_timeout": 5.0}


async def stay(lease: Lease) -> dict[str, bool]:
    while not await asyncio.to_thread(Path(os.environ["GO"]).exists):
        await asyncio.sleep(0.01)
    return {"held": lease.held}


def nodes() -> list[str]:
    return os.environ["NODES"].split(",")


def by_fastapi() -> Any:
    from fastapi import FastAPI

    from asynclock.contrib.fastapi import Locked, Locks, setup

    served = FastAPI()
    setup(served, *nodes(), **SETTINGS)

    @served.post("/hold")
    async def hold(lease: Annotated[Lease, Locked("a")]) -> dict[str, bool]:
        return await stay(lease)

    @served.post("/by-hand")
    async def by_hand(locks: Locks) -> dict[str, bool]:
        async with locks.lock("a") as lease:
            return await stay(lease)

    @served.get("/waiting")
    async def waiting(locks: Locks) -> int:
        return locks.statistics().waiting

    return served


def by_aiohttp() -> None:
    from aiohttp import web

    from asynclock.contrib.aiohttp import locked, locks_of, setup

    served = web.Application()
    setup(served, *nodes(), **SETTINGS)

    @locked("a")
    async def hold(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(await stay(lease))

    async def by_hand(request: web.Request) -> web.Response:
        async with locks_of(request).lock("a") as lease:
            return web.json_response(await stay(lease))

    async def waiting(request: web.Request) -> web.Response:
        return web.json_response(locks_of(request).statistics().waiting)

    served.router.add_post("/hold", hold)
    served.router.add_post("/by-hand", by_hand)
    served.router.add_get("/waiting", waiting)
    port, patience = int(sys.argv[1]), float((*sys.argv, 60)[2])
    web.run_app(served, host="127.0.0.1", port=port, shutdown_timeout=patience, print=None)


def __getattr__(name: str) -> Any:
    """Make `app` when a server imports it, and not when a test does."""
    if name == "app":
        return by_fastapi()
    raise AttributeError(name)


if __name__ == "__main__":
    by_aiohttp()
