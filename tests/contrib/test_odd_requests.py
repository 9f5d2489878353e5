"""Streams that have begun, receivers that fail, sockets that close, invalid names and settings.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from aiohttp import ClientPayloadError, ClientSession, web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer, make_mocked_request
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib._disconnect import Presence
from asynclock.contrib._while_present import PRESENCE_INTERVAL, WhilePresent
from asynclock.contrib.dashboard.snapshots import MOST_LOCKS, Query
from asynclock.contrib.fastapi import Locked, locked, locks_of, setup
from asynclock.errors import ConfigurationError, NotAcquiredError
from asynclock.testing import busy, lose
from tests.contrib.apps import serving

MEMORY = ("memory://a", "memory://b", "memory://c")


@pytest.mark.parametrize("composed", [False, True])
async def test_a_loss_in_a_stream_of_aiohttp_breaks_the_stream(composed: bool) -> None:
    """A second response inside the first would look like content to the client."""

    @for_aiohttp.locked("a")
    async def stream(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b"begin ")
        lose(lease)
        await asyncio.sleep(60)
        return response

    app = web.Application(middlewares=[for_aiohttp.problems()] if composed else [])
    if composed:
        app.cleanup_ctx.append(for_aiohttp.cleanup_context(*MEMORY))
    else:
        for_aiohttp.setup(app, *MEMORY)
    app.router.add_get("/", stream)
    async with AiohttpClient(TestServer(app)) as client:
        answer = await client.get("/")
        assert answer.status == 200
        with pytest.raises(ClientPayloadError):
            await asyncio.wait_for(answer.read(), 10)


async def test_a_client_that_waits_for_100_continue_gets_the_answer_of_a_busy_lock() -> None:
    """Only a part of the final response keeps the middleware from answering."""

    async def go_on(request: web.Request) -> None:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @for_aiohttp.locked("a", timeout=0.02)
    async def upload(request: web.Request, lease: Lease) -> web.StreamResponse:
        return web.Response(text="stored")

    app = web.Application()
    for_aiohttp.setup(app, *MEMORY)
    app.router.add_post("/", upload, expect_handler=go_on)
    async with AiohttpClient(TestServer(app)) as client, busy("a", app[for_aiohttp.LOCKS]):
        answer = await client.post("/", data=b"body", expect100=True)
        assert answer.status == 409


async def test_the_middleware_answers_the_mocked_request_of_a_unit_test() -> None:
    async def contended(request: web.Request) -> web.StreamResponse:
        raise NotAcquiredError("busy", name="a")

    answer = await for_aiohttp.problems()(make_mocked_request("GET", "/"), contended)
    assert answer.status == 409


async def test_after_its_socket_has_closed_a_handler_of_aiohttp_may_clean_up() -> None:
    cleaned = asyncio.Event()

    @for_aiohttp.locked("a")
    async def chat(request: web.Request, lease: Lease) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        await asyncio.sleep(4 * PRESENCE_INTERVAL)
        cleaned.set()
        return socket

    app = web.Application()
    for_aiohttp.setup(app, *MEMORY)
    app.router.add_get("/", chat)
    # Not the server of aiohttp's tests, which cancels every handler of a client that goes.
    async with serving(app) as url, ClientSession() as client:
        async with client.ws_connect(url) as socket:
            await socket.close()
        await asyncio.wait_for(cleaned.wait(), 10)
        async with client.ws_connect(url):
            pass  # the lock is free again


async def test_a_receiver_that_fails_does_so_in_the_handler() -> None:
    """For example a middleware around the application that limits the size of bodies."""

    async def receive() -> dict[str, Any]:
        raise ValueError("too large")

    async def send(_message: Any) -> None:
        raise AssertionError

    presence = Presence(receive, send)
    presence.insist()
    for _ in range(2):
        with pytest.raises(ValueError, match="too large"):
            await asyncio.wait_for(presence.receive(), 5)
    await presence.aclose()


async def test_a_mounted_application_of_starlette_answers_like_the_one_around_it() -> None:
    async def ship(request: Request) -> PlainTextResponse:
        async with locks_of(request).lock("a", timeout=0.02):
            return PlainTextResponse("shipped")

    app = FastAPI()
    setup(app, *MEMORY)
    app.mount("/inner", Starlette(routes=[Route("/ship", ship)]))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/inner/ship")).text == "shipped"
            async with busy("a", app.state.asynclock):
                assert (await client.get("/inner/ship")).status_code == 409


async def name_of(request: Any) -> str:
    return "a"


class Namer:
    async def __call__(self, request: Any) -> str:
        return "a"


@pytest.mark.parametrize("make", [Locked, for_aiohttp.locked])
@pytest.mark.parametrize("name", [name_of, Namer(), 42, None, b"a"])
def test_what_is_no_name_is_refused_where_it_is_written(make: Any, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="lock name"):
        make(name)


@pytest.mark.parametrize("make", [Locked, for_aiohttp.locked])
def test_a_setting_that_does_not_exist_is_refused_where_it_is_written(make: Any) -> None:
    with pytest.raises(TypeError, match=r"blocking_timeout.*timeout"):
        make("a", blocking_timeout=2)


@pytest.mark.parametrize("make", [Locked, for_aiohttp.locked])
@pytest.mark.parametrize("setting", [{"timeout": -1}, {"timeout": "2"}, {"ttl": 0}])
def test_a_setting_of_no_use_is_refused_where_it_is_written(make: Any, setting: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        make("a", **setting)


def test_a_viewers_numbers_have_a_limit() -> None:
    """Python refuses to read numbers with thousands of digits."""
    assert Query.of({"limit": "9" * 5000, "offset": "9" * 5000}) == Query()
    assert Query.of({"limit": "999999999"}).limit == MOST_LOCKS


def test_an_application_with_two_clients_runs_until_the_second_has_ended() -> None:
    app = FastAPI()
    setup(app, *MEMORY)

    @app.get("/")
    @locked("a", timeout=5)
    async def root() -> str:
        return "held"

    with TestClient(app) as first:
        with TestClient(app) as second:
            assert [client.get("/").json() for client in (first, second)] == ["held"] * 2
        with pytest.raises(ConfigurationError, match="runs"):
            setup(app, "memory://other")
        assert first.get("/").json() == "held"
    setup(app, "memory://other")


async def test_a_handler_that_has_ended_is_not_watched_any_more() -> None:
    looks = 0

    def is_closing() -> bool:
        nonlocal looks
        looks += 1
        return False

    request: Any = SimpleNamespace(headers={}, transport=SimpleNamespace(is_closing=is_closing))
    with WhilePresent(request):
        pass
    await asyncio.sleep(3 * PRESENCE_INTERVAL)
    assert looks == 1
