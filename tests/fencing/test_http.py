"""Both frameworks check the fence of a request against the lock of its route.

No `from __future__ import annotations` here: FastAPI would not find the dependency of an inner app.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import Depends, FastAPI, Path, Request

from asynclock.contrib.fastapi import setup
from asynclock.errors import ConfigurationError
from asynclock.fencing import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    FenceHeaderError,
    FenceStamp,
    MemoryFenceStore,
    fence_headers,
    read_fence_headers,
    refusal,
)
from asynclock.fencing.aiohttp import fence_middleware
from asynclock.fencing.fastapi import FenceRefused, require_fence
from tests.contrib.apps import serving
from tests.fencing import page

NAME = "orders:{order_id}"
TOP = 2**53 - 1


def fastapi_app(name: Any = NAME, path: str = "/orders/{order_id}") -> FastAPI:
    app = FastAPI()
    current = Depends(require_fence(MemoryFenceStore(), name))

    @app.put(path)
    async def put(stamp: Annotated[FenceStamp, current]) -> dict[str, int]:
        return {"fence": stamp.fence}

    @app.get(path)
    async def get(order_id: str) -> dict[str, str]:
        return {"order": order_id}

    return app


def aiohttp_app(name: Any = NAME, path: str = "/orders/{order_id}") -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        if request.method != "PUT":
            return web.json_response({"order": request.match_info.get("order_id")})
        return web.json_response({"fence": read_fence_headers(request.headers).fence})

    app = web.Application(middlewares=[fence_middleware(MemoryFenceStore(), name)])
    app.router.add_route("*", path, answer)
    return app


BOTH = pytest.mark.parametrize("make", [fastapi_app, aiohttp_app])
Headers = dict[str, str] | Sequence[tuple[str, str]]


def stamped(fence: int, name: str = "orders:42") -> dict[str, str]:
    return fence_headers(FenceStamp(name, fence))


BAD = "urn:asynclock:bad-fence-header"
REQUESTS: dict[str, tuple[str, list[tuple[Headers, int, Any]]]] = {
    "a stale holder": (
        "/orders/42",
        [
            (stamped(7), 200, {"fence": 7}),
            (stamped(7), 200, {"fence": 7}),
            (stamped(TOP), 200, {"fence": TOP}),
            (
                stamped(8),
                412,
                {
                    "type": "urn:asynclock:stale-fence",
                    "title": "A newer holder was here first",
                    "status": 412,
                    "lock": "orders:42",
                    "fence": 8,
                    "highest": TOP,
                    "detail": f"fence 8 of 'orders:42' is stale: {TOP} was seen before",
                },
            ),
        ],
    ),
    "headers of no use": (
        "/orders/42",
        [
            ({LOCK_NAME_HEADER: "orders:42"}, 428, {"type": BAD, "header": LOCK_FENCE_HEADER}),
            ([*stamped(7).items(), (LOCK_FENCE_HEADER, "9")], 400, {"type": BAD}),
            ({**stamped(7), LOCK_FENCE_HEADER: "seven"}, 400, {"header": LOCK_FENCE_HEADER}),
            (stamped(7, "orders:1"), 400, {"header": LOCK_NAME_HEADER}),
            (stamped(1), 200, {"fence": 1}),  # none of it was remembered
        ],
    ),
    "a name of any language": (
        "/orders/gr%C3%BC%C3%9Fe,%20%25",
        [(stamped(1, "orders:grüße, %"), 200, {"fence": 1})],
    ),
    "no page": ("/nowhere", [({}, 404, {})]),
}


@BOTH
@pytest.mark.parametrize("case", REQUESTS)
async def test_requests_are_let_through_or_refused_by_a_real_server(make: Any, case: str) -> None:
    path, requests = REQUESTS[case]
    async with serving(make()) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
        for headers, status, wanted in requests:
            answer = await http.put(path, headers=httpx.Headers(headers))
            assert answer.status_code == status
            if not wanted:
                continue
            body = answer.json()
            told = body["detail"] if isinstance(body.get("detail"), dict) else body
            found = told if wanted.keys() > {"status"} else {key: told[key] for key in wanted}
            assert found == wanted


async def test_it_answers_with_a_problem_as_all_errors_of_locks_do() -> None:
    api, service = fastapi_app(), aiohttp_app()
    setup(api, "memory://a")
    for app in (api, service):
        async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
            missing = await http.put("/orders/42")
        assert missing.headers["content-type"].startswith("application/problem+json")
        assert missing.json() == {
            "type": BAD,
            "title": "The request has no usable fence",
            "status": 428,
            "header": LOCK_NAME_HEADER,
            "detail": f"no {LOCK_NAME_HEADER} header",
        }


async def test_only_what_changes_something_needs_a_fence_in_aiohttp() -> None:
    """A route of FastAPI says itself that it wants one."""
    methods = ("GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE")
    async with serving(aiohttp_app()) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
        answers = [(await http.request(one, "/orders/42")).status_code for one in methods]
    assert answers == [200] * 4 + [428] * 4
    async with serving(fastapi_app()) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
        assert (await http.get("/orders/42")).json() == {"order": "42"}


def by_header(request: Any) -> str | None:
    """Make a name that a client may write, braces and all; a template it is not."""
    given = request.headers.get("x-file")
    return None if given is None else f"files:{given}"


@BOTH
async def test_the_name_may_be_a_function_of_the_request(make: Any) -> None:
    """With aiohttp also of none: the request needs no fence then."""
    app = make(by_header, "/{a}")
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=40) as http:
        headers = {**stamped(1, "files:{a}"), "x-file": "{a}"}
        assert (await http.put("/1", headers=headers)).status_code == 200
        assert (await http.put("/1", headers={**headers, "x-file": "b"})).status_code == 400
        assert (await http.put("/1", headers={"x-file": "b"})).status_code == 428
        if make is aiohttp_app:
            assert (await http.delete("/1")).status_code == 200


# ---- what names the lock in FastAPI --------------------------------------------------------------
class Size(Enum):
    """A variable of a route that has a few values."""

    SMALL = "s"


def order(order_id: int) -> int:
    return order_id


def written(order_id: str) -> str:
    return order_id


Text = Annotated[str, Depends(written)]
Number = Annotated[int, Depends(order)]
GUARD = require_fence(MemoryFenceStore(), NAME)
Guarded = Annotated[FenceStamp, Depends(GUARD)]


async def by_its_type(order_id: int, text: Text, stamp: Guarded) -> list[Any]:
    """A dependency may read the same variable as something else."""
    return [order_id, text, stamp.name]


async def by_its_value(order_id: Size, stamp: Guarded) -> list[Any]:
    return [order_id.value, stamp.name]


async def by_a_dependency(number: Number, stamp: Guarded) -> list[Any]:
    return [number, stamp.name]


@pytest.mark.parametrize(
    ("endpoint", "path", "name", "shown"),
    [
        (by_its_type, "042", "orders:42", [42, "042"]),
        (by_its_value, "s", "orders:s", ["s"]),
        (by_a_dependency, "042", "orders:42", [42]),
    ],
)
async def test_a_lock_is_named_after_the_value_of_a_variable(
    endpoint: Any, path: str, name: str, shown: list[Any]
) -> None:
    app = FastAPI()
    app.put("/{order_id}")(endpoint)
    async with ask(app) as client:
        answer = await client.put(f"/{path}", headers=stamped(2**52, name))
    assert answer.json() == [*shown, name]


def ask(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_a_value_that_the_route_refuses_names_the_lock_as_it_was_written() -> None:
    """Refused values of all requests must not be one lock: they would refuse each other."""
    app, guard = FastAPI(), Depends(require_fence(MemoryFenceStore(), NAME))

    @app.put("/{order_id}")
    async def put(
        order_id: Annotated[int, Path(le=9)], stamp: Annotated[FenceStamp, guard]
    ) -> None: ...

    async with ask(app) as client:
        for fence, path in ((9, "abc"), (1, "10")):
            answer = await client.put(f"/{path}", headers=stamped(fence, f"orders:{path}"))
            assert answer.status_code == 422


def test_what_names_the_lock_is_checked_when_the_guard_is_made() -> None:
    async def late(_: object) -> str:
        return "a"

    for make in (fastapi_app, aiohttp_app):
        with pytest.raises(ConfigurationError, match="not async"):
            make(late)


async def test_a_refusal_in_fastapi_has_the_answer_and_the_error_behind_it() -> None:
    """A handler of the application may log the one and send the other."""
    headers = [(b"x-lock-name", b"orders%3A42"), (b"x-lock-fence", b"0")]
    scope = {"type": "http", "headers": headers, "path_params": {"order_id": "42"}}
    with pytest.raises(FenceRefused) as caught:
        await GUARD(Request(scope))
    cause = caught.value.__cause__
    assert isinstance(cause, FenceHeaderError)
    assert [caught.value.status_code, caught.value.detail] == [*refusal(cause)]
    assert refusal(cause)[0] == 400
    with pytest.raises(ConfigurationError, match=r"needs 'order_id'.*\('order'\)"):
        await GUARD(Request({**scope, "path_params": {"order": "42"}}))


async def test_the_client_shown_gets_through_to_both_frameworks() -> None:
    """The three blocks of docs/fencing.md, together."""
    test = "tests/fencing/test_http.py::test_the_client_shown_gets_through_to_both_frameworks"
    found = page.blocks_shown_by(test)
    client, *servers = found
    for block, name in zip(servers, ("app", "application"), strict=True):
        namespace: dict[str, Any] = {"store": MemoryFenceStore(), "__name__": "page"}
        await page.run_block(block, namespace)
        async with serving(namespace[name]) as url, httpx.AsyncClient(timeout=40) as http:
            for fence, status in ((2, 200), (1, 412)):
                lease = FenceStamp("orders:42", fence)
                said: dict[str, Any] = {"http": http, "url": f"{url}/orders/42", "lease": lease}
                await page.run_block(client, said)
                assert said["response"].status_code == status
