"""Routes of aiohttp with locks: what adding one returns, what a wrong one is told, who answers."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from asynclock import Lease
from asynclock.contrib.aiohttp import LOCKS, cleanup_context, locked, problems, setup
from asynclock.errors import ConfigurationError
from asynclock.testing import busy, lose

NUMBERS = itertools.count()


def address() -> str:
    return f"memory://aiohttp-routes-{next(NUMBERS)}"


@locked("orders:{order_id}", timeout=0.02)
async def order(request: web.Request, lease: Lease) -> web.Response:
    return web.Response(text=lease.name)


async def test_adding_a_route_returns_it() -> None:
    """Applications ask it for its address, or its resource for more routes."""
    app = web.Application()
    setup(app, address())
    router = app.router
    added = {
        "GET": router.add_get("/a/{order_id}", order, name="order"),
        "POST": router.add_post("/b/{order_id}", order),
        "PUT": router.add_route("PUT", "/c/{order_id}", order),
    }
    for method, route in added.items():
        assert route.method == method
        assert route.handler is order
    paths = [str(route.url_for(order_id="42")) for route in added.values()]
    assert paths == ["/a/42", "/b/42", "/c/42"]
    assert router["order"] is added["GET"].resource


@pytest.mark.parametrize(
    ("path", "shown"), [("/orders", ""), ("/shops/{shop}/orders", " ('shop')")]
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_wrong_route_is_named_with_its_method_and_its_path(
    method: str, path: str, shown: str
) -> None:
    app = web.Application()
    setup(app, address())
    words = f"route {method} {path}: the lock name 'orders:{{order_id}}' needs 'order_id', which"
    words += f" is no variable of the path{shown}; a function of the request can also name the lock"
    with pytest.raises(ConfigurationError, match=f"{re.escape(words)}$"):
        app.router.add_route(method, path, order)


async def test_routes_without_a_lock_are_added_as_always() -> None:
    async def plain(_request: web.Request) -> web.Response:
        return web.Response(text="plain")

    app = web.Application()
    setup(app, address())
    app.router.add_get("/{anything}", plain)
    app.router.add_route("*", "/", plain)
    async with TestClient(TestServer(app)) as client:
        for path in ("/", "/one"):
            assert await (await client.get(path)).text() == "plain"
        assert (await client.get("/one/two")).status == 404


@pytest.mark.parametrize("status", [409, 423])
async def test_the_middleware_alone_answers_with_its_status(status: Any) -> None:
    app = web.Application(middlewares=[problems(status)])
    app.cleanup_ctx.append(cleanup_context(address()))
    app.router.add_get("/{order_id}", order)
    async with TestClient(TestServer(app)) as client, busy("orders:42", app[LOCKS]):
        answer = await client.get("/42")
        assert (answer.status, (await answer.json(content_type=None))["status"]) == (status,) * 2
        assert answer.headers["Cache-Control"] == "no-store"


async def test_a_socket_that_was_closed_for_a_loss_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @locked("a")
    async def chat(request: web.Request, lease: Lease) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        lose(lease)
        await asyncio.sleep(60)
        return socket

    app = web.Application()
    setup(app, address())
    app.router.add_get("/", chat)
    async with TestClient(TestServer(app)) as client, client.ws_connect("/") as socket:
        closed = await socket.receive(timeout=30)
        assert (closed.data, closed.extra) == (4500, "lease-lost")
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]
