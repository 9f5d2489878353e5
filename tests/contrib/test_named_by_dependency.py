"""A lock that is named after more than the path: a body, a query, another dependency.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, WebSocket
from fastapi.testclient import TestClient
from pydantic import BaseModel

from asynclock import ConfigurationError, Lease, LockManager
from asynclock.contrib.fastapi import Locked, Locks, locked, setup
from asynclock.fencing import FenceStamp, MemoryFenceStore
from asynclock.fencing.fastapi import require_fence
from asynclock.fencing.headers import fence_headers


class Order(BaseModel):
    number: int


def of_body(order: Order) -> str:
    return f"orders:{order.number}"


async def of_query(number: Annotated[int, Query(alias="n")]) -> str:
    return f"orders:{number}"


async def of_header(x_number: Annotated[int, Header()]) -> str:
    return f"orders:{x_number}"


async def user(x_user: Annotated[str, Header()]) -> AsyncIterator[str]:
    """A dependency of a dependency, with an end."""
    yield x_user.lower()


async def of_dependency(who: Annotated[str, Depends(user)], locks: Locks) -> str:
    assert isinstance(locks, LockManager)
    return f"users:{who}"


REQUESTS: dict[Callable[..., Any], dict[str, Any]] = {
    of_body: {"json": {"number": 42}},
    of_query: {"params": {"n": "042"}},
    of_header: {"headers": {"X-Number": "42"}},
    of_dependency: {"headers": {"X-User": "Ann"}},
}
NAMES = {of_dependency: "users:ann"}


def app_with_locks() -> FastAPI:
    app = FastAPI()
    setup(app, "memory://named-by-dependency")
    return app


@pytest.mark.parametrize("source", REQUESTS)
@pytest.mark.parametrize("decorated", [False, True])
def test_a_dependency_names_the_lock(source: Callable[..., Any], decorated: bool) -> None:
    app = app_with_locks()
    if decorated:

        @app.post("/orders")
        @locked(Depends(source), timeout=2)
        async def ship(locks: Locks) -> list[str]:
            return [lease.name for lease in locks.leases()]

    else:

        @app.post("/orders")
        async def ship_with(
            lease: Annotated[Lease, Locked(Depends(source), timeout=2)],
        ) -> list[str]:
            return [lease.name]

    with TestClient(app) as client:
        answer = client.post("/orders", **REQUESTS[source])
        assert (answer.status_code, answer.json()) == (200, [NAMES.get(source, "orders:42")])
        refused = client.post("/orders")
    assert refused.status_code == 422, "without a name there is no lock, and no call"


@pytest.mark.parametrize("source", REQUESTS)
def test_a_client_is_asked_for_the_same_with_the_lock_as_without(
    source: Callable[..., Any],
) -> None:
    """OpenAPI shows what the name needs once, also if the endpoint needs it too."""
    plain, under_lock = app_with_locks(), app_with_locks()

    @plain.post("/orders")
    async def ship(name: Annotated[str, Depends(source)], order: Order) -> str:
        return name

    @under_lock.post("/orders", name="ship")
    @locked(Depends(source))
    async def ship_locked(name: Annotated[str, Depends(source)], order: Order) -> str:
        return name

    shown, expected = (app.openapi()["paths"]["/orders"]["post"] for app in (under_lock, plain))
    for one in (shown, expected):
        assert one.pop("operationId")
    assert {"409", "503"} == shown["responses"].keys() - expected["responses"].keys()
    shown["responses"] = expected["responses"]
    assert shown == expected


def test_a_name_is_made_once_per_request_and_not_under_the_lock_if_it_fails() -> None:
    app, calls = app_with_locks(), []

    async def name(order_id: int) -> str:
        calls.append(order_id)
        if order_id == 404:
            raise HTTPException(404)
        return f"orders:{order_id}"

    @app.get("/{order_id}")
    @locked(Depends(name))
    async def get(of: Annotated[str, Depends(name)]) -> str:
        return of

    with TestClient(app) as client:
        assert client.get("/42").json() == "orders:42"
        assert client.get("/404").status_code == 404
    assert calls == [42, 404]


def test_a_websocket_is_named_after_its_query() -> None:
    app = app_with_locks()

    @app.websocket("/edit")
    async def edit(
        socket: WebSocket, lease: Annotated[Lease, Locked(Depends(of_query), timeout=2)]
    ) -> None:
        await socket.accept()
        await socket.send_text(lease.name)

    with TestClient(app) as client, client.websocket_connect("/edit?n=7") as socket:
        assert socket.receive_text() == "orders:7"


@pytest.mark.parametrize(
    ("made", "status"), [(42, 500), (None, 500), ("", 400), ("a:#b", 400), ("fine", 200)]
)
def test_a_name_that_is_no_text_is_our_mistake_and_an_unusable_one_the_clients(
    made: Any, status: int
) -> None:
    app = app_with_locks()

    def of_request(_: object) -> Any:
        return made

    for path, name in (("/dependency", Depends(lambda: made)), ("/function", of_request)):
        app.get(path)(locked(name)(nothing))
    with TestClient(app) as client:
        assert [client.get(path).status_code for path in ("/dependency", "/function")] == [
            status
        ] * 2


async def nothing() -> None: ...


def test_the_receiver_of_a_fence_takes_the_name_from_a_dependency_too() -> None:
    app, seen = app_with_locks(), []

    @app.post("/orders")
    async def put(
        stamp: Annotated[FenceStamp, Depends(require_fence(MemoryFenceStore(), Depends(of_body)))],
    ) -> None:
        seen.append(stamp.fence)

    with TestClient(app) as client:
        for name, status in (("orders:42", 200), ("orders:1", 400)):
            answer = client.post(
                "/orders", json={"number": 42}, headers=fence_headers(FenceStamp(name, 7))
            )
            assert answer.status_code == status
    assert seen == [7]


@pytest.mark.parametrize("around", ["/orders", "/{shop}/orders"])
def test_a_variable_that_is_not_in_the_path_is_said_to_be_that(around: str) -> None:
    """A value of a body or a query is not in the path; the error says how to take it."""
    router = APIRouter()

    @router.post(around)
    async def ship(order: Order, lease: Annotated[Lease, Locked("orders:{order}")]) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        app_with_locks().include_router(router)
    known = " ('shop')" if "shop" in around else ""
    assert str(caught.value) == (
        f"route {around}: the lock name 'orders:{{order}}' needs 'order', which is no variable of "
        f"the path{known}; a function of the request can also name the lock, and Depends(function) "
        "with a function that takes what an endpoint may take"
    )


@pytest.mark.parametrize("wrong", [of_query, 42])
def test_what_cannot_name_a_lock_is_refused_where_it_is_written(wrong: Any) -> None:
    for declare in (Locked, lambda name: require_fence(MemoryFenceStore(), name)):
        with pytest.raises(ConfigurationError, match=r"or Depends\(function\), not"):
            declare(wrong)
