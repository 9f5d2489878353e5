"""Locks in aiohttp applications (extra `[aiohttp]`).

    app = web.Application()
    setup(app, "redis://localhost:6379")

    @routes.post("/items/{item}/reserve")
    @locked("items:{item}", timeout=2)
    async def reserve(request: web.Request, lease: Lease) -> web.Response:
        await stock.reserve(request.match_info["item"], fence=lease.fence)

`setup` opens and closes the manager with the application, and turns errors of locks into answers
(`application/problem+json`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, Unpack
from weakref import WeakKeyDictionary

import anyio

from .. import _settings

with _settings.imports("asynclock.contrib.aiohttp", "aiohttp"):
    from aiohttp import hdrs, web
    from aiohttp.typedefs import Handler, Middleware

from .._engine.lease import Lease
from .._nodes.deployment import NodeAddress
from .._primitives.base import LockSettings
from .._primitives.shared.register import DEFAULT_KEEP
from .._primitives.synchronized import check_name, name_of_route
from .._settings import ConnectSettings
from ..errors import AsyncLockError, ConfigurationError
from ..manager import LockManager
from . import _web
from ._web import (
    Contended,
    Idempotent,
    RouteLock,
    RouteSettings,
    Source,
    health_of,
    key_lease,
    layers,
    problem_of,
    requests_of,
)

__all__ = [
    "LOCKS",
    "cleanup_context",
    "health",
    "idempotent",
    "key_lease",
    "locked",
    "locks_of",
    "problems",
    "setup",
]

LOCKS: web.AppKey[LockManager] = web.AppKey("asynclock", LockManager)
"""The application's key for its manager."""
_SOURCE: web.AppKey[Source] = web.AppKey("asynclock_source", Source)
_SOCKET: Any = "asynclock_socket"
"""The request's key for its WebSocket."""
if hasattr(web, "RequestKey"):  # later versions warn about keys that are texts
    _SOCKET = web.RequestKey("asynclock_socket", web.WebSocketResponse)
S = TypeVar("S", bound=web.Request | web.View)
"""The argument of a handler: the request, or the view of a method."""
HandlerOf = Callable[[S], Awaitable[web.StreamResponse]]
Name = str | Callable[[web.Request], str]
_declared: WeakKeyDictionary[Callable[..., Any], RouteLock] = WeakKeyDictionary()
"""The lock of each decorated handler."""
PRESENCE_INTERVAL = 0.05
"""Seconds between checks whether the client is still connected: aiohttp doesn't report it, except
(with `handler_cancellation`) to every handler of the application."""
CLIENT_GONE = 499
"""The status in the access log for a client that disconnected before the answer, as in nginx."""


def setup(
    app: web.Application,
    *nodes: NodeAddress | LockManager,
    contended: Contended = 409,
    **settings: Unpack[ConnectSettings],
) -> None:
    """Give `app` locks on `nodes`; call this once, where the application is made.

    A second call replaces all of this, so that a test can use other nodes. Raises
    ConfigurationError, also while the application runs.

    Args:
        app: the application; `app[LOCKS]` is the manager while it runs.
        nodes: those of `asynclock.connect`; or one LockManager, which is closed when the
            application ends and opened again by the next one that gets it (aiohttp starts an
            application once, so a test makes a new one).
        contended: the status for a lock that another holder has: 409 or 423.
        settings: those of `asynclock.connect`; times are in seconds.
    """
    if _SOURCE in app:
        app[_SOURCE].replace(nodes, settings, contended)
        return
    source = app[_SOURCE] = Source(nodes, settings, contended)
    _check_new_routes(app)
    # Outside of the existing middlewares, which may use locks as well.
    outermost = _problems_of(lambda: source.contended)
    app.middlewares.insert(0, outermost)
    app.cleanup_ctx.append(_cleanup_context(source, outermost))
    app.on_response_prepare.append(_note_socket)
    app.on_shutdown.append(_end_waits)


def _check_order(app: web.Application, outermost: Middleware) -> None:
    if (found := app.middlewares[0]) is not outermost:
        raise ConfigurationError(
            f"the middleware {found!r} was inserted outside of the one of asynclock: an error "
            "of a lock would leave it without an answer. Append it to app.middlewares; or call "
            "cleanup_context() and problems() instead of setup(), and put them where you want them"
        )


