"""Clients that go away: what is left of their requests, and what a handler may still do.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
from typing import Annotated, Any

import anyio
import httpx
import pytest
from aiohttp import ClientSession, web
from fastapi import BackgroundTasks, FastAPI, Request
from starlette.middleware.base import BaseHTTPMiddleware

from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locked
from asynclock.testing import busy
from tests.contrib.apps import Witness, fastapi_app, serving, with_locks
from tests.contrib.conftest import Start
from tests.waiting import becomes, call_off, until

CLIENTS = 200


def application(of: str) -> Any:
    """Skip what only the other framework does."""
    return pytest.mark.parametrize("framework", [of])


async def ask_and_hang_up(url: str, path: str, until_then: asyncio.Event) -> None:
    address = httpx.URL(url)
    _reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    await until_then.wait()
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_goes_away_frees_the_lock(start: Start) -> None:
    async with start() as service:
        go = asyncio.Event()
        client = asyncio.create_task(ask_and_hang_up(service.url, "/orders/42/hold", go))
        await until(lambda: service.witness.entered)
        assert not await service.free()
        go.set()
        await client
        await until(service.free)
        assert service.witness.left == ["interrupted"]


async def test_200_clients_go_away(start: Start) -> None:
    """Holders and waiters; leases live for a minute, so only a release frees a name."""
    async with start() as service:
        go, statistics = asyncio.Event(), service.locks.statistics
        clients = [
            asyncio.create_task(ask_and_hang_up(service.url, f"/orders/{i % 20}/hold", go))
            for i in range(CLIENTS)
        ]
        await until(lambda: len(service.witness.entered) == 20)
        # Each request has come, so that none takes a name later.
        await becomes(lambda: statistics().waiting, CLIENTS - 20)
        go.set()
        await asyncio.gather(*clients)
        await becomes(lambda: (statistics().waiting, statistics().held), (0, 0))
        assert (await service.client.post("/orders/3/quick")).status_code == 200
        await until(service.free)


# ---- FastAPI -------------------------------------------------------------------------------------
@application("fastapi")
async def test_a_thread_is_waited_for(start: Start) -> None:
    """It can't be interrupted: the lock stays as long as the function runs, client or not."""
    noticed = asyncio.Event()

    def listening(app: Any) -> Any:
        async def around(scope: Any, receive: Any, send: Any) -> None:
            async def noting() -> Any:
                message = await receive()
                if message["type"] == "http.disconnect":
                    asyncio.get_running_loop().call_later(0.01, noticed.set)
                return message

            await app(scope, noting if scope["type"] == "http" else receive, send)

        return around

    async with start(around=listening) as service:
        go = asyncio.Event()
        client = asyncio.create_task(ask_and_hang_up(service.url, "/orders/42/thread", go))
        await until(lambda: service.witness.entered)
        go.set()
        await client
        await asyncio.wait_for(noticed.wait(), 30)
        assert not await service.free()
        service.witness.go_on.set()
        await until(service.free)
        assert service.witness.left == ["done"]


@application("fastapi")
async def test_a_stream_is_sent_without_the_lock(start: Start) -> None:
    async with start() as service, service.client.stream("POST", "/orders/42/stream") as answer:
        await until(service.free)
        service.witness.go_on.set()
        assert await answer.aread() == b"free end"


@application("fastapi")
async def test_inside_a_middleware_with_a_task_of_its_own(start: Start) -> None:
    def maker(witness: Witness, *nodes: Any, **settings: Any) -> FastAPI:
        app = fastapi_app(witness, *nodes, **settings)

        async def pass_on(request: Request, call_next: Any) -> Any:
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=pass_on)
        return app

    async with start(maker) as service:
        assert (await service.client.post("/orders/1/quick")).status_code == 200
        go = asyncio.Event()
        client = asyncio.create_task(ask_and_hang_up(service.url, "/orders/2/hold", go))
        await until(lambda: len(service.witness.entered) == 2)
        go.set()
        await client
        await until(service.free)
        assert service.witness.left == ["done", "interrupted"]


