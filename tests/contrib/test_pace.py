"""Which Retry-After a client gets that found a lock held.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import asynclock
from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locks, locked, locks_of, setup
from asynclock.testing import busy

MEMORY = ("memory://a", "memory://b", "memory://c")


@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_a_route_says_when_to_come_back(framework: str) -> None:
    answers = await ask_busy(framework, retry_after=4), await ask_busy(framework)
    assert answers == ("4", "1")


async def ask_busy(framework: str, **settings: Any) -> str:
    if framework == "fastapi":
        app = FastAPI()
        setup(app, *MEMORY)

        @app.get("/")
        @locked("a", timeout=0.02, **settings)
        async def root() -> None: ...

        async with app.router.lifespan_context(app), busy("a", app.state.asynclock):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return (await client.get("/")).headers["retry-after"]

    @for_aiohttp.locked("a", timeout=0.02, **settings)
    async def handler(request: web.Request, lease: Lease) -> web.Response:
        return web.Response()

    other = web.Application()
    for_aiohttp.setup(other, *MEMORY)
    other.router.add_get("/", handler)
    async with AiohttpClient(TestServer(other)) as caller:
        async with busy("a", other[for_aiohttp.LOCKS]):
            return (await caller.get("/")).headers["retry-after"]


@pytest.mark.parametrize("where", ["handler", "middleware"])
@pytest.mark.parametrize("framework", ["fastapi", "aiohttp"])
async def test_a_client_is_told_what_the_error_says(
    monkeypatch: pytest.MonkeyPatch, framework: str, where: str
) -> None:
    """Also for a lock that no route declares; never the ttl of 10 s."""
    async with manager_app(framework, where) as (get, locks):
        assert (await get())[0] == 200
        monkeypatch.setattr(locks._engine, "random", lambda: 0.0)
        async with busy("a", locks):
            assert await get() == (409, "1")
            locks._engine.paces.of("asynclock:a").held(3.5)
            assert await get() == (409, "4")


@pytest.mark.parametrize("retry_after", [0, 7.5])
async def test_a_route_may_say_it_for_its_own_lock_only(retry_after: float) -> None:
    """Not for another lock that its function asks for."""
    app = FastAPI()
    setup(app, *MEMORY)
    seen: list[asynclock.NotAcquiredError] = []

    @app.exception_handler(asynclock.NotAcquiredError)
    async def note(_: Request, error: asynclock.NotAcquiredError) -> JSONResponse:
        seen.append(error)
        return JSONResponse(None, 409)

    @app.get("/")
    @locked("a", timeout=0.02, retry_after=retry_after)
    async def root(locks: Locks) -> None:
        async with locks.lock("b", timeout=0.02):
            pass

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for name in "ab":
                async with busy(name, app.state.asynclock):
                    assert (await client.get("/")).status_code == 409
    assert seen[0].retry_after == retry_after
    assert 0 < seen[1].retry_after < 1


@contextlib.asynccontextmanager
async def manager_app(framework: str, where: str) -> AsyncIterator[tuple[Any, Any]]:
    """An application that takes the lock "a" from the manager, and a client of it."""
    if framework == "fastapi":
        app = FastAPI()
        setup(app, *MEMORY)

        @app.middleware("http")
        async def around(request: Request, call_next: Any) -> Any:
            if where == "handler":
                return await call_next(request)
            async with locks_of(request).lock("a", timeout=0.02):
                return await call_next(request)

        @app.get("/")
        async def root(locks: Locks) -> None:
            if where == "handler":
                async with locks.lock("a", timeout=0.02):
                    pass

        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

                async def get() -> tuple[int, str | None]:
                    answer = await client.get("/")
                    return answer.status_code, answer.headers.get("retry-after")

                yield get, app.state.asynclock
        return

    @web.middleware
    async def around_handler(request: web.Request, handler: Any) -> web.StreamResponse:
        async with for_aiohttp.locks_of(request).lock("a", timeout=0.02):
            return await handler(request)

    async def quick(request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def slow(request: web.Request) -> web.StreamResponse:
        return await around_handler(request, quick)

    # Composed by hand, which must do what `setup` does.
    layers = [for_aiohttp.problems(), *([around_handler] if where == "middleware" else [])]
    other = web.Application(middlewares=layers)
    other.cleanup_ctx.append(for_aiohttp.cleanup_context(*MEMORY))
    other.router.add_get("/", slow if where == "handler" else quick)
    async with AiohttpClient(TestServer(other)) as caller:

        async def fetch() -> tuple[int, str | None]:
            answer = await caller.get("/")
            return answer.status, answer.headers.get("retry-after")

        yield fetch, other[for_aiohttp.LOCKS]
