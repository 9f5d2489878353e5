"""Errors of locks outside of the routes of FastAPI: what has been sent decides about the answer."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.datastructures import State

import asynclock
from asynclock.contrib._middleware import AnswerErrors
from asynclock.contrib.fastapi import Locks, _response, setup
from asynclock.errors import AsyncLockError, NotAcquiredError

ACCEPT = {"type": "websocket.accept"}
TEXT = {"type": "websocket.send", "text": "hello"}
CLOSE = {"type": "websocket.close", "code": 1000}
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"hello", "more_body": True}
EXTENSIONS: dict[str, Any] = {"websocket.http.response": {}}


class Server:
    """The messages that a server gets from an application."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> Any:
        return {"type": "websocket.connect"}

    async def ask(self, kind: str, *before: Any) -> list[Any]:
        """Return what comes after `before`, when an application sends that and then fails."""

        async def fails(_scope: Any, _receive: Any, send: Any) -> None:
            for message in before:
                await send(message)
            raise NotAcquiredError("held", name="a")

        async def answer(connection: Any, error: AsyncLockError) -> Any:
            return _response(connection, error, 409)

        around = AnswerErrors(fails, State(), {AsyncLockError: answer})
        scope = {"type": kind, "headers": [], "extensions": EXTENSIONS}
        await around(scope, self.receive, self.send)
        return self.sent[len(before) :]


async def test_a_socket_that_was_not_accepted_is_refused_like_a_request() -> None:
    start, body = await Server().ask("websocket")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 409)
    assert b"urn:asynclock:contended" in body["body"]


@pytest.mark.parametrize("before", [[ACCEPT], [ACCEPT, TEXT], [ACCEPT, TEXT, TEXT]])
async def test_a_socket_that_was_accepted_is_closed_whatever_it_has_sent(before: list[Any]) -> None:
    (closed,) = await Server().ask("websocket", *before)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4409)
    assert closed["reason"] == "contended"


async def test_a_request_gets_its_answer() -> None:
    start, body = await Server().ask("http")
    assert (start["type"], start["status"]) == ("http.response.start", 409)
    assert b"urn:asynclock:contended" in body["body"]


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("http", [START]),
        ("http", [START, BODY]),
        ("http", [START, BODY, BODY]),
        ("websocket", [CLOSE]),
        ("websocket", [ACCEPT, CLOSE]),
    ],
)
async def test_after_an_answer_the_server_gets_the_error_and_nothing_else(
    kind: str, before: list[Any]
) -> None:
    server = Server()
    with pytest.raises(NotAcquiredError, match="held"):
        await server.ask(kind, *before)
    assert server.sent == before


async def test_a_socket_of_a_mounted_application_finds_the_manager() -> None:
    """Also on a server that does not pass the state of the lifespan on."""
    app, inner = FastAPI(), FastAPI()
    setup(app, "memory://")
    app.mount("/inner", inner)
    found: list[asynclock.LockManager] = []

    @inner.websocket("/chat")
    async def chat(socket: WebSocket, locks: Locks) -> None:
        found.append(locks)
        await socket.accept()

    server = Server()
    scope = {"type": "websocket", "path": "/inner/chat", "headers": [], "query_string": b""}
    async with app.router.lifespan_context(app):
        await app(scope, server.receive, server.send)
        assert found == [app.state.asynclock]
    assert server.sent[0]["type"] == "websocket.accept"
