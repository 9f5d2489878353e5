"""Routes of FastAPI in each way in which they may be written, in a module with lazy annotations."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse

from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locked, health, locked, setup
from asynclock.errors import ConfigurationError
from asynclock.testing import busy

MEMORY = ("memory://routes-a", "memory://routes-b", "memory://routes-c")
OrderId = int
"""A name that only this module knows: the decorator must look for it here."""


def lease_of_order(
    order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=0.05)]
) -> Lease:
    return lease


def app_with_locks() -> FastAPI:
    app = FastAPI()
    setup(app, *MEMORY)
    return app


def test_a_decorated_endpoint_is_read_in_its_own_module() -> None:
    app = app_with_locks()

    @app.post("/orders/{order_id}")
    @locked("orders:{order_id}")
    async def ship(order_id: OrderId, size: OrderId = 1) -> list[Any]:
        """Send it."""
        return [order_id, size]

    assert (ship.__name__, ship.__doc__) == ("ship", "Send it.")
    with TestClient(app) as client:
        assert client.post("/orders/042?size=2").json() == [42, 2]
        operation = client.get("/openapi.json").json()["paths"]["/orders/{order_id}"]["post"]
    assert (operation["summary"], operation["description"]) == ("Ship", "Send it.")


def test_an_endpoint_that_takes_more_by_name_is_decorated() -> None:
    @locked("orders:{order_id}")
    async def ship(order_id: int, **more: Any) -> None: ...

    kinds = [parameter.kind for parameter in inspect.signature(ship).parameters.values()]
    assert kinds == sorted(kinds), "a signature that Python accepts"
    assert kinds[-1] is inspect.Parameter.VAR_KEYWORD


def passed_on(function: Any) -> Any:
    """A decorator of somebody else."""

    @functools.wraps(function)
    async def passing(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return passing


@pytest.mark.parametrize("between", [lambda function: function, passed_on])
def test_a_lock_above_the_route_is_refused_when_the_application_starts(between: Any) -> None:
    app, inner = app_with_locks(), FastAPI()
    app.mount("/inner", inner)

    @locked("orders:{order_id}")
    @between
    @inner.post("/orders/{order_id}")
    async def ship(order_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="directly above ship"), TestClient(app):
        pass


@pytest.mark.parametrize("above", [lambda function: function, passed_on])
def test_a_function_may_be_served_with_a_lock_and_without(above: Any) -> None:
    app = app_with_locks()

    async def ship(order_id: int) -> int:
        return order_id

    app.post("/orders/{order_id}")(above(locked("orders:{order_id}")(ship)))
    app.post("/dry-runs/{order_id}")(ship)
    other_lock = locked("others:{order_id}")(ship)  # for another application
    with TestClient(app) as client:
        assert client.post("/orders/42").json() == client.post("/dry-runs/42").json() == 42
    assert other_lock is not ship


def test_an_endpoint_may_be_any_callable() -> None:
    @dataclass
    class Ship:
        """Has no hash, because it can be equal to others."""

        answer: int

        async def __call__(self, order_id: int) -> int:
            return self.answer + order_id

    app = app_with_locks()
    app.post("/orders/{order_id}")(Ship(1))
    with TestClient(app) as client:
        assert client.post("/orders/42").json() == 43


def test_a_lock_of_a_dependency_is_checked_and_described() -> None:
    app, wrong = app_with_locks(), app_with_locks()

    @app.post("/orders/{order_id}")
    async def ship(lease: Annotated[Lease, Depends(lease_of_order)]) -> str:
        return lease.name

    with TestClient(app) as client:
        assert client.post("/orders/42").json() == "orders:42"
        answers = client.get("/openapi.json").json()["paths"]["/orders/{order_id}"]["post"]
    assert {"409", "503"} <= answers["responses"].keys()
    with pytest.raises(ConfigurationError, match="needs 'order_id'"):
        wrong.post("/orders/{other}")(ship)


def test_an_applications_own_words_for_an_answer_stay() -> None:
    app = app_with_locks()

    @app.post("/orders/{order_id}", responses={409: {"description": "somebody packs it"}})
    @locked("orders:{order_id}")
    async def ship(order_id: int) -> None: ...

    answers = app.openapi()["paths"]["/orders/{order_id}"]["post"]["responses"]
    assert answers["409"] == {"description": "somebody packs it"}
    assert "503" in answers


def test_the_rest_of_a_mounted_path_is_no_variable_of_a_lock() -> None:
    """Starlette calls it `path`; the routes inside don't have it."""
    app, inner = app_with_locks(), FastAPI()

    @inner.get("/orders/{order_id}")
    @locked("{path}:{order_id}")
    async def order(order_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="needs 'path'"):
        app.mount("/shops", inner)


async def test_an_application_inside_of_a_mounted_one_answers_as_well() -> None:
    app, middle, inner = app_with_locks(), FastAPI(), FastAPI()
    inner.post("/{order_id}")(locked("orders:{order_id}", timeout=0.05)(_ship))
    middle.mount("/inner", inner)
    app.mount("/middle", middle)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/middle/inner/42")).status_code == 200
            async with busy("orders:42", app.state.asynclock):
                answer = await client.post("/middle/inner/42")
    assert answer.status_code == 409
    assert answer.headers["content-type"].startswith("application/problem+json")


async def test_an_application_of_another_framework_keeps_its_routes_to_itself() -> None:
    class Other:
        routes = 2  # nothing to look through

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("other")(scope, receive, send)

    app = app_with_locks()
    app.mount("/other", Other())
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/other/")).text == "other"


async def _ship(order_id: int) -> None: ...


def test_a_router_may_get_its_locks_before_it_is_included() -> None:
    app, router = app_with_locks(), APIRouter()
    router.websocket("/{order_id}")(_ship_by_socket)
    with pytest.raises(ConfigurationError, match="needs 'ordr_id'"):
        app.include_router(router)


async def _ship_by_socket(lease: Annotated[Lease, Locked("orders:{ordr_id}")]) -> None: ...


@pytest.mark.parametrize("declare", [Locked, for_aiohttp.locked])
@pytest.mark.parametrize("setting", [{"max_hold": 0}, {"max_hold": "2"}, {"retry_after": -1}])
def test_more_settings_of_no_use_are_refused_where_they_are_written(
    declare: Any, setting: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        declare("a", **setting)


@pytest.mark.parametrize("declare", [Locked, for_aiohttp.locked])
@pytest.mark.parametrize("setting", ["timeout", "retry_after"])
def test_no_time_at_all_is_a_time(declare: Any, setting: str) -> None:
    """Not to wait, and to come back at once."""
    assert declare("a", **{setting: 0})


async def test_health_is_not_cached() -> None:
    app = app_with_locks()
    app.add_api_route("/health", health)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.get("/health")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")


def test_a_tool_that_builds_the_middleware_again_gets_ours_once() -> None:
    """As one that instruments an application does."""
    app = app_with_locks()
    setup(app, *MEMORY)
    app.build_middleware_stack()
    once = list(app.user_middleware)
    app.build_middleware_stack()
    assert app.user_middleware == once
    assert once
