"""Locks in FastAPI applications (extra `[fastapi]`).

    app = FastAPI()
    setup(app, "redis://localhost:6379")

    @app.post("/orders/{order_id}/ship")
    async def ship(
        order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=2)]
    ) -> None:
        await orders.ship(order_id, fence=lease.fence)

`setup` does three things: the manager lives as long as the application, errors of locks become
answers (`application/problem+json`), and a request under a lock is ended when its client has gone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, ParamSpec, TypeVar, Unpack, cast

try:
    from fastapi import Depends, FastAPI, Request
    from starlette.responses import JSONResponse, Response
except ImportError as missing:
    raise ImportError(f"{missing}: pip install asynclock[fastapi]") from missing

from .._engine.lease import Lease
from .._primitives.catalogue import LockSettings
from ..errors import AsyncLockError, ConfigurationError
from ..manager import LockManager, connect
from . import _problems
from ._disconnect import KEY, CancelOnDisconnect, Presence
from ._problems import Contended, health_of, name_for, problem_of

__all__ = ["Locked", "Locks", "health", "lifespan", "locked", "locks_of", "setup"]

P = ParamSpec("P")
R = TypeVar("R")
Name = str | Callable[[Request], str]


def setup(app: FastAPI, *nodes: object, contended: Contended = 409, **settings: Any) -> None:
    """Give `app` locks on `nodes`: call it once, where the application is made.

    `nodes` and `settings` are those of `asynclock.connect`; or the only node is a LockManager,
    which then is closed when the application ends. A lifespan of the application runs inside
    that of the locks. `contended`: the status for a lock that somebody else has, 409 or 423.
    Raises ConfigurationError.
    """
    outer, inner = lifespan(*nodes, **settings), app.router.lifespan_context

    @asynccontextmanager
    async def both(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with outer(app) as ours, inner(app) as theirs:
            yield {**ours, **(theirs or {})}

    status = _problems.checked(contended)

    async def answer(_request: Request, error: Exception) -> Response:
        return _response(cast(AsyncLockError, error), status)

    app.router.lifespan_context = both
    app.add_exception_handler(AsyncLockError, answer)
    app.add_middleware(CancelOnDisconnect)


def lifespan(
    *nodes: object, **settings: Any
) -> Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]:
    """Only the manager's life, for an application that composes its own lifespan.

    Arguments as of `setup`. Each start makes a new manager, unless one is given.
    """
    given = nodes[0] if len(nodes) == 1 and isinstance(nodes[0], LockManager) else None
    if given is not None and settings:
        raise ConfigurationError(f"a LockManager has its settings already: {sorted(settings)}")

    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with given or connect(*nodes, **settings) as locks:
            app.state.asynclock = locks
            yield {_problems.KEY: locks}

    return run


def locks_of(request: Request) -> LockManager:
    """The manager of the application that serves `request`, also from inside a mounted one."""
    locks = getattr(request.state, _problems.KEY, None) or getattr(
        request.app.state, _problems.KEY, None
    )
    if not isinstance(locks, LockManager):
        raise ConfigurationError(
            "no locks here: call asynclock.contrib.fastapi.setup(app, …), and let a server "
            "(or `with TestClient(app)`) run the application's lifespan"
        )
    return locks


Locks = Annotated[LockManager, Depends(locks_of)]
"""The manager as a parameter: `async def handler(locks: Locks)`."""


def Locked(name: Name, **settings: Unpack[LockSettings]) -> Any:
    """A dependency that holds the mutex `name` while the endpoint's function runs.

    async def ship(order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=2)])

    `name` is filled in with the path parameters, or is a function of the request. Settings as of
    `LockManager.lock`. It is released before the answer is sent (a streamed body is sent without
    it). If the lease is lost, an `async def` endpoint is interrupted, and the client gets 500
    instead of what the endpoint returned. If the client goes away, the request is cancelled, while
    it waits as well as under the lock; functions that run in threads are waited for, not cancelled.
    """

    async def hold(request: Request) -> AsyncIterator[Lease]:
        lock = locks_of(request).lock(name_for(name, request, request.path_params), **settings)
        presence = request.scope.get(KEY)
        if isinstance(presence, Presence):
            presence.insist()
        async with lock as lease:
            yield lease

    return Depends(hold, scope="function")


def locked(
    name: Name, **settings: Unpack[LockSettings]
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate an endpoint: `Locked` for one that needs no lease. It stands below the route.

    @app.post("/orders/{order_id}/ship")
    @locked("orders:{order_id}", timeout=2)
    async def ship(order_id: int) -> None: ...
    """
    dependency = Locked(name, **settings)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"locked needs an async function; {function!r} is none")
        # As the framework reads it: with what the annotations of its own module mean.
        signature = inspect.signature(function, eval_str=True)
        ours = inspect.Parameter(
            "asynclock_lease", inspect.Parameter.KEYWORD_ONLY, default=dependency
        )
        parameters = list(signature.parameters.values())
        rest = [p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD]
        shown = [*(p for p in parameters if p not in rest), ours, *rest]

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            kwargs.pop(ours.name, None)
            return await function(*args, **kwargs)

        wrapper.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # functions have it, their type doesn't say
        return wrapper

    return decorate


async def health(request: Request) -> JSONResponse:
    """An endpoint: 200 while a quorum of the nodes can vote, else 503; and how each node is.

    app.add_api_route("/health/locks", health)

    It names the nodes' addresses: not for strangers.
    """
    status, body = health_of(locks_of(request).nodes())
    return JSONResponse(body, status, headers={"Cache-Control": "no-store"})


def _response(error: AsyncLockError, contended: Contended) -> Response:
    problem = problem_of(error, contended)
    return Response(
        problem.body, problem.status, headers=problem.headers, media_type=_problems.MEDIA_TYPE
    )
