"""Locks in aiohttp applications (extra `[aiohttp]`).

    app = web.Application()
    setup(app, "redis://localhost:6379")

    @routes.post("/items/{item}/reserve")
    @locked("items:{item}", timeout=2)
    async def reserve(request: web.Request, lease: Lease) -> web.Response:
        await stock.reserve(request.match_info["item"], fence=lease.fence)

`setup` does two things: the manager lives as long as the application, and errors of locks become
answers (`application/problem+json`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Unpack

import anyio

try:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware
except ImportError as missing:
    raise ImportError(f"{missing}: pip install asynclock[aiohttp]") from missing

from .._engine.lease import Lease
from .._primitives.catalogue import LockSettings
from ..errors import AsyncLockError, ConfigurationError
from ..manager import LockManager, connect
from . import _problems
from ._problems import Contended, health_of, name_for, problem_of

__all__ = ["LOCKS", "cleanup_context", "health", "locked", "locks_of", "problems", "setup"]

LOCKS: web.AppKey[LockManager] = web.AppKey("asynclock", LockManager)
"""Under this key the application holds its manager."""
LockedHandler = Callable[[web.Request, Lease], Awaitable[web.StreamResponse]]
LOOK = 0.05
"""Seconds between looks at whether the client is still there: aiohttp tells nobody, or (with
`handler_cancellation`) every handler of the application."""
GONE = 499
"""The status in the access log for a client that did not wait for it, as nginx has it."""


def setup(
    app: web.Application, *nodes: object, contended: Contended = 409, **settings: Any
) -> None:
    """Give `app` locks on `nodes`: call it once, where the application is made.

    `nodes` and `settings` are those of `asynclock.connect`; or the only node is a LockManager,
    which then is closed when the application ends. `contended`: the status for a lock that
    somebody else has, 409 or 423. Raises ConfigurationError.
    """
    app.cleanup_ctx.append(cleanup_context(*nodes, **settings))
    app.middlewares.append(problems(contended))


def cleanup_context(
    *nodes: object, **settings: Any
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Only the manager's life, for `app.cleanup_ctx`. Arguments as of `setup`."""
    given = nodes[0] if len(nodes) == 1 and isinstance(nodes[0], LockManager) else None
    if given is not None and settings:
        raise ConfigurationError(f"a LockManager has its settings already: {sorted(settings)}")

    async def run(app: web.Application) -> AsyncIterator[None]:
        async with given or connect(*nodes, **settings) as locks:
            app[LOCKS] = locks
            yield

    return run


def problems(contended: Contended = 409) -> Middleware:
    """Only the middleware that answers when an error of a lock ended a handler."""
    status = _problems.checked(contended)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except AsyncLockError as error:
            problem = problem_of(error, status)
            return web.Response(
                body=problem.body,
                status=problem.status,
                headers=problem.headers,
                content_type=_problems.MEDIA_TYPE,
            )

    return middleware


def locks_of(request: web.Request) -> LockManager:
    """The manager of the application that serves `request`, or of one around it."""
    for app in reversed(request.match_info.apps):
        if LOCKS in app:
            return app[LOCKS]
    raise ConfigurationError("no locks here: call asynclock.contrib.aiohttp.setup(app, …)")


def locked(
    name: str | Callable[[web.Request], str], **settings: Unpack[LockSettings]
) -> Callable[[LockedHandler], Handler]:
    """Decorate a handler of a request and a lease: it runs while the mutex `name` is held.

    `name` is filled in with the route's variables, or is a function of the request. Settings as of
    `LockManager.lock`. If the lease is lost, the handler is interrupted and the client gets 500. If
    the client goes away, the handler is cancelled, while it waits as well as under the lock.
    """

    def decorate(handler: LockedHandler) -> Handler:
        @functools.wraps(handler)
        async def wrapper(request: web.Request) -> web.StreamResponse:
            lock = locks_of(request).lock(name_for(name, request, request.match_info), **settings)
            with _WhilePresent(request) as scope:
                async with lock as lease:
                    return await handler(request, lease)
            if scope.cancelled_caught:
                return web.Response(status=GONE, reason="Client Closed Request")
            raise RuntimeError("the handler was left without an answer")

        return wrapper

    return decorate


class _WhilePresent:
    """A cancel scope that is cancelled when the client of a request has gone."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._scope = anyio.CancelScope()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> anyio.CancelScope:
        self._scope.__enter__()
        self._look()
        return self._scope

    def __exit__(self, *details: Any) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return self._scope.__exit__(*details)

    def _look(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            self._scope.cancel()
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)


async def health(request: web.Request) -> web.Response:
    """A handler: 200 while a quorum of the nodes can vote, else 503; and how each node is.

    app.router.add_get("/health/locks", health)

    It names the nodes' addresses: not for strangers.
    """
    status, body = health_of(locks_of(request).nodes())
    return web.json_response(body, status=status, headers={"Cache-Control": "no-store"})
