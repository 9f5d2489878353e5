"""What a refused sender is told, and what a request may look like: without a server.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

from enum import Enum
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI, Path, Request

from asynclock.errors import ConfigurationError
from asynclock.fencing import (
    LOCK_FENCE_HEADER,
    LOCK_NAME_HEADER,
    LOCK_PART_HEADER,
    FenceHeaderError,
    FenceStamp,
    MemoryFenceStore,
    StaleFenceError,
    check_fence,
    fence_headers,
    read_fence_headers,
)
from asynclock.fencing._naming import check_template, fields_of, fill_in
from asynclock.fencing._path_values import path_values
from asynclock.fencing.aiohttp import fence_middleware
from asynclock.fencing.fastapi import FenceRefused, require_fence
from asynclock.fencing.headers import refusal


def raw(name: str = "a", fence: str = "1", **more: str) -> dict[str, str]:
    return {LOCK_NAME_HEADER: name, LOCK_FENCE_HEADER: fence, **more}


@pytest.mark.parametrize("stamp", [FenceStamp("a", 5), FenceStamp("a", 5, "read")])
async def test_a_refusal_says_why_and_what_to_look_at(stamp: FenceStamp) -> None:
    store = MemoryFenceStore()
    newer = FenceStamp("a", 9, "write" if stamp.part else "")
    await store.claim(newer)
    with pytest.raises(StaleFenceError) as stale:
        await check_fence(fence_headers(stamp), store, "a")
    status, body = refusal(stale.value)
    assert (status, body["fence"], body["highest"]) == (412, 5, 9)
    assert body["detail"] == str(stale.value)
    assert "fence 5 of 'a'" in str(body["detail"])
    assert ("(read)" in str(body["detail"])) is bool(stamp.part)


async def test_the_name_in_a_refusal_is_that_of_the_lock_and_not_of_the_sender() -> None:
    with pytest.raises(FenceHeaderError) as error:
        await check_fence(raw("stranger"), MemoryFenceStore(), "orders:42")
    assert error.value.name == "orders:42"
    status, body = refusal(error.value)
    assert (status, body["lock"], body["header"]) == (400, "orders:42", LOCK_NAME_HEADER)
    assert "stranger" in str(body["detail"])


@pytest.mark.parametrize("header", [LOCK_NAME_HEADER, LOCK_FENCE_HEADER, LOCK_PART_HEADER])
def test_a_refusal_repeats_only_the_beginning_of_what_was_sent(header: str) -> None:
    with pytest.raises(FenceHeaderError) as error:
        read_fence_headers({**raw(), header: "," * 10_000})
    assert len(str(error.value)) < 300
    assert error.value.header == header


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    headers = {
        key: f" \t{text}\t " for key, text in raw("a", "7", **{LOCK_PART_HEADER: "3"}).items()
    }
    assert read_fence_headers(headers) == FenceStamp("a", 7, "3")


@pytest.mark.parametrize("part", ["read", "write", "255", "a" * 16])
def test_each_part_that_a_lease_can_have_is_read(part: str) -> None:
    stamp = FenceStamp("a", 7, part)
    assert read_fence_headers(fence_headers(stamp)) == stamp


def test_long_names_are_read() -> None:
    stamp = FenceStamp("orders:" + "é" * 300, 7)
    assert read_fence_headers(fence_headers(stamp)) == stamp


def test_the_headers_are_those_that_other_programs_send() -> None:
    """In any language, as docs/fencing.md says."""
    headers = {"X-Lock-Name": "jobs%3F", "X-Lock-Fence": "7", "X-Lock-Part": "3"}
    assert fence_headers(FenceStamp("jobs?", 7, "3")) == headers
    assert read_fence_headers(headers) == FenceStamp("jobs?", 7, "3")


def test_names_stay_readable_in_a_log() -> None:
    name = "shop/orders:42@eu-1_a.b"
    assert fence_headers(FenceStamp(name, 7))[LOCK_NAME_HEADER] == name


async def test_one_store_remembers_many_names() -> None:
    """As many as a service has at work: a name that is forgotten lets a stale holder in."""
    store = MemoryFenceStore()
    for number in range(1000):
        await store.claim(FenceStamp(str(number), 9))
    for number in range(1000):
        with pytest.raises(StaleFenceError):
            await store.claim(FenceStamp(str(number), 8))


async def test_a_store_keeps_as_many_names_as_it_says() -> None:
    store = MemoryFenceStore(max_names=3)
    for name in "abc":
        await store.claim(FenceStamp(name, 9))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("a", 8))
    await store.claim(FenceStamp("d", 9))
    await store.claim(FenceStamp("a", 8))  # forgotten: one of four is too many


# ---- routes --------------------------------------------------------------------------------------


def test_a_template_may_take_a_part_of_a_variable() -> None:
    template = "orders:{order[id]}"
    check_template(template, {"order"}, "route /")
    assert fill_in(template, {"order": {"id": 7}}) == "orders:7"


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE"]
)
async def test_only_what_changes_something_needs_a_fence_in_aiohttp(method: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[fence_middleware(MemoryFenceStore(), "a:{one}")])
    app.router.add_route("*", "/{one}", answer)
    async with TestClient(TestServer(app)) as client:
        status = (await client.request(method, "/1")).status
    assert status == (200 if method in ("GET", "HEAD", "OPTIONS", "TRACE") else 428)


async def ask(app: FastAPI, path: str, stamp: FenceStamp) -> Any:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.put(path, headers=fence_headers(stamp))


async def test_the_type_of_the_route_itself_names_the_lock() -> None:
    """A dependency may read the same variable as something else."""

    def written(order_id: str) -> str:
        return order_id

    app, guard = FastAPI(), Depends(require_fence(MemoryFenceStore(), "orders:{order_id}"))

    @app.put("/{order_id}")
    async def put(
        order_id: int, text: Annotated[str, Depends(written)], stamp: Annotated[FenceStamp, guard]
    ) -> list[Any]:
        return [order_id, text, stamp.name]

    answer = await ask(app, "/042", FenceStamp("orders:42", 1))
    assert answer.json() == [42, "042", "orders:42"]


async def test_a_value_that_the_route_refuses_names_the_lock_as_it_was_written() -> None:
    """Refused values of all requests must not be one lock: they would refuse each other."""
    app, guard = FastAPI(), Depends(require_fence(MemoryFenceStore(), "orders:{order_id}"))

    @app.put("/{order_id}")
    async def put(
        order_id: Annotated[int, Path(le=9)], stamp: Annotated[FenceStamp, guard]
    ) -> None: ...

    for fence, path in ((9, "abc"), (1, "10")):
        assert (await ask(app, f"/{path}", FenceStamp(f"orders:{path}", fence))).status_code == 422


class Size(Enum):
    """A variable of a route that has a few values."""

    SMALL = "s"


async def test_a_value_of_an_enum_names_the_lock_by_what_a_client_writes() -> None:
    app, guard = FastAPI(), Depends(require_fence(MemoryFenceStore(), "sizes:{size}"))

    @app.put("/{size}")
    async def put(size: Size, stamp: Annotated[FenceStamp, guard]) -> list[str]:
        return [size.value, stamp.name]

    assert (await ask(app, "/s", FenceStamp("sizes:s", 1))).json() == ["s", "sizes:s"]


async def test_a_variable_that_only_a_dependency_reads_names_the_lock_by_its_value() -> None:
    def order(order_id: int) -> int:
        return order_id

    app, guard = FastAPI(), Depends(require_fence(MemoryFenceStore(), "orders:{order_id}"))

    @app.put("/{order_id}")
    async def put(
        number: Annotated[int, Depends(order)], stamp: Annotated[FenceStamp, guard]
    ) -> list[Any]:
        return [number, stamp.name]

    assert (await ask(app, "/042", FenceStamp("orders:42", 1))).json() == [42, "orders:42"]


def test_a_template_names_its_variables() -> None:
    assert fields_of("orders") == frozenset()
    assert fields_of("{shop}:{user.id}:{order[id]}:{size!r:>4}:{{x}}") == {
        "shop",
        "user",
        "order",
        "size",
    }
    for template, wrong in (("{}", ""), ("{0}:{a}", "0"), ("{a-b}", "a-b"), ("{.a}", "")):
        with pytest.raises(ConfigurationError) as caught:
            fields_of(template)
        assert str(caught.value) == (
            f"the lock name {template!r} has a field without a name: {[wrong]}"
        )


def test_a_template_that_lacks_a_variable_says_what_else_can_name_the_lock() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_template("{shop}:{order}", {"shop", "user"}, "PUT /x")
    assert str(caught.value) == (
        "PUT /x: the lock name '{shop}:{order}' needs 'order', which is no variable of the path "
        "('shop', 'user'); a function of the request can also name the lock"
    )


def test_a_variable_that_the_route_does_not_declare_stays_what_the_router_made_of_it() -> None:
    """With a converter in the path it is a number, which a template may format."""
    request = Request({"type": "http", "path_params": {"order_id": 42}, "headers": []})
    assert fill_in("orders:{order_id:05d}", path_values(request)) == "orders:00042"


async def test_a_name_that_a_function_makes_is_no_template() -> None:
    """It may come from a client, braces and all."""

    def name(request: Any) -> str:
        return f"files:{request.headers['x-file']}"

    headers = {**fence_headers(FenceStamp("files:{a}", 7)), "x-file": "{a}"}

    async def answer(request: web.Request) -> web.Response:
        return web.Response()

    service = web.Application(middlewares=[fence_middleware(MemoryFenceStore(), name)])
    service.router.add_put("/{a}", answer)
    async with TestClient(TestServer(service)) as client:
        assert (await client.put("/1", headers=headers)).status == 200

    app = FastAPI()
    app.put("/{a}", dependencies=[Depends(require_fence(MemoryFenceStore(), name))])(lambda: None)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as api:
        assert (await api.put("/1", headers=headers)).status_code == 200


async def test_a_refusal_in_fastapi_has_the_answer_and_the_error_behind_it() -> None:
    """A handler of the application may log the one and send the other."""
    dependency = require_fence(MemoryFenceStore(), "orders:{order_id}")
    headers = [(b"x-lock-name", b"orders%3A42"), (b"x-lock-fence", b"0")]
    scope = {"type": "http", "headers": headers, "path_params": {"order_id": "42"}}
    with pytest.raises(FenceRefused) as caught:
        await dependency(Request(scope))
    cause = caught.value.__cause__
    assert isinstance(cause, FenceHeaderError)
    assert [caught.value.status_code, caught.value.detail] == [*refusal(cause)]
    assert refusal(cause)[0] == 400
