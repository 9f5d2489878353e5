"""A lock that is named after what a client sends: each way to write a value is one name.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import enum
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, WebSocket
from fastapi.testclient import TestClient
from pydantic import BaseModel

from asynclock import ConfigurationError, Lease, LockManager
from asynclock.contrib.fastapi import Locked, Locks, locked
from asynclock.fencing import FenceStamp, MemoryFenceStore, fence_headers
from asynclock.fencing.fastapi import require_fence
from tests.contrib.apps import with_locks

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NAME = "orders:{order_id}"


class Kind(enum.Enum):
    BOOK = "book"


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (int, ["42", "042", "+42", "%2042", "42.0", "4_2"], "42"),
        (Annotated[int, Path(ge=1)], ["42", "042"], "42"),
        (uuid.UUID, [UUID, UUID.upper(), UUID.replace("-", ""), f"%7B{UUID}%7D"], UUID),
        (str, ["042"], "042"),
        (Kind, ["book"], "book"),
        (float, ["1", "1.0", "1e0"], "1.0"),
        (bool, ["yes", "true", "1"], "True"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_each_way_to_write_a_value_is_one_name(kind: Any, written: list[str], value: str) -> None:
    app = with_locks("fastapi")

    @app.get("/{order_id}")
    async def show(order_id: kind, lease: Annotated[Lease, Locked(NAME)]) -> str:
        return lease.name

    with TestClient(app) as client:
        answers = [client.get(f"/{one}") for one in written]
        refused = client.get("/abc").status_code
    assert {answer.text for answer in answers} == {f'"orders:{value}"'}
    assert refused == (200 if kind is str else 422)


def test_the_function_may_declare_it_under_another_name_or_leave_it_to_a_dependency() -> None:
    app = with_locks("fastapi")

    @app.get("/alias/{order_id}")
    async def alias(
        number: Annotated[int, Path(alias="order_id")], lease: Annotated[Lease, Locked(NAME)]
    ) -> str:
        return lease.name

    def order(order_id: int) -> int:
        return order_id

    @app.get("/dependency/{order_id}")
    async def dependency(
        order: Annotated[int, Depends(order)], lease: Annotated[Lease, Locked(NAME)]
    ) -> str:
        return lease.name

    router = APIRouter()

    @router.get("/{order_id}")
    async def below(
        shop: int, order_id: int, lease: Annotated[Lease, Locked("{shop}:{order_id}")]
    ) -> str:
        return lease.name

    app.include_router(router, prefix="/shops/{shop}")

    @app.websocket("/socket/{order_id}")
    async def socket(
        websocket: WebSocket, order_id: int, lease: Annotated[Lease, Locked(NAME)]
    ) -> None:
        await websocket.accept()
        await websocket.send_text(lease.name)

    with TestClient(app) as client:
        assert client.get("/alias/042").json() == "orders:42"
        assert client.get("/dependency/042").json() == "orders:42"
        assert client.get("/shops/07/042").json() == "7:42"
        with client.websocket_connect("/socket/042") as connected:
            assert connected.receive_text() == "orders:42"


# ---- dependencies --------------------------------------------------------------------------------
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


@pytest.mark.parametrize("source", REQUESTS)
@pytest.mark.parametrize("decorated", [False, True])
def test_a_dependency_names_the_lock(source: Callable[..., Any], decorated: bool) -> None:
    app = with_locks("fastapi")
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
        name = "users:ann" if source is of_dependency else "orders:42"
        assert (answer.status_code, answer.json()) == (200, [name])
        refused = client.post("/orders")
    assert refused.status_code == 422, "without a name there is no lock, and no call"


@pytest.mark.parametrize("source", REQUESTS)
def test_a_client_is_asked_the_same_with_the_lock_as_without(source: Callable[..., Any]) -> None:
    """OpenAPI shows what the name needs once, also if the endpoint needs it too."""
    plain, under_lock = with_locks("fastapi"), with_locks("fastapi")

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
    app, calls = with_locks("fastapi"), []

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


@pytest.mark.parametrize(
    ("made", "status"), [(42, 500), (None, 500), ("", 400), ("a:#b", 400), ("fine", 200)]
)
def test_a_name_of_no_text_is_our_mistake_an_unusable_one_the_clients(
    made: Any, status: int
) -> None:
    app = with_locks("fastapi")

    async def nothing() -> None: ...

    def of_request(_: object) -> Any:
        return made

    for path, name in (("/dependency", Depends(lambda: made)), ("/function", of_request)):
        app.get(path)(locked(name)(nothing))
    with TestClient(app) as client:
        answers = [client.get(path).status_code for path in ("/dependency", "/function")]
    assert answers == [status] * 2


@pytest.mark.parametrize("around", ["/orders", "/{shop}/orders"])
def test_a_variable_that_is_not_in_the_path_is_said_to_be_that(around: str) -> None:
    """A value of a body or a query is not in the path; the error says how to take it."""
    router = APIRouter()

    @router.post(around)
    async def ship(order: Order, lease: Annotated[Lease, Locked("orders:{order}")]) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        with_locks("fastapi").include_router(router)
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


# ---- fences --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "requests"),
    [
        (
            NAME,
            [
                ("/orders/042", "orders:42", 7, 200),
                ("/orders/42", "orders:42", 6, 412),
                ("/orders/042", "orders:042", 9, 400),
                ("/orders/42", None, 0, 428),
            ],
        ),
        (Depends(of_body), [("/orders/1", "orders:42", 7, 200), ("/orders/1", "orders:1", 7, 400)]),
    ],
)
def test_a_fence_is_checked_against_the_lock_of_the_value(name: Any, requests: Any) -> None:
    """A refusal is a problem of its own kind, and not wrapped in `detail` as the framework does."""
    app, seen = with_locks("fastapi"), list[FenceStamp]()
    fence = Depends(require_fence(MemoryFenceStore(), name))

    @app.put("/orders/{order_id}")
    async def put(order_id: int, stamp: Annotated[FenceStamp, fence]) -> None:
        seen.append(stamp)

    with TestClient(app) as client:
        for path, sent, number, status in requests:
            headers = fence_headers(FenceStamp(sent, number)) if sent else {}
            answer = client.put(path, headers=headers, json={"number": 42})
            assert answer.status_code == status
            if status != 200:
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["status"] == status
    assert seen == [FenceStamp("orders:42", 7)]
