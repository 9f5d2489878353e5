"""Routes with locks: what is refused where they are made, what stays theirs, what OpenAPI shows.

Annotations are lazy here, as in many applications: FastAPI finds the names of this module only.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse

from asynclock import Lease
from asynclock.contrib import aiohttp as for_aiohttp
from asynclock.contrib.fastapi import Locked, idempotent, key_lease, locked, setup
from asynclock.errors import ConfigurationError
from tests.contrib.apps import client_of, with_locks

OrderId = int
"""A name that only this module knows: the decorator must look for it here."""
TYPO = "orders:{ordr_id}"
PATH = "/orders/{order_id}"
FOUND = r"orders/{order_id}: .*needs 'ordr_id'"


async def endpoint(lease: Annotated[Lease, Locked(TYPO)]) -> None: ...


@locked(TYPO)
async def decorated() -> None: ...


@for_aiohttp.locked(TYPO)
async def handler(request: Any, lease: Lease) -> web.Response:
    return web.Response()


# ---- templates -----------------------------------------------------------------------------------
def by_router(app: FastAPI) -> None:
    router = APIRouter(prefix="/shops/{shop}")
    router.get(PATH)(endpoint)
    app.include_router(router)


def by_router_with_a_socket(app: FastAPI) -> None:
    router = APIRouter()
    router.websocket(PATH)(endpoint)
    app.include_router(router)


def by_mount(app: FastAPI) -> None:
    inner = FastAPI()
    inner.get(PATH)(endpoint)
    app.mount("/shops/{shop}", inner)


def by_table(app: web.Application) -> None:
    table = web.RouteTableDef()
    table.get(PATH)(handler)
    app.add_routes(table)


def by_view(app: web.Application, method: str) -> None:
    app.router.add_view(PATH, type("Orders", (web.View,), {method: handler}))


WRONG_ROUTES: dict[str, tuple[str, Any]] = {
    "a dependency": ("fastapi", lambda app: app.get(PATH)(endpoint)),
    "a decorator": ("fastapi", lambda app: app.get(PATH)(decorated)),
    "a socket": ("fastapi", lambda app: app.websocket(PATH)(endpoint)),
    "a router": ("fastapi", by_router),
    "a router with a socket": ("fastapi", by_router_with_a_socket),
    "a mount": ("fastapi", by_mount),
    "add_get": ("aiohttp", lambda app: app.router.add_get(PATH, handler)),
    "add_post": ("aiohttp", lambda app: app.router.add_post(PATH, handler)),
    "a table": ("aiohttp", by_table),
    "a decorator around it": (
        "aiohttp",
        lambda app: app.router.add_get(PATH, for_aiohttp.idempotent()(handler)),
    ),
    **{
        f"a view's {method}": ("aiohttp", functools.partial(by_view, method=method))
        for method in ("get", "post", "put", "delete")
    },
}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", WRONG_ROUTES)
async def test_a_templates_typo_is_found_when_the_route_is_made(kind: str, before: bool) -> None:
    framework, add = WRONG_ROUTES[kind]
    give: Any = setup if framework == "fastapi" else for_aiohttp.setup
    app = with_locks(framework) if before else (FastAPI, web.Application)[framework == "aiohttp"]()
    if not before:
        add(app)
    with pytest.raises(ConfigurationError, match=FOUND):
        add(app) if before else give(app, "memory://")


async def test_a_typo_that_comes_later_is_found_at_the_start() -> None:
    """Below another application, in a router that is included already, without `setup`."""
    app, router = with_locks("fastapi"), APIRouter()
    app.include_router(router, prefix="/shops")
    router.get(PATH)(decorated)
    with pytest.raises(ConfigurationError, match=FOUND):
        TestClient(app).__enter__()

    outer, inner, by_hand = with_locks("aiohttp"), web.Application(), web.Application()
    inner.router.add_get(PATH, handler)
    outer.add_subapp("/shops", inner)
    by_hand.cleanup_ctx.append(for_aiohttp.cleanup_context("memory://"))
    by_hand.router.add_get(PATH, handler)
    for wrong in (outer, by_hand):
        with pytest.raises(ConfigurationError, match=FOUND):
            await TestServer(wrong).start_server()


class Bare(web.AbstractRoute):
    """A route without a resource, which aiohttp allows."""

    name = None
    url_for: Any = None

    def get_info(self) -> Any: ...


class Bares(web.PlainResource):
    def __iter__(self) -> Iterator[Any]:
        return iter([Bare("GET", handler)])


async def test_a_typo_at_a_route_without_a_resource_is_found_as_well() -> None:
    app = with_locks("aiohttp")
    app.router.register_resource(Bares("/orders"))
    with pytest.raises(ConfigurationError, match=r"route GET None: .*needs 'ordr_id'"):
        await TestServer(app).start_server()


@pytest.mark.parametrize(
    ("path", "shown"), [("/orders", ""), ("/shops/{shop}/orders", " ('shop')")]
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_wrong_route_is_named_with_method_and_path(method: str, path: str, shown: str) -> None:
    words = f"route {method} {path}: the lock name '{TYPO}' needs 'ordr_id', which is no variable "
    words += f"of the path{shown}; a function of the request can also name the lock"
    with pytest.raises(ConfigurationError, match=f"{re.escape(words)}$"):
        with_locks("aiohttp").router.add_route(method, path, handler)


def test_a_template_may_use_the_prefix_of_a_router() -> None:
    app, router, inner = with_locks("fastapi"), APIRouter(), FastAPI()

    @router.get("/orders/{order_id}")
    async def order(lease: Annotated[Lease, Locked("{shop}:{order_id}")]) -> str:
        return lease.name

    app.include_router(router, prefix="/shops/{shop}")
    inner.include_router(router)
    app.mount("/mounted/{shop}", inner)
    with TestClient(app) as client:
        assert client.get("/shops/a/orders/1").json() == "a:1"
        assert client.get("/mounted/b/orders/1").json() == "b:1"


def test_the_rest_of_a_mounted_path_is_no_variable_of_a_lock() -> None:
    """Starlette calls it `path`; the routes inside don't have it."""
    app, inner = with_locks("fastapi"), FastAPI()

    @inner.get("/orders/{order_id}")
    @locked("{path}:{order_id}")
    async def order(order_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="needs 'path'"):
        app.mount("/shops", inner)


