"""A lock that is named after a path parameter is one lock for all ways to write the value.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

import asyncio
import enum
import uuid
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Path, WebSocket
from fastapi.testclient import TestClient

from asynclock import Lease
from asynclock.contrib.fastapi import Locked, locked, setup
from asynclock.fencing import FenceStamp, MemoryFenceStore, fence_headers
from asynclock.fencing.fastapi import require_fence

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


class Kind(enum.Enum):
    BOOK = "book"


def named(kind: Any, name: str = "orders:{order_id}", path: str = "/{order_id}") -> FastAPI:
    """An application whose only route answers with the name of its lock."""
    app = FastAPI()
    setup(app, "memory://path-values")

    @app.get(path)
    async def show(order_id: kind, lease: Annotated[Lease, Locked(name)]) -> str:
        return lease.name

    return app


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
    with TestClient(named(kind)) as client:
        answers = [client.get(f"/{one}") for one in written]
    assert {answer.text for answer in answers} == {f'"orders:{value}"'}


def test_a_value_that_the_route_refuses_gets_its_usual_answer() -> None:
    with TestClient(named(int)) as client:
        assert client.get("/abc").status_code == 422


def test_the_function_may_declare_it_under_another_name_or_leave_it_to_a_dependency() -> None:
    app = FastAPI()
    setup(app, "memory://path-values")
    name = "orders:{order_id}"

    @app.get("/alias/{order_id}")
    async def alias(
        number: Annotated[int, Path(alias="order_id")], lease: Annotated[Lease, Locked(name)]
    ) -> str:
        return lease.name

    def order(order_id: int) -> int:
        return order_id

    @app.get("/dependency/{order_id}")
    async def dependency(
        order: Annotated[int, Depends(order)], lease: Annotated[Lease, Locked(name)]
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
        websocket: WebSocket, order_id: int, lease: Annotated[Lease, Locked(name)]
    ) -> None:
        await websocket.accept()
        await websocket.send_text(lease.name)
        await websocket.close()

    with TestClient(app) as client:
        assert client.get("/alias/042").json() == "orders:42"
        assert client.get("/dependency/042").json() == "orders:42"
        assert client.get("/shops/07/042").json() == "7:42"
        with client.websocket_connect("/socket/042") as connected:
            assert connected.receive_text() == "orders:42"


async def test_one_request_at_a_time_is_inside_however_its_path_is_written() -> None:
    app, inside, most = FastAPI(), 0, 0
    setup(app, "memory://path-values")

    @app.post("/orders/{order_id}")
    @locked("orders:{order_id}", timeout=10)
    async def ship(order_id: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            paths = [f"/orders/{one}" for one in ("42", "042", "+42", "4_2")]
            answers = await asyncio.gather(*(client.post(path) for path in paths))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert most == 1


def test_a_fence_is_checked_against_the_lock_of_the_value() -> None:
    app = FastAPI()
    setup(app, "memory://path-values")
    fence = Depends(require_fence(MemoryFenceStore(), "orders:{order_id}"))

    @app.put("/orders/{order_id}")
    async def put(order_id: int, stamp: Annotated[FenceStamp, fence]) -> str:
        return stamp.name

    def headers(name: str, number: int) -> dict[str, str]:
        return fence_headers(FenceStamp(name, number))

    with TestClient(app) as client:
        assert client.put("/orders/042", headers=headers("orders:42", 7)).json() == "orders:42"
        assert client.put("/orders/42", headers=headers("orders:42", 6)).status_code == 412
        assert client.put("/orders/042", headers=headers("orders:042", 9)).status_code == 400
