"""The header pair and its checkers, with real clients and real servers.

No `from __future__ import annotations` here: FastAPI would not find the dependency of an inner app.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from aiohttp import web
from fastapi import Depends, FastAPI, Request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from asynclock.contrib.fastapi import setup
from asynclock.errors import ConfigurationError
from asynclock.fencing import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    FencedRedis,
    FenceHeaderError,
    FenceStamp,
    FenceStore,
    MemoryFenceStore,
    check_fence,
    fence_headers,
    read_fence_headers,
)
from asynclock.fencing.aiohttp import fence_middleware
from asynclock.fencing.fastapi import require_fence
from tests.fencing import page
from tests.waiting import until

ON_ANY_MACHINE = settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)


def stamp(fence: int, name: str = "orders:42") -> FenceStamp:
    return FenceStamp(name, fence)


@ON_ANY_MACHINE
@given(NAMES, st.integers(1, 2**53 - 1))
def test_what_was_said_is_what_is_read(name: str, fence: int) -> None:
    headers = fence_headers(FenceStamp(name, fence))
    assert all(text.isascii() and text.isprintable() for text in headers.values())
    assert read_fence_headers(headers) == FenceStamp(name, fence)
    shouted = {header.upper(): f" {text}\t" for header, text in headers.items()}
    assert read_fence_headers(shouted) == FenceStamp(name, fence)


@ON_ANY_MACHINE
@given(st.text(max_size=30), st.text(max_size=30))
def test_whatever_is_sent_is_read_or_refused(name: str, fence: str) -> None:
    headers = {LOCK_NAME_HEADER: name, LOCK_FENCE_HEADER: fence}
    with contextlib.suppress(FenceHeaderError):
        assert read_fence_headers(headers).fence == int(fence)


@pytest.mark.parametrize(
    "fence", ["", "0", "-1", "+1", "1.0", "1e3", "0x1", "1_0", "٣", "007", "5, 6"]
)
def test_a_fence_that_is_no_number_is_refused(fence: str) -> None:
    with pytest.raises(FenceHeaderError, match=LOCK_FENCE_HEADER) as caught:
        read_fence_headers({LOCK_NAME_HEADER: "a", LOCK_FENCE_HEADER: fence})
    assert (caught.value.header, caught.value.missing) == (LOCK_FENCE_HEADER, False)


@pytest.mark.parametrize("digits", [str(2**53), "9" * 16, "1" + "0" * 15_000], ids=len)
def test_a_fence_that_is_too_large_is_refused(digits: str) -> None:
    with pytest.raises(FenceHeaderError, match="number between") as caught:
        read_fence_headers({LOCK_NAME_HEADER: "a", LOCK_FENCE_HEADER: digits})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "name", ["", "a b", "a,b", "ü", "%", "%zz", "%ff", "%ed%a0%80", "a" * 2049]
)
def test_a_name_that_is_not_encoded_is_refused(name: str) -> None:
    with pytest.raises(FenceHeaderError, match="percent-encoded") as caught:
        read_fence_headers({LOCK_NAME_HEADER: name, LOCK_FENCE_HEADER: "1"})
    assert caught.value.header == LOCK_NAME_HEADER


@pytest.mark.parametrize("header", [LOCK_NAME_HEADER, LOCK_FENCE_HEADER])
def test_each_header_comes_exactly_once(header: str) -> None:
    pairs = list(fence_headers(stamp(1)).items())
    with pytest.raises(FenceHeaderError, match=f"no {header}") as caught:
        read_fence_headers([pair for pair in pairs if pair[0] != header])
    assert caught.value.missing
    with pytest.raises(FenceHeaderError, match=f"2 {header} headers"):
        read_fence_headers([*pairs, (header.lower(), dict(pairs)[header])])


async def test_the_fence_of_another_lock_opens_nothing() -> None:
    store = MemoryFenceStore()
    with pytest.raises(FenceHeaderError, match="guarded by 'orders:43'"):
        await check_fence(fence_headers(stamp(9)), store, "orders:43")
    await store.claim(stamp(1))  # and it was not remembered


# ---- both frameworks ---------------------------------------------------------------------------


def fastapi_app(store: FenceStore) -> FastAPI:
    app = FastAPI()
    current = Depends(require_fence(store, "orders:{order_id}"))

    @app.put("/orders/{order_id}")
    async def put(order_id: str, stamp: Annotated[FenceStamp, current]) -> dict[str, int]:
        return {"fence": stamp.fence}

    @app.get("/orders/{order_id}")
    async def get(order_id: str) -> dict[str, str]:
        return {"order": order_id}

    return app


def aiohttp_app(store: FenceStore) -> web.Application:
    async def put(request: web.Request) -> web.Response:
        return web.json_response({"fence": read_fence_headers(request.headers).fence})

    async def get(request: web.Request) -> web.Response:
        return web.json_response({"order": request.match_info["order_id"]})

    app = web.Application(middlewares=[fence_middleware(store, "orders:{order_id}")])
    app.router.add_put("/orders/{order_id}", put)
    app.router.add_get("/orders/{order_id}", get)
    return app


@contextlib.asynccontextmanager
async def serving(app: FastAPI | web.Application) -> AsyncIterator[str]:
    """The base address of a real server on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if isinstance(app, web.Application):
            runner = web.AppRunner(app)
            await runner.setup()
            await web.SockSite(runner, listener).start()
            yield address
            await runner.cleanup()
            return
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        task = asyncio.create_task(server.serve([listener]))
        await until(lambda: server.started, "the server listens")
        yield address
        server.should_exit = True
        await task


