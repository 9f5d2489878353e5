"""What a client is told of a lock, wherever the application takes it: both frameworks alike.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import threading
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import ClientPayloadError, ClientSession, web
from aiohttp.test_utils import make_mocked_request
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.routing import Route

import asynclock
from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.contrib.fastapi import Locked, Locks, locked
from asynclock.errors import NotAcquiredError
from asynclock.testing import LocalServer, busy, lose
from tests.contrib.apps import client_of, memory, serving, with_locks
from tests.contrib.conftest import Start
from tests.waiting import go_through, until

SOON = 0.1
"""Seconds to wait for a lock: too short for one that stays taken, enough on a busy machine."""
PATH = "/in/"


def by_fastapi(place: str, *nodes: Any, contended: Any = 409, **route: Any) -> FastAPI:
    """Make an application that takes the lock "a" of each request at some place."""
    app, inner = FastAPI(), FastAPI()
    lock = Locked("a", **{"timeout": SOON, **route})

    async def declares(lease: Annotated[Lease, lock]) -> str:
        return lease.name

    async def nothing() -> str:
        return "a"

    async def asks(request: Request) -> PlainTextResponse:
        async with for_fastapi.locks_of(request).lock("a", timeout=SOON):
            return PlainTextResponse("a")

    async def around(request: Request, call_next: Any) -> Any:
        if request.url.path == "/teapot":
            raise HTTPException(418)
        async with for_fastapi.locks_of(request).lock("a", timeout=SOON):
            return await call_next(request)

    if place == "an earlier middleware":
        app.middleware("http")(around)
    for_fastapi.setup(app, *(nodes or memory()), contended=contended)
    match place:
        case "the route":
            app.get(PATH)(declares)
        case "a decorator":
            app.get(PATH)(locked("a", **{"timeout": SOON, **route})(nothing))
        case "the handler":
            app.add_route(PATH, asks)
        case "a middleware":
            app.middleware("http")(around)
        case "a mounted application":
            inner.get("/")(declares)
            app.mount("/in", inner)
        case "an application below a mounted one":
            middle = FastAPI()
            inner.get("/")(declares)
            middle.mount("/", inner)
            app.mount("/in", middle)
        case "a mounted application of Starlette":
            app.mount("/in", Starlette(routes=[Route("/", asks)]))
    if "middleware" in place:
        app.get(PATH)(nothing)
    return app


def by_aiohttp(place: str, *nodes: Any, contended: Any = 409, **route: Any) -> web.Application:
    """Make an application that takes the lock "a" of each request at some place.

    "By hand" is composed of the parts of `setup`.
    """

    @for_aiohttp.locked("a", **{"timeout": SOON, **route})
    async def declares(request: Any, lease: Lease) -> web.Response:
        return web.Response(text=lease.name)

    @web.middleware
    async def around(request: web.Request, handler: Any) -> web.StreamResponse:
        async with for_aiohttp.locks_of(request).lock("a", timeout=SOON):
            return await handler(request)  # type: ignore[no-any-return]

    async def free(request: web.Request) -> web.Response:
        return web.Response(text="a")

    async def asks(request: web.Request) -> web.StreamResponse:
        return await around(request, free)

    place, _, by_hand = place.partition(", ")
    layers = [around] if place == "a middleware" else []
    app = web.Application(
        middlewares=[*([for_aiohttp.problems(contended)] * bool(by_hand)), *layers]
    )
    addresses = nodes or memory()
    if by_hand:
        app.cleanup_ctx.append(for_aiohttp.cleanup_context(*addresses))
    else:
        for_aiohttp.setup(app, *addresses, contended=contended)
    match place:
        case "the route":
            app.router.add_get(PATH, declares)
        case "a view":
            app.router.add_view(PATH, type("View", (web.View,), {"get": declares}))
        case "the handler":
            app.router.add_get(PATH, asks)
        case "a middleware":
            app.router.add_get(PATH, free)
        case "an application inside":
            inner = web.Application()
            inner.router.add_get("/", declares)
            app.add_subapp("/in", inner)
    return app


PLACES: list[tuple[Any, str]] = [
    (by_fastapi, "the route"),
    (by_fastapi, "a decorator"),
    (by_fastapi, "the handler"),
    (by_fastapi, "a middleware"),
    (by_fastapi, "an earlier middleware"),
    (by_fastapi, "a mounted application"),
    (by_fastapi, "an application below a mounted one"),
    (by_fastapi, "a mounted application of Starlette"),
    (by_aiohttp, "the route"),
    (by_aiohttp, "a view"),
    (by_aiohttp, "the handler"),
    (by_aiohttp, "a middleware"),
    (by_aiohttp, "an application inside"),
    (by_aiohttp, "the route, by hand"),
    (by_aiohttp, "the handler, by hand"),
    (by_aiohttp, "a middleware, by hand"),
]


def problem(answer: httpx.Response) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an answer to an error of a lock."""
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.headers["cache-control"] == "no-store"
    body: dict[str, Any] = answer.json()
    assert body["status"] == answer.status_code
    assert str(body.get("retry_after")) == answer.headers.get("retry-after", "None")
    return answer.status_code, body


