"""The ASGI application: three static files, and data for those who have the token."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import AsyncLockError, ConfigurationError
from ...manager import LockManager
from .picture import Painter

SHORTEST_TOKEN = 16
STREAM = 10.0
"""Seconds that a stream of events lasts; the page then asks for the next one. A server that wants
to end waits for its streams, and must not wait for long."""
PACE = 1.0
"""Seconds between two pictures."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_FILES = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}


def dashboard(locks: LockManager, *, token: str, public: bool = False) -> Starlette:
    """An application to mount, or to serve alone, which shows `locks` and changes nothing.

    `token`: at least 16 characters; a viewer types it, or has it in the address after `#token=`,
    where no server and no log sees it. `public`: also answer requests from other machines; leave
    it off and go through a proxy or a tunnel. Raises ConfigurationError.
    """
    if not isinstance(token, str) or len(token) < SHORTEST_TOKEN or not token.isascii():
        raise ConfigurationError(
            f"a dashboard needs a token of at least {SHORTEST_TOKEN} ASCII characters"
        )
    view = _View(locks, token)
    routes = [Route(f"/{path}", _static(*file)) for path, file in _FILES.items()]
    routes += [Route("/state", view.state), Route("/events", view.events)]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, public=public)])


class _Guard:
    """Lets through who is on this machine, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, *, public: bool) -> None:
        self._app = app
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                theirs = [h for h in message["headers"] if h[0].decode() not in _HEADERS]
                message = {**message, "headers": [*theirs, *ours]}
            await send(message)

        app = self._app
        if not self._public and not _is_local(scope.get("client")):
            app = PlainTextResponse("only from this machine", 403)
        await app(scope, receive, guarded)


def _is_local(client: tuple[str, int] | None) -> bool:
    if client is None:  # a Unix socket
        return True
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


class _View:
    """The data, for whoever has the token."""

    def __init__(self, locks: LockManager, token: str) -> None:
        self._token = token.encode()
        self._painter = Painter(locks)

    def _refusal(self, request: Request) -> Response | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = secrets.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and known:
            return None
        return PlainTextResponse("a token, please", 401, {"WWW-Authenticate": "Bearer"})

    async def state(self, request: Request) -> Response:
        """One picture as JSON."""
        if refusal := self._refusal(request):
            return refusal
        try:
            return JSONResponse(await self._painter.picture())
        except AsyncLockError as error:
            return JSONResponse({"error": type(error).__name__}, 503)

    async def events(self, request: Request) -> Response:
        """A picture per second as server-sent events, for some seconds."""
        if refusal := self._refusal(request):
            return refusal
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        end = time.monotonic() + STREAM
        while time.monotonic() < end:
            try:
                # JSON has no line breaks of its own, so a picture is one `data` line.
                text = json.dumps(await self._painter.picture())
            except AsyncLockError as error:
                yield f"event: failed\ndata: {type(error).__name__}\n\n".encode()
                return
            yield f"event: picture\ndata: {text}\n\n".encode()
            await asyncio.sleep(PACE)


def _static(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files(__package__) / name).read_bytes()

    async def serve(_request: Request) -> Response:
        return Response(content, media_type=media_type)

    return serve
