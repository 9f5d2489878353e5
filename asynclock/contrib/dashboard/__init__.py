"""A small live page of held locks, waiters and the health of the nodes (extra `[dashboard]`).

    app.mount("/locks", dashboard(locks, token=os.environ["LOCKS_TOKEN"]))

The page changes nothing. Data is shown only with the token, and only to viewers on this machine
unless `public` is set. `asynclock serve` shows the same page without an application.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib.resources import files

from ... import _settings

with _settings.imports("asynclock.contrib.dashboard", "dashboard"):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import AsyncLockError, ConfigurationError
from ...manager import LockManager
from .snapshots import Query, Snapshots

__all__ = ["dashboard"]

SHORTEST_TOKEN = 16
STREAM = 10.0
"""Maximum seconds of a stream of events; the page then opens the next one. A server that shuts down
waits for its streams, so they must be short."""
ALIVE = 1.0
"""Maximum seconds between two messages in a stream: the page reports a silent server."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names of this machine that are allowed in a Host header."""
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
_ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    b'<rect width="32" height="32" rx="7" fill="#175cd3"/>'
    b'<path d="M10 15v-4a6 6 0 0 1 12 0v4" fill="none" stroke="#fff" stroke-width="3"/>'
    b'<rect x="7" y="14" width="18" height="12" rx="3" fill="#fff"/></svg>'
)
_FILES: Mapping[str, tuple[str | bytes, str]] = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
    "icon.svg": (_ICON, "image/svg+xml"),
    "favicon.ico": (_ICON, "image/svg+xml"),  # asked for beside an answer without a page
}


def dashboard(
    locks: LockManager, *, token: str, public: bool = False, hosts: Sequence[str] = ()
) -> Starlette:
    """Make an application, to mount or to serve alone, which shows `locks` and changes nothing.

    Raises ConfigurationError.

    Args:
        locks: the manager to show.
        token: at least 16 ASCII characters. A viewer types it, or has it in the address after
            `#token=`, where no server and no log sees it.
        public: whether requests from other machines are answered as well; better leave it off and
            use a proxy or a tunnel.
        hosts: names under which a proxy serves the page. Without them, and unless `public`, only
            names of this machine are accepted, so that a foreign page can't make a browser send
            requests here under its own name (DNS rebinding).
    """
    if not isinstance(token, str) or len(token) < SHORTEST_TOKEN or not token.isascii():
        raise ConfigurationError(
            f"a dashboard needs a token of at least {SHORTEST_TOKEN} ASCII characters: "
            "token=, or the variable ASYNCLOCK_TOKEN of `asynclock serve`"
        )
    view = _View(locks, token)
    routes = [Route(f"/{path}", _static(*file)) for path, file in _FILES.items()]
    routes += [Route("/state", view.state), Route("/events", view.events)]
    guard = Middleware(_Guard, public=public, hosts=hosts)
    return Starlette(routes=routes, middleware=[guard])


class _Guard:
    """Accepts only requests from this machine (unless `public`), and adds the security headers."""

    def __init__(self, app: ASGIApp, *, public: bool, hosts: Sequence[str]) -> None:
        self._app = app
        self._public = public
        self._hosts = {host.lower() for host in hosts} | (set() if public else LOOPBACK)

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
        elif self._hosts and _host(scope) not in self._hosts:
            app = PlainTextResponse("this host is not served here", 421)
        await app(scope, receive, guarded)


def _host(scope: Scope) -> str:
    """Return the name in the Host header, without the port."""
    found = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return re.sub(r":\d*$", "", found.decode("latin-1")).lower()


def _is_local(client: tuple[str, int] | None) -> bool:
    if client is None:  # a Unix socket
        return True
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


class _View:
    """Answers requests for data that have the token."""

    def __init__(self, locks: LockManager, token: str) -> None:
        self._token = token.encode()
        self._snapshots = Snapshots(locks)

    def _refusal(self, request: Request) -> Response | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = secrets.compare_digest(given.strip().encode(), self._token)
        if scheme.lower() == "bearer" and known:
            return None
        return PlainTextResponse("a token, please", 401, {"WWW-Authenticate": "Bearer"})

    async def state(self, request: Request) -> Response:
        """Answer with one snapshot as JSON."""
        if refusal := self._refusal(request):
            return refusal
        try:
            return JSONResponse(await self._snapshots.take(Query.of(request.query_params)))
        except AsyncLockError as error:
            return JSONResponse({"error": type(error).__name__}, 503)

    async def events(self, request: Request) -> Response:
        """Answer with a snapshot per second as server-sent events, for a limited time."""
        if refusal := self._refusal(request):
            return refusal
        stream = self._stream(Query.of(request.query_params))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(self, query: Query) -> AsyncIterator[bytes]:
        end, at_once = time.monotonic() + STREAM, True
        while time.monotonic() < end:
            making = self._snapshots.take(query, at_once=at_once)
            snapshot, at_once = asyncio.ensure_future(making), False
            try:
                while not (await asyncio.wait([snapshot], timeout=ALIVE))[0]:
                    yield b": at work\n\n"
                # This JSON contains no line breaks, so a snapshot is one `data` line.
                text = json.dumps(snapshot.result())
            except AsyncLockError as error:
                yield f"event: failed\ndata: {type(error).__name__}\n\n".encode()
                return
            finally:
                snapshot.cancel()
            yield f"event: picture\ndata: {text}\n\n".encode()
            for _ in range(int(min(self._snapshots.pace, STREAM) / ALIVE)):
                await asyncio.sleep(ALIVE)
                yield b": at rest\n\n"


def _static(file: str | bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files(__package__) / file).read_bytes() if isinstance(file, str) else file

    async def serve(_request: Request) -> Response:
        return Response(content, media_type=media_type)

    return serve