@pytest.mark.parametrize(("make", "place"), PLACES)
async def test_a_held_lock_is_one_answer_wherever_it_is_taken(make: Any, place: str) -> None:
    """It never advises the ttl of 10 s, and tells nothing of the holder."""
    nodes = memory()
    async with client_of(make(place, *nodes, contended=423)) as (client, _):
        assert "a" in (await client.get(PATH)).text
        async with asynclock.connect(*nodes, label="secret-host:1") as others, others.lock("a"):
            answer = await client.get(PATH)
    title, kind = "Another holder has this lock", "urn:asynclock:contended"
    wanted = {"type": kind, "title": title, "status": 423, "lock": "a", "retry_after": 1}
    assert problem(answer) == (423, wanted)


@pytest.mark.parametrize("retry_after", [0, 7.5])
async def test_a_route_may_say_it_for_its_own_lock_only(retry_after: float) -> None:
    """Not for another lock that its function asks for."""
    app = with_locks("fastapi")
    seen: list[NotAcquiredError] = []

    @app.exception_handler(NotAcquiredError)
    async def note(_: Request, error: NotAcquiredError) -> PlainTextResponse:
        seen.append(error)
        return PlainTextResponse("", 409)

    @app.get("/")
    @locked("a", timeout=SOON, retry_after=retry_after)
    async def root(locks: Locks) -> None:
        await go_through(locks.lock("b", timeout=SOON))

    async with client_of(app) as (client, locks):
        for name in "ab":
            async with busy(name, locks):
                assert (await client.get("/")).status_code == 409
    assert seen[0].retry_after == retry_after
    assert 0 < seen[1].retry_after < 1


async def test_a_refusal_that_the_handler_raises_says_itself_when_to_come_back() -> None:
    app = with_locks("fastapi")

    @app.get("/")
    @locked("a", retry_after=30.0)
    async def root() -> None:
        raise NotAcquiredError("held", name="other", remaining=7.0)

    async with client_of(app) as (client, _):
        for _ in range(2):
            status, body = problem(await client.get("/"))
            assert (status, body["lock"], body["retry_after"]) == (409, "other", 7)


async def test_errors_of_a_middleware_have_the_handlers_of_the_application() -> None:
    app = by_fastapi("a middleware")
    async with client_of(app) as (client, locks):
        assert (await client.get("/teapot")).status_code == 500, "not ours: handled as usual"

        @app.exception_handler(asynclock.AcquireTimeoutError)
        def own(request: Request, error: Exception) -> Any:
            # It may block, so it must not run where all requests do.
            assert threading.current_thread() is not threading.main_thread()
            return PlainTextResponse("later", 503)

        async with busy("a", locks):
            assert (await client.get(PATH)).text == "later"


