"""The ASGI middleware of a FastAPI application with locks, outermost first."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import State
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from ..errors import AsyncLockError, ConfigurationError
from ._web import KEY, requests_of

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


# ---- An ASGI middleware that cancels a request under a lock when its client disconnects ----------
# ASGI servers report a disconnect only to a caller of `receive`, and no framework calls it while a
# handler runs. So for a request that needs a lock a task listens, and the rest of the request runs
# in a cancel scope. Other requests are passed on unchanged.


PRESENCE = "asynclock.presence"
AHEAD = 65_536
"""Maximum bytes of a request's body that are read before the application asks for them."""


class CancelOnDisconnect:
    """The middleware; a request's `Presence` is in its scope under PRESENCE."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        presence = Presence(receive, send)
        scope[PRESENCE] = presence
        try:
            with presence.scope:
                await self.app(scope, presence.receive, presence.send)
        finally:
            await presence.aclose()


class Presence:
    """Watches whether the client of one request is still connected."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.scope = anyio.CancelScope()
        self._receive = receive
        self._send = send
        self._turn = asyncio.Lock()
        """Held during `receive`: the listener and the application must not call it at once."""
        self._kept: asyncio.Queue[Message | Exception] = asyncio.Queue()
        self._ahead = 0
        """Bytes that are kept."""
        self._room = asyncio.Event()
        self._gone = False
        self._answered = False
        self._listener: asyncio.Task[None] | None = None

    def insist(self) -> None:
        """Cancel the request from now on if its client disconnects."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="asynclock: client gone?")
        self._judge()

    async def receive(self) -> Message:
        """Return the next message; the `receive` of the application."""
        if self._listener is None:
            async with self._turn:
                message = await self._receive()
            self._note(message)
            return message
        kept = await self._kept.get()
        if isinstance(kept, Exception) or kept["type"] == "http.disconnect":
            self._kept.put_nowait(kept)  # the last, which every later call gets as well
        if isinstance(kept, Exception):
            raise kept
        self._ahead -= len(kept.get("body", b""))
        self._room.set()
        return kept

    async def send(self, message: Message) -> None:
        """Send a message of the answer; the `send` of the application."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            # After the answer a server reports "disconnect" in any case.
            self._answered = True
        await self._send(message)

    async def aclose(self) -> None:
        """End the task that listens for a disconnect."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    async def _listen(self) -> None:
        while not self._gone:
            try:
                async with self._turn:
                    message = await self._receive()
            except Exception as failure:  # a layer around the application, not the server
                self._kept.put_nowait(failure)
                return
            self._kept.put_nowait(message)
            self._ahead += len(message.get("body", b""))
            self._note(message)
            while self._ahead > AHEAD:
                self._room.clear()
                await self._room.wait()

    def _note(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self._gone = True
            self._judge()

    def _judge(self) -> None:
        if self._gone and self._listener is not None and not self._answered:
            self.scope.cancel()
