"""One answer for each Idempotency-Key, in both frameworks.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib import fastapi as for_fastapi
from asynclock.errors import ConfigurationError
from tests.contrib.conftest import Start
from tests.waiting import until

PAY, SHIP, NEST = "/pay", "/ship", "/nest"


def seen(status: bytes, stock: Lease, lease: Lease | None) -> tuple[str, int]:
    """Return what an endpoint tells of its two leases, with the status that the client wants."""
    assert stock.name == "stock"
    assert stock.held
    assert lease is None or (lease.held and lease.task is asyncio.current_task())
    return str(lease and lease.fence), int(status or 200)


def whose(request: Any) -> Any:
    user = request.headers.get("user", "")
    return None if user == "nobody" else user


def by_fastapi(witness: Any, *nodes: Any, **settings: Any) -> FastAPI:
    app = FastAPI()
    for_fastapi.setup(app, *nodes, **settings)
    route = for_fastapi.idempotent(scope=whose)
    router = APIRouter(route_class=route)

    @router.api_route(SHIP, methods=["GET", "POST"])
    async def ship(
        request: Request,
        stock: Annotated[Lease, for_fastapi.Locked("stock")],
        lease: Annotated[Lease | None, Depends(for_fastapi.key_lease)],
    ) -> Response:
        status = await request.body()
        await witness.work("ship", wait=status == b"202")
        return Response(*seen(status, stock, lease))

    @router.post(NEST)
    async def nest(lease: Annotated[Lease | None, Depends(for_fastapi.key_lease)]) -> Any:
        if lease is None:
            return "no key"
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            inner = await client.post(NEST)
        return inner.json(), for_fastapi.key_lease() is lease

    @router.api_route(PAY, methods=["GET", "POST"])
    async def pay(request: Request) -> Response:
        text = (await request.body()).decode()
        await witness.work(text, wait=text == "wait")
        match text:
            case "fail":
                raise HTTPException(402)
            case "503":
                return Response("503", 503)
            case "stream":
                return StreamingResponse(iter("s"))
            case "empty":
                return Response(status_code=202)
            case "large":
                return Response("a" * 65_536, 201)
        return Response(f"{text} {len(witness.entered)}", 201, media_type="text/x-paid")

    app.include_router(router)
    return app


def by_aiohttp(witness: Any, *nodes: Any, **settings: Any) -> web.Application:
    app = web.Application()
    for_aiohttp.setup(app, *nodes, **settings)

    @for_aiohttp.idempotent()
    @for_aiohttp.locked("stock")
    async def ship(request: web.Request, stock: Lease) -> web.StreamResponse:
        wanted = await request.read()
        await witness.work("ship", wait=wanted == b"202")
        text, status = seen(wanted, stock, for_aiohttp.key_lease())
        return web.Response(text=text, status=status)

    @for_aiohttp.idempotent(scope=whose)
    async def pay(request: web.Request) -> web.StreamResponse:
        text = await request.text()
        await witness.work(text, wait=text == "wait")
        match text:
            case "fail":
                raise web.HTTPPaymentRequired
            case "503":
                return web.Response(text="503", status=503)
            case "stream":
                stream = web.StreamResponse()
                await stream.prepare(request)
                await stream.write(b"s")
                return stream
            case "empty":
                return web.Response(status=202)
            case "large":
                return web.Response(text="a" * 65_536, status=201)
        paid = f"{text} {len(witness.entered)}"
        return web.Response(text=paid, status=201, content_type="text/x-paid")

    app.router.add_route("*", PAY, pay)
    app.router.add_route("*", SHIP, ship)
    return app


MAKERS = {"fastapi": by_fastapi, "aiohttp": by_aiohttp}


async def test_the_first_answer_is_repeated(start: Start, framework: str) -> None:
    async with start(MAKERS[framework]) as service:

        async def ask(text: str, key: str | None = "k", path: str = PAY, **more: str) -> Any:
            headers = more if key is None else {"Idempotency-Key": key, **more}
            return await service.client.post(path, content=text, headers=headers)

        first, again = [await ask("a") for _ in range(2)]
        for one in (first, again):
            assert (one.status_code, one.text) == (201, "a 1")
            assert one.headers["content-type"].startswith("text/x-paid")
        for other in (ask("b"), ask("a", path=f"{PAY}?really")):
            refused = await other
            assert (refused.status_code, refused.json()["type"]) == (
                422,
                "urn:asynclock:reused-key",
            )
        # Another key, another user, no key, and a request that changes nothing.
        assert (await ask("a", "l")).text == "a 2"
        assert (await ask("a", user="bob")).text == "a 3"
        assert [(await ask("a", None)).text for _ in range(2)] == ["a 4", "a 5"]
        key = {"Idempotency-Key": "k"}
        empty = await ask("a", "")
        assert (empty.status_code, empty.json()["type"]) == (400, "urn:asynclock:unusable-key")
        assert [(await service.client.get(PAY, headers=key)).text for _ in range(2)] == [" 6", " 7"]
        nobody = await ask("a", user="nobody")  # strangers must not share a scope by mistake
        assert (nobody.status_code, nobody.json()["type"]) == (500, "urn:asynclock:misconfigured")
        for one in [await ask("empty", "e") for _ in range(2)]:
            assert (one.status_code, one.content) == (202, b"")


async def test_a_handler_gets_the_lease_of_the_key(start: Start, framework: str) -> None:
    async with start(MAKERS[framework]) as service:
        key = {"Idempotency-Key": "k"}
        failed, first, again = [
            await service.client.post(SHIP, content=status, headers=key)
            for status in (b"503", b"201", b"201")
        ]
        assert [one.status_code for one in (failed, first, again)] == [503, 201, 201]
        assert 0 < int(failed.text) < int(first.text) == int(again.text)
        assert (await service.client.post(SHIP)).text == "None"
        assert (await service.client.get(SHIP, headers=key)).text == "None"
        if framework == "fastapi":  # a client in the task that serves the request
            transport = httpx.ASGITransport(service.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                assert int((await client.post(SHIP, headers=key | {"user": "bob"})).text) > 0
            assert for_fastapi.key_lease() is None
            nested = await service.client.post(NEST, headers=key | {"user": "eve"})
            assert nested.json() == ["no key", True]


async def test_a_client_that_went_away_gets_the_answer_later(start: Start, framework: str) -> None:
    """The endpoint has a lock, which ends other requests whose client goes away."""
    async with start(MAKERS[framework]) as service:
        key = {"Idempotency-Key": "k"}
        with pytest.raises(httpx.ReadTimeout):
            await service.client.post(SHIP, content=b"202", headers=key, timeout=0.5)
        await asyncio.sleep(0.2)
        service.witness.go_on.set()
        await until(lambda: service.witness.left)
        await until(service.free)
        later = await service.client.post(SHIP, content=b"202", headers=key)
        assert (later.status_code, service.witness.left) == (202, ["done"])


async def test_while_the_first_is_answered_others_come_back(start: Start, framework: str) -> None:
    async with start(MAKERS[framework]) as service:
        asked = {"content": "wait", "headers": {"Idempotency-Key": "k"}}
        first = asyncio.create_task(service.client.post(PAY, **asked))
        while not service.witness.entered:
            await asyncio.sleep(0.01)
        busy = await service.client.post(PAY, **asked)
        assert (busy.status_code, busy.json()["type"]) == (409, "urn:asynclock:in-progress")
        assert "idempotency:" not in busy.text
        assert int(busy.headers["Retry-After"]) > 0
        service.witness.go_on.set()
        assert (await first).text == (await service.client.post(PAY, **asked)).text == "wait 1"


@pytest.mark.parametrize(("text", "status"), [("fail", 402), ("503", 503)])
async def test_what_fails_is_tried_again(
    start: Start, framework: str, text: str, status: int
) -> None:
    async with start(MAKERS[framework]) as service:
        for _ in range(2):
            asked = {"content": text, "headers": {"Idempotency-Key": "k"}}
            assert (await service.client.post(PAY, **asked)).status_code == status
        assert service.witness.entered == [text] * 2
        assert await service.free()


@pytest.mark.parametrize(("text", "sent"), [("stream", (200, 1)), ("large", (201, 65_536))])
async def test_an_answer_that_cannot_be_kept_is_sent_and_never_made_again(
    start: Start, framework: str, text: str, sent: tuple[int, int]
) -> None:
    async with start(MAKERS[framework]) as service:
        key = {"Idempotency-Key": "k"}
        first = await service.client.post(PAY, content=text, headers=key)
        assert (first.status_code, len(first.content)) == sent
        for other, status, kind in ((text, 410, "unkept-answer"), ("b", 422, "reused-key")):
            again = await service.client.post(PAY, content=other, headers=key)
            assert (again.status_code, again.json()["type"]) == (status, f"urn:asynclock:{kind}")
            assert again.headers["Cache-Control"] == "no-store"
        assert service.witness.entered == [text]


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
def test_openapi_shows_what_a_client_may_send_and_get() -> None:
    app = by_fastapi(None, "memory://")
    for _ in range(2):
        paths = app.openapi()["paths"][PAY]
    assert {method: set(one["responses"]) for method, one in paths.items()} == {
        "get": {"200"},
        "post": {"200", "400", "409", "410", "422", "503"},
    }
    (header,) = paths["post"]["parameters"]
    assert (header["name"], header["in"]) == ("Idempotency-Key", "header")
    assert "in-progress" in paths["post"]["responses"]["409"]["description"]
    assert "parameters" not in paths["get"]
    ship = app.openapi()["paths"][SHIP]  # the lock is told of, too, but not the dependencies
    assert {method: [*one.get("parameters", [])] for method, one in ship.items()} == {
        "get": [],
        "post": [header],
    }
    assert {"get": {"200", "409", "503"}, "post": {*paths["post"]["responses"]}} == {
        method: set(one["responses"]) for method, one in ship.items()
    }


async def owner(_request: object) -> str:
    return "ann"


@pytest.mark.parametrize(
    "setting",
    [{"keep": -1}, {"keep": "1"}, {"scope": "user"}, {"scope": owner}, {"retry_after": 1}],
)
def test_a_wrong_setting_is_found_where_it_is_written(setting: Any) -> None:
    for module in (for_fastapi, for_aiohttp):
        with pytest.raises((ConfigurationError, TypeError), match=next(iter(setting))):
            module.idempotent(**setting)