async def test_a_mounted_application_keeps_its_own_answer_to_errors() -> None:
    outer, inner = with_locks("fastapi"), FastAPI()

    @inner.exception_handler(asynclock.AsyncLockError)
    async def teapot(*_: Any) -> Any:
        return PlainTextResponse("mine", 418)

    @inner.get("/")
    async def root() -> None:
        raise NotAcquiredError("held", name="a")

    outer.mount("/inner", inner)
    async with client_of(outer) as (client, _):
        assert (await client.get("/inner/")).status_code == 418


async def test_an_application_inside_of_another_uses_its_own_nodes() -> None:
    app, inner = by_aiohttp("the route"), by_aiohttp("the route")
    app.add_subapp("/inner", inner)
    async with client_of(app) as (client, locks):
        async with busy("a", locks):
            assert (await client.get(PATH)).status_code == 409
            assert (await client.get(f"/inner{PATH}")).status_code == 200
        async with busy("a", inner[for_aiohttp.LOCKS]):
            assert (await client.get(f"/inner{PATH}")).status_code == 409


@pytest.mark.parametrize("layers", [0, 1])
async def test_a_lock_of_the_tests_own_task_names_the_cause(layers: int) -> None:
    """Behind a middleware of functions the request is another task, which may wait."""
    app = by_fastapi("the handler")

    async def pass_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    for _ in range(layers):
        app.middleware("http")(pass_on)
    async with client_of(app) as (client, locks), locks.lock("a"):
        status, body = problem(await client.get(PATH))
    kinds = {409: "urn:asynclock:contended", 500: "urn:asynclock:already-held"}
    assert (status, body["type"]) == (409 if layers else 500, kinds[status])


# ---- the service of both frameworks --------------------------------------------------------------
async def test_a_handler_runs_under_the_lock(start: Start) -> None:
    async with start() as service:
        answers = [await service.client.post("/orders/42/quick") for _ in range(2)]
        fences = [answer.json()["fence"] for answer in answers]
        assert service.witness.entered == ["orders:42"] * 2
        assert 0 < fences[0] < fences[1]
        await until(service.free)
        health = await service.client.get("/health/locks")
        assert (health.status_code, health.headers["cache-control"]) == (200, "no-store")
        assert (health.json()["status"], health.json()["voting"]) == ("ok", 3)


async def test_an_outage_is_no_contention(start: Start, asynclock_nodes: list[LocalServer]) -> None:
    async with start(nodes=[node.url for node in asynclock_nodes], node_timeout=0.5) as service:
        assert (await service.client.get("/health/locks")).status_code == 200
        for node in asynclock_nodes[:2]:
            await node.kill()
        answer = await service.client.post("/orders/42/quick")
        status, body = problem(answer)
        assert (status, body["type"]) == (503, "urn:asynclock:unavailable")
        assert body["retry_after"] >= 1
        assert str(asynclock_nodes[0].port) not in answer.text
        ill = await service.client.get("/health/locks")
        assert (ill.status_code, ill.json()["status"]) == (503, "unavailable")
        assert sorted(node["state"] == "up" for node in ill.json()["nodes"]) == [0, 0, 1]
        assert service.witness.entered == []


async def test_a_loss_ends_the_handler_and_is_told(start: Start) -> None:
    async with start() as service:
        request = asyncio.create_task(service.client.post("/orders/42/hold"))
        await until(lambda: service.witness.entered)
        lose(service.locks.leases()[0])
        status, body = problem(await request)
        assert (status, body["type"]) == (500, "urn:asynclock:lease-lost")
        assert service.witness.left == ["interrupted"]


@pytest.mark.parametrize("order", ["%23b", "a:%23b"])
async def test_a_name_that_cannot_be_is_the_clients_fault(start: Start, order: str) -> None:
    async with start() as service:
        status, body = problem(await service.client.post(f"/orders/{order}/quick"))
        assert (status, body["type"]) == (400, "urn:asynclock:unusable-name")


async def test_a_body_is_read_under_the_lock(start: Start) -> None:
    async def slowly() -> Any:
        for _ in range(30):
            yield b"x" * 10_000
            await asyncio.sleep(0)

    async with start() as service:
        answer = await service.client.post("/orders/42/upload", content=slowly())
        assert answer.json() == {"size": 300_000}


