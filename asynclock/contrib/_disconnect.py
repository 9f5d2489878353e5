"""An ASGI middleware that ends a request under a lock when its client has gone away.

ASGI servers only tell whoever asks `receive`, and no framework asks while a handler runs. So a
request that wants a lock has somebody listen for it, and the rest of the request runs in a cancel
scope. Other requests are passed on as they are.
"""

from __future__ import annotations

import asyncio
from collections import deque

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEY = "asynclock.presence"
AHEAD = 65_536
"""Bytes of a request's body that are read before the application asks for them."""


class CancelOnDisconnect:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        presence = Presence(receive, send)
        scope[KEY] = presence
        try:
            with presence.scope:
                await self.app(scope, presence.receive, presence.send)
        finally:
            await presence.aclose()


class Presence:
    """Whether the client of one request is still there."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.scope = anyio.CancelScope()
        self._receive = receive
        self._send = send
        self._turn = asyncio.Lock()
        """Two may want the next message; only one may ask the server for it."""
        self._kept: deque[Message] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._gone = False
        self._answered = False
        self._listener: asyncio.Task[None] | None = None

    def insist(self) -> None:
        """From now on the request is cancelled when its client goes away."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="asynclock: client gone?")
        self._judge()

    async def receive(self) -> Message:
        """What the application calls."""
        while not self._kept:
            if self._listener is None:
                async with self._turn:
                    message = await self._receive()
                self._note(message)
                return message
            self._news.clear()
            await self._news.wait()
        if self._kept[0]["type"] == "http.disconnect":
            return self._kept[0]  # the last message: it stays
        self._room.set()
        return self._kept.popleft()

    async def send(self, message: Message) -> None:
        """What the application calls."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            # After the answer a server says "disconnect" to everybody who asks.
            self._answered = True
        await self._send(message)

    async def aclose(self) -> None:
        """Nobody listens any more."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    async def _listen(self) -> None:
        while not self._gone:
            async with self._turn:
                message = await self._receive()
            self._kept.append(message)
            self._news.set()
            self._note(message)
            while sum(len(one.get("body", b"")) for one in self._kept) > AHEAD:
                self._room.clear()
                await self._room.wait()

    def _note(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self._gone = True
            self._judge()

    def _judge(self) -> None:
        if self._gone and self._listener is not None and not self._answered:
            self.scope.cancel()
