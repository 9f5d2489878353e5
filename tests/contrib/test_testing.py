"""Testing a web application, as docs/testing.md says: other nodes, a busy name, a second start.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

import asynclock
from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locked, Locks, locks_of, setup
from asynclock.errors import ConfigurationError
from asynclock.testing import LocalServer, busy

MEMORY = ("memory://a", "memory://b", "memory://c")


def orders_app(*nodes: Any, **settings: Any) -> FastAPI:
    app = FastAPI()
    setup(app, *nodes, **settings)

    @app.post("/orders/{order_id}")
    async def ship(
        order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=0.05)]
    ) -> dict[str, bool]:
        return {"held": lease.held}

    @app.post("/plain/{order_id}")
    async def plain(order_id: int, locks: Locks) -> dict[str, str]:
        async with locks.lock(f"orders:{order_id}", timeout=0.05) as lease:
            return {"owner": lease.owner}

    return app


@contextlib.asynccontextmanager
async def in_process(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """No server, no thread: the application runs in the test's own task."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client


async def test_a_busy_name_is_contention_in_the_tests_own_task() -> None:
    app = orders_app(*MEMORY)
    async with in_process(app) as client:
        async with busy("orders:42", app.state.asynclock) as lease:
            answer = await client.post("/orders/42")
            assert (answer.status_code, answer.json()["lock"]) == (409, "orders:42")
            assert lease.held
        assert (await client.post("/orders/42")).json() == {"held": True}
        async with busy("orders:42", *MEMORY):
            assert (await client.post("/plain/42")).status_code == 409


async def test_busy_needs_no_address_for_the_usual_node() -> None:
    async with asynclock.connect("memory://") as locks, busy("a"):
        assert await locks.lock("a").try_acquire() is None


async def test_busy_on_real_nodes(asynclock_nodes: list[LocalServer]) -> None:
    urls = [node.url for node in asynclock_nodes]
    async with asynclock.connect(*urls, restart_guard=False, prefix="shop:") as locks:
        async with busy("a", locks):
            with pytest.raises(asynclock.AcquireTimeoutError):
                await locks.lock("a").acquire(timeout=0.05)
        async with locks.lock("a", timeout=5):
            pass


async def test_a_lock_of_the_tests_own_task_names_the_cause() -> None:
    app = orders_app(*MEMORY)
    async with in_process(app) as client:
        async with app.state.asynclock.lock("orders:42"):
            answer = await client.post("/orders/42")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:asynclock:already-held")
    assert "holds this lock" in answer.json()["title"]


async def test_behind_a_middleware_of_functions_the_tests_lock_is_that_of_another_task() -> None:
    app = orders_app(*MEMORY)

    @app.middleware("http")
    async def around(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async with in_process(app) as client:
        async with app.state.asynclock.lock("orders:42"):
            answer = await client.post("/orders/42")
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:asynclock:contended")


def test_overrides_reach_all_ways_to_the_locks() -> None:
    app = orders_app("redis://nobody.invalid")
    with TestClient(orders_app(*MEMORY)) as other:  # its manager lives in the loop of the client
        app.dependency_overrides[locks_of] = lambda: other.app.state.asynclock  # type: ignore[attr-defined]  # an ASGI app, says its type
        client = TestClient(app)
        client.portal = other.portal
        assert client.post("/orders/42").status_code == 200
        assert client.post("/plain/42").status_code == 200


def test_a_second_setup_replaces_the_nodes() -> None:
    app = orders_app("redis://nobody.invalid")
    setup(app, *MEMORY, contended=423)
    with TestClient(app) as client:
        assert client.post("/orders/42").status_code == 200
        with pytest.raises(ConfigurationError, match="runs"):
            setup(app, "redis://nobody.invalid")
        assert client.portal is not None
        with client.portal.wrap_async_context_manager(busy("orders:42", app.state.asynclock)):
            assert client.post("/orders/42").status_code == 423


def test_a_manager_survives_a_second_client() -> None:
    app = orders_app(asynclock.connect(*MEMORY))
    for _ in range(2):
        with TestClient(app) as client:
            assert client.post("/orders/42").status_code == 200
            assert client.post("/plain/42").status_code == 200


def test_setup_after_the_start_is_refused() -> None:
    app = FastAPI()
    with TestClient(app), pytest.raises(ConfigurationError, match="started"):
        setup(app, *MEMORY)


@pytest.mark.parametrize("framework", [FastAPI, web.Application])
def test_a_wrong_setting_is_found_by_setup(framework: Any) -> None:
    give: Any = setup if framework is FastAPI else for_aiohttp.setup
    with pytest.raises(TypeError, match="ttll"):
        give(framework(), "redis://localhost", ttll=3)
    with pytest.raises(ConfigurationError, match="ttl"):
        give(framework(), "redis://localhost", ttl=-1)


async def test_aiohttp_too() -> None:
    app = web.Application()
    for_aiohttp.setup(app, "redis://nobody.invalid")
    for_aiohttp.setup(app, *MEMORY, contended=423)

    @for_aiohttp.locked("orders:{order_id}", timeout=0.05)
    async def ship(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response({"held": lease.held})

    app.router.add_post("/orders/{order_id}", ship)
    async with AiohttpClient(TestServer(app)) as client:
        with pytest.raises(ConfigurationError, match="runs"):
            for_aiohttp.setup(app, *MEMORY)
        async with busy("orders:42", app[for_aiohttp.LOCKS]):
            assert (await client.post("/orders/42")).status == 423
        assert await (await client.post("/orders/42")).json() == {"held": True}


async def test_a_manager_survives_a_second_client_of_aiohttp() -> None:
    """Each client has an application of its own, because aiohttp starts an application once."""
    locks = asynclock.connect(*MEMORY)

    @for_aiohttp.locked("orders:{order_id}", timeout=0.05)
    async def ship(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response({"held": lease.held})

    for _ in range(2):
        app = web.Application()
        for_aiohttp.setup(app, locks)
        app.router.add_post("/orders/{order_id}", ship)
        async with AiohttpClient(TestServer(app)) as client:
            assert app[for_aiohttp.LOCKS] is locks
            assert await (await client.post("/orders/42")).json() == {"held": True}