# ---- what has been sent decides ------------------------------------------------------------------
ACCEPT = {"type": "websocket.accept"}
TEXT = {"type": "websocket.send", "text": "hello"}
CLOSE = {"type": "websocket.close", "code": 1000}
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"hello", "more_body": True}
ASKED = ["http.response.start", "http.response.body"]
DENIED = ["websocket.http.response.start", "websocket.http.response.body"]
CLOSED = {"type": "websocket.close", "code": 4409, "reason": "contended"}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("http", [], ASKED),
        ("http", [START], None),
        ("http", [START, BODY], None),
        ("http", [START, BODY, BODY], None),
        ("websocket", [], DENIED),
        ("websocket", [ACCEPT], CLOSED),
        ("websocket", [ACCEPT, TEXT], CLOSED),
        ("websocket", [ACCEPT, TEXT, TEXT], CLOSED),
        ("websocket", [CLOSE], None),
        ("websocket", [ACCEPT, CLOSE], None),
        ("lifespan", [], None),
    ],
)
async def test_an_error_outside_of_the_routes_is_answered_if_it_still_can_be(
    kind: str, before: list[Any], after: Any
) -> None:
    """After an answer (None) the server gets the error and nothing else."""
    app, sent = with_locks("fastapi"), list[Any]()

    class Fails:
        def __init__(self, app: Any) -> None:
            """What it is around is never called."""

        async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
            for message in before:
                await send(message)
            raise NotAcquiredError("held", name="a")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    app.add_middleware(Fails)
    scope = {"type": kind, "path": "/", "headers": [], "method": "GET"}
    call = app({**scope, "extensions": {"websocket.http.response": {}}}, receive, send)
    if after is None:
        with pytest.raises(NotAcquiredError, match="held"):
            await call
        assert sent == before
        return
    await call
    rest = sent[len(before) :]
    if after == CLOSED:
        assert rest == [CLOSED]
    else:
        assert [one["type"] for one in rest] == after
        assert rest[0]["status"] == 409
        assert b"urn:asynclock:contended" in rest[1]["body"]


@pytest.mark.parametrize("by_hand", ["", ", by hand"])
async def test_a_loss_in_a_stream_of_aiohttp_breaks_the_stream(by_hand: str) -> None:
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

    app = by_aiohttp(by_hand)
    app.router.add_get("/", stream)
    async with serving(app) as url, ClientSession() as client:
        answer = await client.get(url)
        assert answer.status == 200
        with pytest.raises(ClientPayloadError):
            await asyncio.wait_for(answer.read(), 10)


async def test_a_client_that_waits_for_100_continue_gets_the_answer_of_a_busy_lock() -> None:
    """Only a part of the final response keeps the middleware from answering."""

    async def go_on(request: web.Request) -> None:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @for_aiohttp.locked("a", timeout=SOON)
    async def upload(request: web.Request, lease: Lease) -> web.StreamResponse:
        return web.Response(text="stored")

    app = with_locks("aiohttp")
    app.router.add_post("/", upload, expect_handler=go_on)
    async with serving(app) as url, ClientSession() as client, busy("a", app[for_aiohttp.LOCKS]):
        answer = await client.post(url, data=b"body", expect100=True)
        assert answer.status == 409


async def test_the_middleware_answers_the_mocked_request_of_a_unit_test() -> None:
    async def contended(request: web.Request) -> web.StreamResponse:
        raise NotAcquiredError("busy", name="a")

    answer = await for_aiohttp.problems()(make_mocked_request("GET", "/"), contended)
    assert answer.status == 409


async def test_a_name_of_no_text_is_our_mistake() -> None:
    """Also with aiohttp; test_names.py has more for FastAPI."""

    async def unreached(request: web.Request, lease: Lease) -> web.Response:
        raise AssertionError(lease)

    app = with_locks("aiohttp")
    app.router.add_get("/", for_aiohttp.locked(lambda _: 42)(unreached))  # type: ignore[arg-type, return-value]
    async with client_of(app) as (client, _):
        status, body = problem(await client.get("/"))
    assert (status, body["type"]) == (500, "urn:asynclock:misconfigured")