def cleanup_context(
    *nodes: NodeAddress | LockManager, **settings: Unpack[ConnectSettings]
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Only open and close the manager, for `app.cleanup_ctx`.

    Args:
        nodes: those of `setup`.
        settings: those of `asynclock.connect`; times are in seconds.
    """
    return _cleanup_context(Source(nodes, settings))


def _cleanup_context(
    source: Source, outermost: Middleware | None = None
) -> Callable[[web.Application], AsyncIterator[None]]:
    async def run(app: web.Application) -> AsyncIterator[None]:
        if outermost is not None:
            _check_order(app, outermost)
        routes = app.router.routes()
        _check_names(routes)
        async with source.run(
            (_path(one), lock) for one in routes for lock in _locks_of(one)
        ) as locks:
            app[LOCKS] = locks
            yield

    return run


def _check_new_routes(app: web.Application) -> None:
    """Check the routes that `app` has, and from now on each new one."""
    _check_names(app.router.routes())
    for name in ("add_route", "add_get"):  # all ways to add a route call these
        setattr(app.router, name, _checking(getattr(app.router, name)))


def _checking(add: Callable[..., web.AbstractRoute]) -> Callable[..., web.AbstractRoute]:
    @functools.wraps(add)
    def add_and_check(*args: Any, **kwargs: Any) -> web.AbstractRoute:
        route = add(*args, **kwargs)
        _check_names([route])
        return route

    return add_and_check


def _check_names(routes: Iterable[web.AbstractRoute]) -> None:
    for route in routes:
        known = route.resource.get_info() if route.resource is not None else {}
        variables = known["pattern"].groupindex if "pattern" in known else ()
        for lock in _locks_of(route):
            lock.check(variables, f"route {route.method} {_path(route)}")


def _path(route: web.AbstractRoute) -> str:
    known = route.resource.get_info() if route.resource is not None else {}
    return str(known.get("formatter") or known.get("path"))


def _locks_of(route: web.AbstractRoute) -> list[RouteLock]:
    handlers: list[Any] = [route.handler]
    if isinstance(route.handler, type):
        handlers = [getattr(route.handler, method.lower(), None) for method in hdrs.METH_ALL]
    found = (_declared.get(layer) for handler in handlers for layer in layers(handler))
    return [lock for lock in found if lock is not None]


def problems(contended: Contended = 409) -> Middleware:
    """Make only the middleware that answers errors of locks.

    It must come before all middlewares that use locks.

    Args:
        contended: the status for a lock that another holder has: 409 or 423.
    """
    status = _web.checked(contended)
    return _problems_of(lambda: status)


def _response(body: bytes, status: int, headers: dict[str, str]) -> web.StreamResponse:
    return web.Response(body=body, status=status, headers=headers)


def _problems_of(contended: Callable[[], Contended]) -> Middleware:
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        sent_before = request.writer.output_size  # "100 Continue" may have been sent
        try:
            return await handler(request)
        except AsyncLockError as error:
            problem = problem_of(error, contended())
            socket = request.get(_SOCKET)
            if isinstance(socket, web.WebSocketResponse):
                await socket.close(code=problem.close_code, message=problem.kind.encode())
                return socket
            if request.writer.output_size != sent_before:
                raise  # a part of the response has been sent: aiohttp closes the connection
            return _response(*problem.answer)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        locks = _manager_of(request)
        with nullcontext() if locks is None else requests_of(locks).serve():
            return await answer(request, handler)

    return middleware


async def _end_waits(app: web.Application) -> None:
    requests_of(app[LOCKS]).end()


async def _note_socket(request: web.Request, response: web.StreamResponse) -> None:
    if isinstance(response, web.WebSocketResponse):
        request[_SOCKET] = response


def locks_of(request: web.Request) -> LockManager:
    """Return the manager of the application that serves `request`, or of one around it.

    Args:
        request: any request that this application, or one inside it, serves.
    """
    locks = _manager_of(request)
    if locks is None:
        raise ConfigurationError("no locks here: call asynclock.contrib.aiohttp.setup(app, …)")
    return locks


def _manager_of(request: web.Request) -> LockManager | None:
    apps = reversed(request.match_info.apps)
    return next((app[LOCKS] for app in apps if LOCKS in app), None)


def locked(
    name: Name, **settings: Unpack[RouteSettings]
) -> Callable[[Callable[[S, Lease], Awaitable[web.StreamResponse]]], HandlerOf[S]]:
    """Decorate a handler, which takes a request and a lease, to run while it holds mutex `name`.

    The handler is a function or a method of a `web.View`. A loss of the lease interrupts the
    handler and the client gets 500; a WebSocket is closed with 4500. If the client disconnects, the
    handler is cancelled, also while it waits for the lock. A WebSocket's handler is cancelled only
    while it waits: afterwards its socket tells it.

    Args:
        name: a template for the route's variables, or a function of the request. Adding a route
            whose path doesn't fit the template raises ConfigurationError.
        settings: those of `LockManager.lock` without `at_least`, and `retry_after`: seconds to
            advise a client that found the lock held (default: those of the error, an estimate).
    """
    check_name(name)
    lock = RouteLock(name, {**settings})

    def decorate(handler: Callable[[S, Lease], Awaitable[web.StreamResponse]]) -> HandlerOf[S]:
        @functools.wraps(handler)
        async def wrapper(first: S) -> web.StreamResponse:
            request = first.request if isinstance(first, web.View) else first
            locks = locks_of(request)
            wanted = name(request) if callable(name) else name_of_route(name, request.match_info)
            with while_present(request) as scope:
                async with await lock.acquire(locks, wanted) as lease:
                    return await handler(first, lease)
            if scope.cancelled_caught:
                return web.Response(status=CLIENT_GONE, reason="Client Closed Request")
            raise RuntimeError("the handler was left without an answer")

        _declared[wrapper] = lock
        return wrapper

    return decorate


@contextmanager
def while_present(request: web.Request) -> Iterator[anyio.CancelScope]:
    """Cancel the block when the client of the request disconnects, unless it sent a key.

    With an Idempotency-Key it comes back for the answer. Once a WebSocket has been accepted, this
    no longer looks: the handler notices the end itself, and may have to clean up then.
    """
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        upgrade = request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"
        if (upgrade and request.writer.output_size > 0) or key_lease() is not None:
            return
        transport = request.transport
        if transport is None or transport.is_closing():
            scope.cancel()
        else:
            timer = asyncio.get_running_loop().call_later(PRESENCE_INTERVAL, look)

    with anyio.CancelScope() as scope:
        look()
        try:
            yield scope
        finally:
            if timer is not None:
                timer.cancel()


def idempotent(
    *,
    keep: float = DEFAULT_KEEP,
    scope: Callable[[web.Request], str] | None = None,
    **settings: Unpack[LockSettings],
) -> Callable[[HandlerOf[S]], HandlerOf[S]]:
    """Decorate a handler, so that it answers once for each header `Idempotency-Key`.

    What is kept, and what other requests get: as by `asynclock.contrib.fastapi.idempotent`.

    Args:
        keep: seconds that an answer is kept.
        scope: a function of the request that returns whose key it is, such as the user's id.
        settings: those of `LockManager.lock` without `at_least`; `timeout` is 0 by default.
    """
    keyed = Idempotent(keep, scope, {"timeout": 0, **settings})

    def decorate(handler: HandlerOf[S]) -> HandlerOf[S]:
        @functools.wraps(handler)
        async def wrapper(first: S) -> web.StreamResponse:
            request = first.request if isinstance(first, web.View) else first
            locks, url, work = locks_of(request), request.path_qs, functools.partial(handler, first)
            return await keyed.answer(locks, request, url, request.read, work, _response)

        return wrapper

    return decorate


async def health(request: web.Request) -> web.Response:
    """Answer 200 while a quorum of the nodes can vote, else 503, with the health of each node.

        app.router.add_get("/health/locks", health)

    The answer contains the nodes' addresses, so don't show it to strangers.

    Args:
        request: the framework passes it.
    """
    status, body = health_of(locks_of(request).nodes())
    return web.json_response(body, status=status, headers={"Cache-Control": "no-store"})