# ---- names and settings --------------------------------------------------------------------------
async def name_of(request: Any) -> str:
    return "a"


class Namer:
    async def __call__(self, request: Any) -> str:
        return "a"


DECLARE = pytest.mark.parametrize("declare", [Locked, locked, for_aiohttp.locked])


@DECLARE
@pytest.mark.parametrize("name", [name_of, Namer(), 42, None, b"a", "a:{", "a:{}", "a:{0}"])
def test_what_is_no_name_is_refused_where_it_is_written(declare: Any, name: Any) -> None:
    with pytest.raises(ConfigurationError, match="lock name"):
        declare(name)


@DECLARE
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("timeout", -1), ("timeout", "2"), ("ttl", 0), ("max_hold", 0), ("max_hold", "2")),
        *(("retry_after", -1), ("handoff", "blok"), ("handoff", None), ("handoff", 1)),
        *(("handoff", 0), ("handoff", ["strict"])),
    ],
)
def test_a_useless_setting_is_refused_at_its_place(declare: Any, setting: str, value: Any) -> None:
    """At the first request it would be too late."""
    with pytest.raises(ConfigurationError, match=setting):
        declare("a", **{setting: value})


@DECLARE
def test_a_setting_that_does_not_exist_is_refused_where_it_is_written(declare: Any) -> None:
    with pytest.raises(TypeError, match=r"blocking_timeout.*timeout"):
        declare("a", blocking_timeout=2)


@DECLARE
@pytest.mark.parametrize(
    "setting",
    [
        {"timeout": 0},
        {"retry_after": 0},
        *({"handoff": h} for h in (True, False, "block", "strict")),
    ],
)
def test_what_a_setting_may_be(declare: Any, setting: Any) -> None:
    """Not to wait, and to come back at once, are times too."""
    assert declare("a", **setting)


# ---- functions -----------------------------------------------------------------------------------
def test_a_decorated_endpoint_is_read_in_its_own_module() -> None:
    app = with_locks("fastapi")

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
    assert [parameter["name"] for parameter in operation["parameters"]] == ["order_id", "size"]


def test_a_decorated_handler_of_aiohttp_keeps_its_name() -> None:
    @for_aiohttp.locked("a")
    async def ship(request: web.Request, lease: Lease) -> web.Response:
        """Send it."""
        return web.Response()

    assert (ship.__name__, ship.__doc__) == ("ship", "Send it.")


def test_an_endpoint_that_takes_more_by_name_is_decorated() -> None:
    @locked("orders:{order_id}")
    async def ship(order_id: int, **more: Any) -> None: ...

    kinds = [parameter.kind for parameter in inspect.signature(ship).parameters.values()]
    assert kinds == sorted(kinds), "a signature that Python accepts"
    assert kinds[-1] is inspect.Parameter.VAR_KEYWORD


