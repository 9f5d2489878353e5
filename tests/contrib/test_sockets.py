"""WebSockets under a lock, in both frameworks.

No `from __future__ import annotations` here: FastAPI would not find the names of an inner app.
"""

from typing import Annotated, Any

import pytest
from aiohttp import ClientSession, WSMsgType, web
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from asynclock import Lease
from asynclock.contrib.aiohttp import locked
from asynclock.contrib.fastapi import Locked, Locks
from asynclock.testing import busy, lose
from tests.contrib.apps import serving, with_locks


def sockets_app() -> FastAPI:
    app: FastAPI = with_locks("fastapi")

    @app.websocket("/orders/{order_id}")
    async def order(
        socket: WebSocket,
        lease: Annotated[Lease, Locked("orders:{order_id}", timeout=0.05)],
        locks: Locks,
    ) -> None:
        await socket.accept()
        assert lease in locks.leases()
        async for text in socket.iter_text():
            lose(lease) if text == "lose" else await socket.send_text(lease.name)

    @app.websocket("/late/{order_id}")
    async def late(socket: WebSocket, order_id: int, locks: Locks) -> None:
        await socket.accept()
        async with locks.lock(f"orders:{order_id}", timeout=0.05):
            pass

    return app


def end_of(socket: Any) -> tuple[int, str | None]:
    with pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_text()
    return closed.value.code, closed.value.reason


def test_a_websocket_under_a_lock() -> None:
    app = sockets_app()
    with TestClient(app) as client:
        with client.websocket_connect("/orders/42") as socket:
            socket.send_text("who")
            assert socket.receive_text() == "orders:42"
            with pytest.raises(WebSocketDenialResponse) as denied:
                client.websocket_connect("/orders/42").__enter__()
            assert (denied.value.status_code, denied.value.json()["status"]) == (409, 409)
            with client.websocket_connect("/late/42") as other:
                assert end_of(other) == (4409, "contended")
            socket.send_text("lose")
            assert end_of(socket) == (4500, "lease-lost")
        with client.websocket_connect("/orders/42"):
            pass  # the lock is free again


async def test_a_websocket_of_aiohttp(caplog: pytest.LogCaptureFixture) -> None:
    app = with_locks("aiohttp")

    @locked("orders:{order_id}", timeout=0.05)
    async def order(request: web.Request, lease: Lease) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            lose(lease) if message.data == "lose" else await socket.send_str(lease.name)
        return socket

    app.router.add_get("/orders/{order_id}", order)
    async with serving(app) as url, ClientSession(url) as client:
        async with client.ws_connect("/orders/42") as socket:
            await socket.send_str("who")
            assert await socket.receive_str() == "orders:42"
            assert (await client.get("/orders/42")).status == 409
            await socket.send_str("lose")
            end = await socket.receive(timeout=10)
            assert (end.type, end.data, end.extra) == (WSMsgType.CLOSE, 4500, "lease-lost")
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


async def talk(app: FastAPI, path: str, extensions: Any) -> list[Any]:
    """Return what a server without the usual comforts gets from an application."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": path, "headers": [], "query_string": b""}
    more = {} if extensions is None else {"extensions": extensions}
    await app({**scope, **more}, receive, send)
    return sent


@pytest.mark.parametrize("extensions", [None, {}, {"websocket.http.response": {}}])
async def test_a_socket_is_refused_as_its_server_can(extensions: dict[str, Any] | None) -> None:
    """With an answer like that of a request, or else with the code that closes the socket."""
    app = sockets_app()
    async with app.router.lifespan_context(app), busy("orders:1", app.state.asynclock):
        first, *rest = await talk(app, "/orders/1", extensions)
    if extensions:
        assert (first["type"], first["status"]) == ("websocket.http.response.start", 409)
        assert b"urn:asynclock:contended" in rest[0]["body"]
    else:
        assert not rest
        assert first == {"type": "websocket.close", "code": 4409, "reason": "contended"}


async def test_a_socket_of_a_mounted_application_finds_the_manager() -> None:
    """Also on a server that does not pass the state of the lifespan on."""
    app, inner, found = with_locks("fastapi"), FastAPI(), []
    app.mount("/inner", inner)

    @inner.websocket("/chat")
    async def chat(socket: WebSocket, locks: Locks) -> None:
        found.append(locks)
        await socket.accept()

    async with app.router.lifespan_context(app):
        sent = await talk(app, "/inner/chat", None)
        assert found == [app.state.asynclock]
    assert sent[0]["type"] == "websocket.accept"
