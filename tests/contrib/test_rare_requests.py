"""Requests and streams at rare moments, without a server around them.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import json
import threading
from typing import Annotated, Any

import httpx
import pytest
from aiohttp.test_utils import make_mocked_request
from fastapi import FastAPI
from starlette.datastructures import State
from starlette.responses import PlainTextResponse

import asynclock
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib._middleware import AnswerErrors
from asynclock.contrib._problems import problem_of
from asynclock.contrib._source import Source
from asynclock.contrib.dashboard import app as page
from asynclock.contrib.dashboard.snapshots import Query
from asynclock.contrib.fastapi import Locked, lifespan, setup
from asynclock.errors import ConfigurationError, NotAcquiredError
from asynclock.fencing import StaleFenceError
from asynclock.testing import busy
from tests.waiting import until

Lease = Annotated[asynclock.Lease, Locked("a", retry_after=30.0)]


def test_a_manager_takes_neither_nodes_nor_settings() -> None:
    locks = asynclock.connect("memory://")
    Source((locks,), {})
    with pytest.raises(ConfigurationError, match="has its nodes already"):
        Source((locks, "memory://"), {})
    with pytest.raises(ConfigurationError, match=r"has its settings already: \['ttl'\]"):
        Source((locks,), {"ttl": 5.0})


def test_without_setup_a_request_has_no_locks() -> None:
    with pytest.raises(ConfigurationError, match=r"call asynclock\.contrib\.aiohttp\.setup"):
        for_aiohttp.locks_of(make_mocked_request("GET", "/"))


def test_a_stale_fence_is_a_failed_precondition() -> None:
    found = problem_of(StaleFenceError("stale", name="a"))
    assert (found.status, found.kind, found.retry_after) == (412, "stale-fence", None)


@pytest.mark.parametrize("begun", [False, True])
async def test_an_error_after_the_answer_has_begun_goes_to_the_server(begun: bool) -> None:
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def broken(_scope: Any, _receive: Any, answer: Any) -> None:
        if begun:
            await answer({"type": "http.response.start", "status": 200, "headers": []})
        raise NotAcquiredError("held", name="a")

    def handled(*_: Any) -> PlainTextResponse:
        # It may block, so it must not run where all requests do.
        assert threading.current_thread() is not threading.main_thread()
        return PlainTextResponse("held", 409)

    around = AnswerErrors(broken, State(), {NotAcquiredError: handled})
    call = around({"type": "http", "headers": []}, None, send)  # type: ignore[arg-type]  # unread
    if begun:
        with pytest.raises(NotAcquiredError):
            await call
    else:
        await call
    assert sent == ["http.response.start", "http.response.body"][: 1 if begun else 2]


async def test_an_error_after_a_websocket_was_closed_goes_to_the_server() -> None:
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def closes(_scope: Any, _receive: Any, answer: Any) -> None:
        await answer({"type": "websocket.accept"})
        await answer({"type": "websocket.close", "code": 1000})
        raise NotAcquiredError("held", name="a")

    def handled(*_: Any) -> PlainTextResponse:
        return PlainTextResponse("held", 409)

    around = AnswerErrors(closes, State(), {NotAcquiredError: handled})
    scope = {"type": "websocket", "headers": []}
    with pytest.raises(NotAcquiredError):
        await around(scope, None, send)  # type: ignore[arg-type]  # unread
    assert sent == ["websocket.accept", "websocket.close"]


@pytest.mark.parametrize(
    "more", [{}, {"extensions": {}}, {"extensions": {"websocket.http.response": {}}}]
)
async def test_a_socket_is_refused_as_its_server_can(more: dict[str, Any]) -> None:
    """With an answer like that of a request, or else with the code that closes the socket."""
    app = FastAPI()
    setup(app, "memory://")
    sent: list[Any] = []

    @app.websocket("/{one}")
    async def socket(lease: Annotated[asynclock.Lease, Locked("a", timeout=0.02)]) -> None:
        raise AssertionError("it is not free")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/1", "headers": [], "query_string": b""}
    async with app.router.lifespan_context(app), busy("a", app.state.asynclock):
        await app({**scope, **more}, receive, send)
    if more.get("extensions"):
        assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 409)
    else:
        (closed,) = sent
        assert (closed["type"], closed["code"]) == ("websocket.close", 4409)
        assert closed["reason"] == "contended"


async def test_a_client_that_goes_while_its_request_waits_for_a_lock_ends_it() -> None:
    app = FastAPI()
    setup(app, "memory://")
    asked = asyncio.Event()

    @app.get("/")
    async def root(lease: Annotated[asynclock.Lease, Locked("a", timeout=60)]) -> None:
        raise AssertionError("it is not free")

    async def receive() -> Any:
        await asked.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to get it")

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    async with app.router.lifespan_context(app), busy("a", app.state.asynclock):
        locks = app.state.asynclock
        request = asyncio.create_task(app(scope, receive, send))
        await until(lambda: locks.statistics().waiting)
        asked.set()
        await asyncio.wait_for(request, 20)
        assert not locks.statistics().waiting


async def test_without_setup_the_manager_of_a_lifespan_is_found() -> None:
    """By a server, or a client of a test, that does not pass the state of the lifespan on."""
    app = FastAPI(lifespan=lifespan("memory://"))

    @app.get("/")
    async def root(lease: Lease) -> str:
        return lease.name

    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/")).json() == "a"


@pytest.mark.parametrize(
    "error",
    [
        *(NotAcquiredError, asynclock.QuorumUnavailableError, asynclock.LeaseLostError),
        *(asynclock.AlreadyHeldError, StaleFenceError),
    ],
)
def test_a_client_learns_which_lock_it_was(error: type[asynclock.AsyncLockError]) -> None:
    found = problem_of(error("wrong", name="orders:42"))
    assert json.loads(found.body)["lock"] == "orders:42"
    assert found.headers["Cache-Control"] == "no-store"


async def test_an_error_of_a_lifespan_ends_the_start() -> None:
    async def fails(*_: Any) -> None:
        raise asynclock.QuorumUnavailableError("no nodes", name="a")

    around = AnswerErrors(fails, State(), {})
    with pytest.raises(asynclock.QuorumUnavailableError):
        await around({"type": "lifespan"}, None, None)  # type: ignore[arg-type]  # unread


def test_an_outage_is_logged_for_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    error = asynclock.QuorumUnavailableError("redis-7 does not answer", name="a")
    assert "redis-7" not in str(problem_of(error))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("asynclock.web", "WARNING")
    assert "redis-7 does not answer" in record.getMessage()


@pytest.mark.parametrize("error", [ConfigurationError, asynclock.AlreadyHeldError])
def test_a_fault_of_ours_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture, error: type[asynclock.AsyncLockError]
) -> None:
    try:
        raise error("wrong", name="a")
    except asynclock.AsyncLockError as raised:
        found = problem_of(raised)
    assert found.status == 500
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "test_a_fault_of_ours" in caplog.text


async def test_a_refusal_in_the_handler_says_itself_when_to_come_back() -> None:
    """The `retry_after` of the route is for its own lock."""
    app = FastAPI()
    setup(app, "memory://")

    @app.get("/")
    async def root(_: Lease) -> None:
        raise NotAcquiredError("held", name="other", remaining=7.0)

    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = [await client.get("/") for _ in range(2)]
    assert [one.status_code for one in answers] == [409, 409]
    assert [one.headers["retry-after"] for one in answers] == ["7", "7"]


async def test_a_mounted_application_keeps_its_own_answer_to_errors() -> None:
    outer, inner = FastAPI(), FastAPI()

    @inner.exception_handler(asynclock.AsyncLockError)
    async def teapot(*_: Any) -> Any:
        return PlainTextResponse("mine", 418)

    @inner.get("/")
    async def root() -> None:
        raise NotAcquiredError("held", name="a")

    setup(outer, "memory://")
    outer.mount("/inner", inner)
    transport = httpx.ASGITransport(outer)
    async with outer.router.lifespan_context(outer):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/inner/")).status_code == 418


async def test_odd_routes_are_left_alone() -> None:
    """A name as a function, a route outside the schema, an application of another kind."""
    app = FastAPI()
    setup(app, "memory://")

    @app.get("/named/{one}")
    async def named(lease: Annotated[asynclock.Lease, Locked(lambda request: "fixed")]) -> str:
        return lease.name

    @app.get("/hidden", include_in_schema=False)
    async def hidden(lease: Lease) -> str:
        return lease.name

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("plain")(scope, receive, send)

    app.mount("/plain", plain)
    schema = app.openapi()
    assert list(schema["paths"]) == ["/named/{one}"]
    assert "409" in schema["paths"]["/named/{one}"]["get"]["responses"]
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = [(await client.get(path)).text for path in ("/named/1", "/hidden", "/plain/")]
    assert answers == ['"fixed"', '"a"', "plain"]


async def test_a_stream_says_that_it_lives_while_it_works_and_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_work = asyncio.Event()

    class Slow:
        pace = 0.04

        async def take(self, query: Query, *, at_once: bool) -> Any:
            await at_work.wait()
            return {"search": query.search, "at_once": at_once}

    monkeypatch.setattr(page, "ALIVE", 0.02)
    monkeypatch.setattr(page, "STREAM", 0.15)
    view = page._View(asynclock.connect("memory://"), "token")
    view._snapshots = Slow()  # type: ignore[assignment]
    pieces = []
    async with asyncio.timeout(30):  # it ends by itself
        async for piece in view._stream(Query(search="a")):
            pieces.append(piece.decode())
            at_work.set()
    pictures = [one for one in pieces if one.startswith("event: picture\n")]
    shown = [json.loads(one.split("data: ")[1]) for one in pictures]
    assert shown[0] == {"search": "a", "at_once": True}
    assert not any(one["at_once"] for one in shown[1:])
    assert pieces[0] == ": at work\n\n"
    first = pieces.index(pictures[0])
    assert pieces[first + 1 : first + 3] == [": at rest\n\n"] * 2
