"""The outermost middleware of a FastAPI application with locks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import State
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from ..errors import AsyncLockError, ConfigurationError
from ._problems import KEY
from ._stopping import requests_of

CONNECTIONS = {"http": Request, "websocket": WebSocket}


class AnswerErrors:
    """Answers errors of locks that other middleware raises.

    The framework calls exception handlers only for routes; this calls the same handlers for
    middleware. It also passes the manager on to mounted applications, even if the server doesn't
    pass the state of the lifespan on (`httpx.ASGITransport`).
    """

    def __init__(
        self, app: ASGIApp, state: State, handlers: Mapping[Any, Callable[..., Any]]
    ) -> None:
        self.app = app
        self._state = state
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = answered = False
        known = scope["type"] in CONNECTIONS and hasattr(self._state, KEY)
        if known:
            scope.setdefault("state", {}).setdefault(KEY, getattr(self._state, KEY))

        async def watch(message: Message) -> None:
            nonlocal accepted, answered
            accepted = accepted or message["type"] == "websocket.accept"
            answered = answered or message["type"] in ("http.response.start", "websocket.close")
            await send(message)

        with requests_of(getattr(self._state, KEY)).serve() if known else nullcontext():
            try:
                await self.app(scope, receive, watch)
            except AsyncLockError as error:
                if answered or scope["type"] not in CONNECTIONS:
                    raise
                connection = CONNECTIONS[scope["type"]](scope, receive, send)
                if accepted and isinstance(connection, WebSocket):
                    connection.application_state = WebSocketState.CONNECTED
                response = await self._answer(connection, error)
                await response(scope, receive, send)

    async def _answer(self, connection: HTTPConnection, error: AsyncLockError) -> ASGIApp:
        handler = next(self._handlers[c] for c in type(error).__mro__ if c in self._handlers)
        if inspect.iscoroutinefunction(handler):
            response: ASGIApp = await handler(connection, error)
        else:
            response = await run_in_threadpool(handler, connection, error)
        return response


def refuse_start(error: ConfigurationError) -> ASGIApp:
    """Make an application that answers a server's start with `error`, and raises it for requests.

    A server takes an error before the answer to mean that the application has no lifespan, and
    starts all the same.
    """

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
        raise ConfigurationError(*error.args)

    return refuse