@application("fastapi")
async def test_what_runs_after_the_answer_is_not_ended(start: Start) -> None:
    """To a listener, an answered request looks like one whose client has gone."""

    def maker(witness: Witness, *nodes: Any, **settings: Any) -> FastAPI:
        app: FastAPI = with_locks("fastapi", *nodes, **settings)

        @app.post("/orders/{order_id}")
        async def order(
            tasks: BackgroundTasks, lease: Annotated[Lease, Locked("orders:{order_id}")]
        ) -> None:
            async def afterwards() -> None:
                await asyncio.sleep(0.2)
                await witness.work("afterwards", wait=False)

            tasks.add_task(afterwards)

        return app

    async with start(maker) as service:
        assert (await service.client.post("/orders/1")).status_code == 200
        await becomes(lambda: service.witness.left, ["done"])


# ---- aiohttp: not the server of its tests, which cancels every handler of a client that goes -----
async def test_a_client_that_goes_while_its_socket_waits_for_the_lock_leaves_the_queue() -> None:
    entered: list[str] = []

    @for_aiohttp.locked("a")
    async def chat(request: web.Request, lease: Lease) -> web.StreamResponse:
        entered.append(lease.name)
        return web.Response()

    app = with_locks("aiohttp")
    app.router.add_get("/", chat)
    async with serving(app) as url, busy("a", app[for_aiohttp.LOCKS]):
        locks = app[for_aiohttp.LOCKS]
        async with ClientSession() as client:

            async def connect() -> None:
                async with client.ws_connect(url):
                    pass

            asking = asyncio.create_task(connect())
            await becomes(lambda: locks.statistics().waiting, 1)
            await call_off(asking)
        await becomes(lambda: locks.statistics().waiting, 0)
    assert not entered


async def test_a_client_that_has_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """An operator reads errors; the access log has the status that others use for this."""
    answers: list[int] = []
    inside = asyncio.Event()

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        answer: web.StreamResponse = await handler(request)
        answers.append(answer.status)
        return answer

    @for_aiohttp.locked("a")
    async def hold(request: web.Request, lease: Lease) -> web.Response:
        inside.set()
        await asyncio.sleep(60)
        return web.Response()

    app = with_locks("aiohttp")
    app.middlewares.append(note)
    app.router.add_get("/", hold)
    async with serving(app) as url:
        async with ClientSession() as client:
            asking = asyncio.create_task(client.get(url))
            await asyncio.wait_for(inside.wait(), 30)
            await call_off(asking)
        await becomes(lambda: answers, [499])
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_after_its_socket_has_closed_a_handler_of_aiohttp_may_clean_up() -> None:
    cleaned = asyncio.Event()

    @for_aiohttp.locked("a")
    async def chat(request: web.Request, lease: Lease) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        await asyncio.sleep(0.2)  # several looks at whether a client is still there
        cleaned.set()
        return socket

    app = with_locks("aiohttp")
    app.router.add_get("/", chat)
    async with serving(app) as url, ClientSession() as client:
        async with client.ws_connect(url) as socket:
            await socket.close()
        await asyncio.wait_for(cleaned.wait(), 10)
        async with client.ws_connect(url):
            pass  # the lock is free again


async def test_a_time_limit_around_a_lock_ends_the_handler() -> None:
    ended, scope = asyncio.Event(), anyio.CancelScope()

    @web.middleware
    async def limit(request: web.Request, handler: Any) -> web.StreamResponse:
        with scope:
            return await handler(request)  # type: ignore[no-any-return]
        return web.Response(status=504)

    @for_aiohttp.locked("a")
    async def slow(request: web.Request, lease: Lease) -> web.Response:
        scope.deadline = anyio.current_time() + 0.05
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return web.Response()

    app = with_locks("aiohttp")
    app.middlewares.append(limit)
    app.router.add_get("/", slow)
    async with serving(app) as url, ClientSession() as client:
        assert (await asyncio.wait_for(client.get(url), 30)).status == 504
        assert ended.is_set()