@pytest.fixture(params=["memory", "redis"])
async def store(request, asynclock_servers) -> AsyncIterator[FenceStore]:
    if request.param == "memory":
        yield MemoryFenceStore()
        return
    (server,) = await asynclock_servers(1)
    async with Redis.from_url(server.url, socket_timeout=40) as client:
        yield FencedRedis(client)


Send = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture(params=[fastapi_app, aiohttp_app], ids=["fastapi", "aiohttp"])
async def send(request, store: FenceStore) -> AsyncIterator[Send]:
    async with (
        serving(request.param(store)) as url,
        httpx.AsyncClient(base_url=url, timeout=40) as http,
    ):

        async def send(
            headers: dict[str, str] | Sequence[tuple[str, str]] = (),
            path: str = "/orders/42",
            method: str = "PUT",
        ) -> httpx.Response:
            return await http.request(method, path, headers=httpx.Headers(headers))

        yield send


def reason(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    return body["detail"] if isinstance(body["detail"], dict) else body


async def test_a_stale_request_is_refused_by_a_real_server(send: Send) -> None:
    assert (await send(fence_headers(stamp(7)))).json() == {"fence": 7}
    assert (await send(fence_headers(stamp(7)))).status_code == 200
    assert (await send(fence_headers(stamp(2**53 - 1)))).json() == {"fence": 2**53 - 1}
    refused = await send(fence_headers(stamp(8)))
    assert refused.status_code == 412
    told = reason(refused)
    assert (told["type"], told["status"]) == ("urn:asynclock:stale-fence", 412)
    assert (told["lock"], told["fence"], told["highest"]) == ("orders:42", 8, 2**53 - 1)
    other = await send(fence_headers(stamp(8, "orders:43")), "/orders/43")
    assert other.status_code == 200


async def test_a_request_without_usable_headers_is_refused(send: Send) -> None:
    headers = fence_headers(stamp(7))
    missing = await send({LOCK_NAME_HEADER: headers[LOCK_NAME_HEADER]})
    assert (missing.status_code, reason(missing)["header"]) == (428, LOCK_FENCE_HEADER)
    twice = await send([*headers.items(), (LOCK_FENCE_HEADER, "9")])
    assert (twice.status_code, reason(twice)["type"]) == (400, "urn:asynclock:bad-fence-header")
    nonsense = await send({**headers, LOCK_FENCE_HEADER: "seven"})
    assert (nonsense.status_code, reason(nonsense)["header"]) == (400, LOCK_FENCE_HEADER)
    foreign = await send(fence_headers(stamp(7, "orders:1")))
    assert (foreign.status_code, reason(foreign)["header"]) == (400, LOCK_NAME_HEADER)
    assert (await send(fence_headers(stamp(1)))).status_code == 200  # none of it was remembered


async def test_it_answers_with_a_problem_as_all_errors_of_locks_do() -> None:
    api, service = fastapi_app(MemoryFenceStore()), aiohttp_app(MemoryFenceStore())
    setup(api, "memory://a")
    for app in (api, service):
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
            missing = await http.put("/orders/42")
            assert missing.headers["content-type"].startswith("application/problem+json")
            assert missing.json() == {
                "type": "urn:asynclock:bad-fence-header",
                "title": "The request has no usable fence",
                "status": 428,
                "header": LOCK_NAME_HEADER,
                "detail": f"no {LOCK_NAME_HEADER} header",
            }


async def test_reading_and_missing_pages_need_no_lock(send: Send) -> None:
    assert (await send(method="GET")).json() == {"order": "42"}
    assert (await send(path="/nowhere")).status_code == 404


async def test_names_of_any_language_pass(send: Send) -> None:
    path, name = "/orders/gr%C3%BC%C3%9Fe,%20%25", "orders:grüße, %"
    assert (await send(fence_headers(stamp(1, name)), path)).status_code == 200


async def test_the_name_may_be_a_function_of_the_request() -> None:
    store = MemoryFenceStore()

    def by_host(request: web.Request) -> str | None:
        return None if request.path == "/free" else f"host:{request.url.host}"

    async def answer(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[fence_middleware(store, by_host)])
    app.router.add_post("/free", answer)
    app.router.add_post("/guarded", answer)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
        assert (await http.post("/free")).status_code == 200
        assert (await http.post("/guarded")).status_code == 428
        fine = await http.post("/guarded", headers=fence_headers(stamp(1, "host:127.0.0.1")))
        assert fine.status_code == 200

    def tenant(request: Request) -> str:
        return "tenant:" + request.headers["x-tenant"]

    api = FastAPI()
    api.post("/guarded", dependencies=[Depends(require_fence(store, tenant))])(lambda: None)
    async with serving(api) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
        headers = {**fence_headers(stamp(1, "tenant:9")), "x-tenant": "9"}
        assert (await http.post("/guarded", headers=headers)).status_code == 200
        assert (
            await http.post("/guarded", headers={**headers, "x-tenant": "8"})
        ).status_code == 400


async def test_a_template_that_does_not_fit_the_route_is_a_clear_error() -> None:
    dependency = require_fence(MemoryFenceStore(), "orders:{order}")
    request = Request({"type": "http", "headers": [], "path_params": {"order_id": "42"}})
    with pytest.raises(ConfigurationError, match=r"needs 'order'.*\('order_id'\)"):
        await dependency(request)


async def test_the_client_shown_gets_through_to_both_frameworks() -> None:
    """The three blocks of docs/fencing.md, together."""
    test = "tests/fencing/test_http.py::test_the_client_shown_gets_through_to_both_frameworks"
    found = page.blocks_shown_by(test)
    client, *servers = found
    for block, name in zip(servers, ("app", "application"), strict=True):
        namespace: dict[str, Any] = {"store": MemoryFenceStore(), "__name__": "page"}
        await page.run_block(block, namespace)
        async with serving(namespace[name]) as url, httpx.AsyncClient(timeout=40) as http:
            for lease, status in ((stamp(2), 200), (stamp(1), 412)):
                said: dict[str, Any] = {"http": http, "url": f"{url}/orders/42", "lease": lease}
                await page.run_block(client, said)
                assert said["response"].status_code == status