def test_only_async_functions_are_decorated() -> None:
    with pytest.raises(ConfigurationError, match=r"async function.*Locked\(\.\.\.\)"):

        @locked("a")  # type: ignore[arg-type]  # on purpose
        def plain() -> None: ...


def passed_on(function: Any) -> Any:
    """A decorator of somebody else."""

    @functools.wraps(function)
    async def passing(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return passing


@pytest.mark.parametrize("between", [lambda function: function, passed_on])
def test_a_lock_above_the_route_is_refused_when_the_application_starts(between: Any) -> None:
    app, inner = with_locks("fastapi"), FastAPI()
    app.mount("/inner", inner)

    @locked("orders:{order_id}")
    @between
    @inner.post("/orders/{order_id}")
    async def ship(order_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="directly above ship"), TestClient(app):
        pass


@pytest.mark.parametrize("above", [lambda function: function, passed_on])
def test_a_function_may_be_served_with_a_lock_and_without(above: Any) -> None:
    app = with_locks("fastapi")

    async def ship(order_id: int) -> int:
        return order_id

    app.post("/orders/{order_id}")(above(locked("orders:{order_id}")(ship)))
    app.post("/dry-runs/{order_id}")(ship)
    other_lock = locked("others:{order_id}")(ship)  # for another application
    with TestClient(app) as client:
        assert client.post("/orders/42").json() == client.post("/dry-runs/42").json() == 42
    assert other_lock is not ship


def test_a_route_that_ignores_keys_gives_no_lease_of_one() -> None:
    app, keyed = with_locks("fastapi"), APIRouter(route_class=idempotent())

    async def pay(lease: Annotated[Lease | None, Depends(key_lease)]) -> bool:
        return lease is None

    app.post("/pay")(pay)
    with pytest.raises(ConfigurationError, match=r"route /pay .*=idempotent"), TestClient(app):
        pass
    app = with_locks("fastapi")
    app.post("/dry-pay")(pay)  # on purpose: the same function answers once elsewhere
    keyed.post("/pay")(pay)
    app.include_router(keyed)
    with TestClient(app) as client:
        assert client.post("/dry-pay").json()


def test_an_endpoint_may_be_any_callable() -> None:
    @dataclass
    class Ship:
        """Has no hash, because it can be equal to others."""

        answer: int

        async def __call__(self, order_id: int) -> int:
            return self.answer + order_id

    app = with_locks("fastapi")
    app.post("/orders/{order_id}")(Ship(1))
    with TestClient(app) as client:
        assert client.post("/orders/42").json() == 43


async def test_adding_a_route_of_aiohttp_returns_it() -> None:
    """Applications ask it for its address, or its resource for more routes."""
    order = for_aiohttp.locked("orders:{order_id}")(unreached)
    router = with_locks("aiohttp").router
    added = {
        "GET": router.add_get("/a/{order_id}", order, name="order"),
        "POST": router.add_post("/b/{order_id}", order),
        "PUT": router.add_route("PUT", "/c/{order_id}", order),
    }
    for method, route in added.items():
        assert (route.method, route.handler) == (method, order)
    paths = [str(route.url_for(order_id="42")) for route in added.values()]
    assert paths == ["/a/42", "/b/42", "/c/42"]
    assert router["order"] is added["GET"].resource


async def unreached(request: web.Request, lease: Lease) -> web.Response:
    raise AssertionError(lease)


# ---- routes without a lock -----------------------------------------------------------------------
async def test_routes_of_aiohttp_without_a_lock_are_added_as_always() -> None:
    async def plain(_request: web.Request) -> web.Response:
        return web.Response(text="plain")

    app = with_locks("aiohttp")
    app.router.add_get("/{anything}", plain)
    app.router.add_route("*", "/", plain)
    async with client_of(app) as (client, _):
        for path in ("/", "/one"):
            assert (await client.get(path)).text == "plain"
        assert (await client.get("/one/two")).status_code == 404


class Other:
    """An application of another framework."""

    routes = 2  # nothing to look through

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("other")(scope, receive, send)


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("plain")(scope, receive, send)


async def test_odd_routes_are_left_alone() -> None:
    """A name as a function, a route outside the schema, applications of other kinds."""
    app = with_locks("fastapi")

    @app.get("/named/{one}")
    async def named(lease: Annotated[Lease, Locked(lambda request: "fixed")]) -> str:
        return lease.name

    @app.get("/hidden", include_in_schema=False)
    async def hidden(lease: Annotated[Lease, Locked("a")]) -> str:
        return lease.name

    app.mount("/plain", plain)
    app.mount("/other", Other())
    schema = app.openapi()
    assert list(schema["paths"]) == ["/named/{one}"]
    assert "409" in schema["paths"]["/named/{one}"]["get"]["responses"]
    paths = ("/named/1", "/hidden", "/plain/", "/other/")
    async with client_of(app) as (client, _):
        answers = [(await client.get(path)).text for path in paths]
    assert answers == ['"fixed"', '"a"', "plain", "other"]


# ---- what OpenAPI tells --------------------------------------------------------------------------
def described(status: int, kind: str, phrase: str) -> dict[str, Any]:
    """Return what OpenAPI should say of an answer."""
    properties = {
        "type": {"type": "string", "const": f"urn:asynclock:{kind}"},
        "title": {"type": "string"},
        "status": {"type": "integer", "const": status},
        "lock": {"type": "string", "description": "The name of the lock."},
        "retry_after": {"type": "integer", "description": "Seconds."},
    }
    required = ["type", "title", "status"]
    schema = {"type": "object", "properties": properties, "required": required}
    pause = {"description": "Seconds to wait before another try.", "schema": {"type": "integer"}}
    return {
        "description": f"{phrase}: urn:asynclock:{kind}",
        "content": {"application/problem+json": {"schema": schema}},
        "headers": {"Retry-After": pause},
    }


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")
@pytest.mark.parametrize(
    ("status", "phrase", "again"),
    [(409, "Conflict", False), (423, "Locked", False), (423, "Locked", True)],
)
def test_openapi_shows_what_a_lock_may_answer(status: Any, phrase: str, again: bool) -> None:
    app, router, inner = FastAPI(), APIRouter(), FastAPI()
    if again:  # the latest setup counts
        setup(app, "memory://")
    setup(app, "memory://", **({} if status == 409 else {"contended": status}))

    @router.api_route("/orders/{order_id}", methods=["GET", "PUT", "DELETE"])
    @locked("orders:{order_id}")
    async def order(order_id: int) -> None: ...

    @router.post("/orders/{order_id}", responses={status: {"description": "somebody packs it"}})
    @locked("orders:{order_id}")
    async def own_words(order_id: int) -> None: ...

    @app.get("/free", responses={503: {"description": "mine"}})
    async def free() -> None: ...

    inner.include_router(router)
    app.include_router(router, prefix="/shop")
    app.mount("/inner", inner)
    with TestClient(app) as client:
        paths = client.get("/openapi.json").json()["paths"]
        below = client.get("/inner/openapi.json").json()["paths"]["/orders/{order_id}"]
    operations = paths["/shop/orders/{order_id}"]
    assert set(operations) == {"get", "put", "delete", "post"}
    answers = {str(status): described(status, "contended", phrase)}
    answers["503"] = described(503, "unavailable", "Service Unavailable")
    usual = {"200", "422"}
    for method in ("get", "put", "delete"):
        for operation in (operations[method], below[method]):
            found = operation["responses"]
            assert {code: found[code] for code in found.keys() - usual} == answers
    own = operations["post"]["responses"]
    assert own[str(status)] == {"description": "somebody packs it"}
    assert own["503"] == answers["503"]
    free_answers = paths["/free"]["get"]["responses"]
    assert free_answers["503"] == {"description": "mine"}
    assert free_answers.keys() == {"200", "503"}


def lease_of_order(
    order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=0.05)]
) -> Lease:
    return lease


def test_a_lock_of_a_dependency_is_checked_and_described() -> None:
    app = with_locks("fastapi")

    @app.post("/orders/{order_id}")
    async def ship(lease: Annotated[Lease, Depends(lease_of_order)]) -> str:
        return lease.name

    with TestClient(app) as client:
        assert client.post("/orders/42").json() == "orders:42"
        answers = client.get("/openapi.json").json()["paths"]["/orders/{order_id}"]["post"]
    assert {"409", "503"} <= answers["responses"].keys()
    with pytest.raises(ConfigurationError, match="needs 'order_id'"):
        with_locks("fastapi").post("/orders/{other}")(ship)


def test_a_tool_that_builds_the_middleware_again_gets_ours_once() -> None:
    """As one that instruments an application does."""
    app = with_locks("fastapi")
    setup(app, "memory://")
    app.build_middleware_stack()
    once = list(app.user_middleware)
    app.build_middleware_stack()
    assert app.user_middleware == once
    assert once
