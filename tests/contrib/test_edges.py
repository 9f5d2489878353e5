"""What surrounds a handler: middleware in any order, WebSockets, routes that are written wrongly.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from fastapi import APIRouter, FastAPI, HTTPException, Request, WebSocket
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

import asynclock
from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locked, Locks, locked, locks_of, setup
from asynclock.errors import ConfigurationError
from asynclock.testing import busy, lose

MEMORY = ("memory://a", "memory://b", "memory://c")
Order = Annotated[Lease, Locked("orders:{order_id}", timeout=0.05)]


# ---- a lock in a middleware ----------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
async def test_a_lock_in_a_middleware_of_fastapi(before: bool) -> None:
    app = FastAPI()

    async def exclusive(request: Request, call_next: Any) -> Any:
        if request.url.path == "/teapot":
            raise HTTPException(418)
        async with locks_of(request).lock("all", timeout=0.05):
            return await call_next(request)

    if before:
        app.middleware("http")(exclusive)
    setup(app, *MEMORY)
    if not before:
        app.middleware("http")(exclusive)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            async with busy("all", app.state.asynclock):
                answer = await client.get("/")
                assert (answer.status_code, answer.json()["lock"]) == (409, "all")
            assert (await client.get("/")).status_code == 404
            # Exceptions that aren't ours are handled as usual.
            assert (await client.get("/teapot")).status_code == 500

            @app.exception_handler(asynclock.AcquireTimeoutError)
            def own(request: Request, error: Exception) -> Any:
                from fastapi.responses import PlainTextResponse

                return PlainTextResponse("later", 503)

            async with busy("all", app.state.asynclock):
                assert (await client.get("/")).text == "later"


async def test_a_lock_in_a_middleware_of_aiohttp() -> None:
    @web.middleware
    async def exclusive(request: web.Request, handler: Any) -> web.StreamResponse:
        async with for_aiohttp.locks_of(request).lock("all", timeout=0.05):
            return await handler(request)

    app = web.Application(middlewares=[exclusive])
    for_aiohttp.setup(app, *MEMORY)
    async with AiohttpClient(TestServer(app)) as client:
        async with busy("all", app[for_aiohttp.LOCKS]):
            answer = await client.get("/")
            assert (answer.status, (await answer.json(content_type=None))["lock"]) == (409, "all")
        assert (await client.get("/")).status == 404


async def test_a_middleware_of_aiohttp_outside_of_ours_is_refused_at_the_start() -> None:
    @web.middleware
    async def exclusive(request: web.Request, handler: Any) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    for_aiohttp.setup(app, *MEMORY)
    app.middlewares.append(exclusive)  # inside, as those that were there before
    async with AiohttpClient(TestServer(app)) as client:
        assert (await client.get("/")).status == 404

    app = web.Application()
    for_aiohttp.setup(app, *MEMORY)
    app.middlewares.insert(0, exclusive)
    with pytest.raises(ConfigurationError, match=r"exclusive.*outside.*problems\(\)"):
        await TestServer(app).start_server()


# ---- WebSockets ----------------------------------------------------------------------------------


def sockets_app() -> FastAPI:
    app = FastAPI()
    setup(app, *MEMORY)

    @app.websocket("/orders/{order_id}")
    async def order(socket: WebSocket, lease: Order, locks: Locks) -> None:
        await socket.accept()
        assert lease in locks.leases()
        async for text in socket.iter_text():
            lose(lease) if text == "lose" else await socket.send_text(lease.name)

    @app.websocket("/late/{order_id}")
    async def late(socket: WebSocket, order_id: int, locks: Locks) -> None:
        await socket.accept()
        async with locks.lock(f"orders:{order_id}", timeout=0.05):
            pass

    return app


def test_a_websocket_under_a_lock() -> None:
    app = sockets_app()
    with TestClient(app) as client:
        with client.websocket_connect("/orders/42") as socket:
            socket.send_text("who")
            assert socket.receive_text() == "orders:42"
            with pytest.raises(WebSocketDenialResponse) as denied:
                client.websocket_connect("/orders/42").__enter__()
            assert (denied.value.status_code, denied.value.json()["status"]) == (409, 409)
            with client.websocket_connect("/late/42") as other:
                with pytest.raises(WebSocketDisconnect) as closed:
                    other.receive_text()
                assert (closed.value.code, closed.value.reason) == (4409, "contended")
            socket.send_text("lose")
            with pytest.raises(WebSocketDisconnect) as closed:
                socket.receive_text()
        assert (closed.value.code, closed.value.reason) == (4500, "lease-lost")
        with client.websocket_connect("/orders/42"):
            pass  # the lock is free again


def test_a_websocket_inside_a_middleware_with_a_lock() -> None:
    """Raised outside of the routes, after the handshake: it still closes the socket."""
    leases: list[Lease] = []

    class Exclusive:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "websocket":
                await self.app(scope, receive, send)
                return
            async with scope["app"].state.asynclock.lock("all") as lease:
                leases.append(lease)
                await self.app(scope, receive, send)

    app = sockets_app()
    app.add_middleware(Exclusive)

    @app.websocket("/quiet")
    async def quiet(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive_text()
        lose(leases[0])
        await asyncio.sleep(60)

    with TestClient(app) as client, client.websocket_connect("/quiet") as socket:
        socket.send_text("go")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert (closed.value.code, closed.value.reason) == (4500, "lease-lost")


async def test_a_websocket_of_aiohttp() -> None:
    app = web.Application()
    for_aiohttp.setup(app, *MEMORY)

    @for_aiohttp.locked("orders:{order_id}", timeout=0.05)
    async def order(request: web.Request, lease: Lease) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            lose(lease) if message.data == "lose" else await socket.send_str(lease.name)
        return socket

    app.router.add_get("/orders/{order_id}", order)
    async with AiohttpClient(TestServer(app)) as client:
        async with client.ws_connect("/orders/42") as socket:
            await socket.send_str("who")
            assert await socket.receive_str() == "orders:42"
            assert (await client.get("/orders/42")).status == 409
            await socket.send_str("lose")
            end = await socket.receive(timeout=10)
            assert (end.type, end.data, end.extra) == (WSMsgType.CLOSE, 4500, "lease-lost")


# ---- methods of a view ---------------------------------------------------------------------------


async def test_a_view_of_aiohttp() -> None:
    class Orders(web.View):
        @for_aiohttp.locked("orders:{order_id}", timeout=0.05)
        async def post(self, lease: Lease) -> web.Response:
            return web.json_response([self.request.match_info["order_id"], lease.name])

    app = web.Application()
    for_aiohttp.setup(app, *MEMORY)
    app.router.add_view("/orders/{order_id}", Orders)
    async with AiohttpClient(TestServer(app)) as client:
        assert await (await client.post("/orders/42")).json() == ["42", "orders:42"]


# ---- templates -----------------------------------------------------------------------------------


def wrong_route(kind: str, app: FastAPI) -> None:
    """Give `app` a route whose lock has a typo in its template."""
    wrong: Any = Annotated[Lease, Locked("orders:{ordr_id}")]

    async def endpoint(lease: wrong) -> None: ...

    @locked("orders:{ordr_id}")
    async def decorated() -> None: ...

    if kind == "dependency":
        app.get("/orders/{order_id}")(endpoint)
    elif kind == "decorator":
        app.get("/orders/{order_id}")(decorated)
    elif kind == "router":
        router = APIRouter(prefix="/shops/{shop}")
        router.get("/orders/{order_id}")(endpoint)
        app.include_router(router)
    elif kind == "mount":
        inner = FastAPI()
        inner.get("/orders/{order_id}")(endpoint)
        app.mount("/shops/{shop}", inner)
    else:
        app.websocket("/orders/{order_id}")(endpoint)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["dependency", "decorator", "router", "websocket", "mount"])
def test_a_templates_typo_is_found_when_the_route_is_made(kind: str, before: bool) -> None:
    app = FastAPI()
    if before:
        setup(app, *MEMORY)
    else:
        wrong_route(kind, app)
    with pytest.raises(ConfigurationError, match=r"orders/{order_id}: .*needs 'ordr_id'"):
        wrong_route(kind, app) if before else setup(app, *MEMORY)


def test_a_typo_in_a_router_that_is_included_already_is_found_at_the_start() -> None:
    """Later versions of FastAPI let a router get routes after it was included."""
    app, router = FastAPI(), APIRouter()
    setup(app, *MEMORY)
    app.include_router(router, prefix="/shops")

    @router.get("/orders/{order_id}")
    @locked("orders:{ordr_id}")
    async def order() -> None: ...

    with pytest.raises(ConfigurationError, match=r"orders/{order_id}: .*needs 'ordr_id'"):
        TestClient(app).__enter__()


def test_a_template_may_use_the_prefix_of_a_router() -> None:
    app, router = FastAPI(), APIRouter()
    setup(app, *MEMORY)

    @router.get("/orders/{order_id}")
    async def order(lease: Annotated[Lease, Locked("{shop}:{order_id}")]) -> str:
        return lease.name

    app.include_router(router, prefix="/shops/{shop}")
    inner = FastAPI()
    inner.include_router(router)
    app.mount("/mounted/{shop}", inner)
    with TestClient(app) as client:
        assert client.get("/shops/a/orders/1").json() == "a:1"
        assert client.get("/mounted/b/orders/1").json() == "b:1"


@pytest.mark.parametrize("declare", [Locked, locked, for_aiohttp.locked])
@pytest.mark.parametrize("wrong", ["blok", None, 1, 0, ["strict"]])
def test_a_wrong_handoff_is_found_when_the_route_is_declared(declare: Any, wrong: Any) -> None:
    """Like every other setting: at the first request it would be too late."""
    with pytest.raises(ConfigurationError, match="handoff must be True"):
        declare("orders:{order_id}", handoff=wrong)
    for right in (True, False, "block", "strict"):
        assert declare("orders:{order_id}", handoff=right)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["add_get", "add_post", "table", "view"])
async def test_a_templates_typo_in_aiohttp(kind: str, before: bool) -> None:
    @for_aiohttp.locked("orders:{ordr_id}")
    async def order(request: Any, lease: Lease) -> web.Response:
        return web.Response()

    def add() -> None:
        if kind == "table":
            table = web.RouteTableDef()
            table.get("/orders/{order_id}")(order)
            app.add_routes(table)
        elif kind == "view":
            app.router.add_view("/orders/{order_id}", type("Orders", (web.View,), {"get": order}))
        else:
            getattr(app.router, kind)("/orders/{order_id}", order)

    app = web.Application()
    for_aiohttp.setup(app, *MEMORY) if before else add()
    with pytest.raises(ConfigurationError, match=r"orders/{order_id}: .*needs 'ordr_id'"):
        add() if before else for_aiohttp.setup(app, *MEMORY)


async def test_a_templates_typo_in_an_application_below_another_of_aiohttp() -> None:
    @for_aiohttp.locked("orders:{ordr_id}")
    async def order(request: Any, lease: Lease) -> web.Response:
        return web.Response()

    app, inner = web.Application(), web.Application()
    for_aiohttp.setup(app, *MEMORY)
    inner.router.add_get("/orders/{order_id}", order)
    app.add_subapp("/shops", inner)
    with pytest.raises(ConfigurationError, match=r"orders/{order_id}: .*needs 'ordr_id'"):
        await TestServer(app).start_server()


@pytest.mark.parametrize("template", ["a:{", "a:{}", "a:{0}"])
@pytest.mark.parametrize("make", [Locked, for_aiohttp.locked])
def test_what_is_no_template(make: Any, template: str) -> None:
    with pytest.raises(ConfigurationError, match="lock name"):
        make(template)


# ---- what OpenAPI tells --------------------------------------------------------------------------


def assert_described(answer: dict[str, Any], status: int, kind: str) -> None:
    schema = answer["content"]["application/problem+json"]["schema"]
    assert schema["properties"]["type"]["const"] == f"urn:asynclock:{kind}"
    assert schema["properties"]["status"]["const"] == status
    assert {"title", "lock", "retry_after"} <= schema["properties"].keys()
    assert schema["required"] == ["type", "title", "status"]
    assert "Retry-After" in answer["headers"]


def test_openapi_describes_contention_as_409_unless_told_otherwise() -> None:
    app = FastAPI()
    setup(app, *MEMORY)

    @app.post("/orders/{order_id}")
    @locked("orders:{order_id}")
    async def ship(order_id: int) -> None: ...

    with TestClient(app) as client:
        paths = client.get("/openapi.json").json()["paths"]
    answers = paths["/orders/{order_id}"]["post"]["responses"]
    assert "423" not in answers
    assert_described(answers["409"], 409, "contended")
    assert_described(answers["503"], 503, "unavailable")


def test_openapi_shows_the_status_of_the_latest_setup() -> None:
    app = FastAPI()
    setup(app, *MEMORY)
    setup(app, *MEMORY, contended=423)

    @app.post("/orders/{order_id}")
    @locked("orders:{order_id}")
    async def ship(order_id: int) -> None: ...

    answers = app.openapi()["paths"]["/orders/{order_id}"]["post"]["responses"]
    assert "409" not in answers
    assert_described(answers["423"], 423, "contended")


def test_openapi_shows_what_a_lock_may_answer() -> None:
    app, router = FastAPI(), APIRouter()
    setup(app, *MEMORY, contended=423)

    @router.post("/orders/{order_id}")
    @locked("orders:{order_id}")
    async def ship(order_id: int) -> None: ...

    @app.get("/free", responses={503: {"description": "mine"}})
    async def free() -> None: ...

    app.include_router(router, prefix="/shop")
    with TestClient(app) as client:
        paths = client.get("/openapi.json").json()["paths"]
    answers = paths["/shop/orders/{order_id}"]["post"]["responses"]
    assert {"200", "423", "503"} <= answers.keys()
    assert_described(answers["423"], 423, "contended")
    assert_described(answers["503"], 503, "unavailable")
    assert paths["/free"]["get"]["responses"]["503"] == {"description": "mine"}
    assert "423" not in paths["/free"]["get"]["responses"]


# ---- mounted applications ------------------------------------------------------------------------


async def test_a_mounted_application_answers_like_the_one_around_it() -> None:
    app, inner = FastAPI(), FastAPI()
    setup(app, *MEMORY, contended=423)
    app.mount("/inner", inner)

    @inner.post("/{order_id}")
    async def ship(lease: Order) -> str:
        return lease.name

    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/inner/42")).json() == "orders:42"
            async with busy("orders:42", app.state.asynclock):
                answer = await client.post("/inner/42")
            assert (answer.status_code, answer.json()["lock"]) == (423, "orders:42")
            paths = (await client.get("/inner/openapi.json")).json()["paths"]
    assert {"423", "503"} <= paths["/{order_id}"]["post"]["responses"].keys()
