"""An aiohttp middleware that rejects requests with a stale fence."""

from __future__ import annotations

from collections.abc import Callable

from .. import _settings

with _settings.imports("asynclock.fencing.aiohttp", "aiohttp"):
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

from .._primitives.synchronized import check_name, name_of_route
from . import FenceHeaderError, FenceStore, StaleFenceError, check_fence, refusal

# They change nothing, so a stale holder may send them (RFC 9110, 9.2.1).
_SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))


def fence_middleware(
    store: FenceStore, name: str | Callable[[web.Request], str | None]
) -> Middleware:
    """Make a middleware for an application whose unsafe methods act under the lock `name`.

        guard = fence_middleware(store, "orders:{id}")
        app.add_subapp("/orders", web.Application(middlewares=[guard]))

    GET, HEAD, OPTIONS and TRACE pass. The middleware answers 428
    without headers, 400 to malformed headers or those of another lock, 412 to a stale fence. The
    check comes before the handler, and a newer holder may write before the handler does. So pass
    the stamp (`read_fence_headers(request.headers)`) to the store that the handler writes to.

    Args:
        store: remembers the highest fence of each lock.
        name: a template for the route's variables, or a function of the request, which returns None
            if the request needs no lock.
    """
    check_name(name)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        nowhere = request.match_info.http_exception is not None
        if nowhere or request.method in _SAFE:
            return await handler(request)
        expected = name(request) if callable(name) else name_of_route(name, request.match_info)
        if expected is None:
            return await handler(request)
        try:
            await check_fence(request.headers, store, expected)
        except (FenceHeaderError, StaleFenceError) as error:
            status, body = refusal(error)
            return web.json_response(body, status=status, content_type="application/problem+json")
        return await handler(request)

    return middleware
