"""Locks in FastAPI applications (extra `[fastapi]`).

    app = FastAPI()
    setup(app, "redis://localhost:6379")

    @app.post("/orders/{order_id}/ship")
    async def ship(
        order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}", timeout=2)]
    ) -> None:
        await orders.ship(order_id, fence=lease.fence)

`setup` opens and closes the manager with the application, turns errors of locks into answers
(`application/problem+json`), and cancels a request under a lock when its client disconnects.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, ParamSpec, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary, WeakSet

from .. import _settings

with _settings.imports("asynclock.contrib.fastapi", "fastapi"):
    import fastapi.routing
    from fastapi import Depends, FastAPI, params
    from fastapi.routing import APIRoute
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import BaseRoute, Mount
    from starlette.types import ASGIApp
    from starlette.websockets import WebSocketClose, WebSocketState

from .._engine.lease import Lease
from .._nodes.deployment import NodeAddress
from .._primitives.base import LockSettings
from .._primitives.shared.register import DEFAULT_KEEP
from .._settings import ConnectSettings
from ..errors import AsyncLockError, ConfigurationError
from ..fencing.fastapi import FenceRefused, Name, namer
from ..manager import LockManager
from . import _web
from ._middleware import PRESENCE, AnswerErrors, CancelOnDisconnect, Presence, refuse_start
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
)

__all__ = [
    "Locked",
    "Locks",
    "health",
    "idempotent",
    "key_lease",
    "lifespan",
    "locked",
    "locks_of",
    "setup",
]

P = ParamSpec("P")
R = TypeVar("R")


def setup(
    app: FastAPI,
    *nodes: NodeAddress | LockManager,
    contended: Contended = 409,
    **settings: Unpack[ConnectSettings],
) -> None:
    """Give `app` locks on `nodes`; call this once, where the application is made.

    A lifespan of the application runs inside that of the locks. A second call replaces all of
    this, so that a test can use other nodes. Raises ConfigurationError, also while the application
    runs.

    Args:
        app: the application; its `state.asynclock` is the manager while it runs.
        nodes: those of `asynclock.connect`; or one LockManager, which is closed when the
            application ends and opened again if it starts again.
        contended: the status for a lock that another holder has: 409 or 423.
        settings: those of `asynclock.connect`; times are in seconds.
    """
    found = getattr(app.state, "asynclock_source", None)
    if isinstance(found, Source):
        found.replace(nodes, settings, contended)
        return
    if app.middleware_stack is not None:
        raise ConfigurationError("the application has started: call setup before")
    source = app.state.asynclock_source = Source(nodes, settings, contended)
    outer, inner = _lifespan(source), app.router.lifespan_context

    @asynccontextmanager
    async def both(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with outer(app) as ours, inner(app) as theirs:
            yield {**ours, **(theirs or {})}

    app.router.lifespan_context = both
    _answer_errors(app, source)
    _check_new_routes(app)
    _surround(app, source)


def _answer_errors(app: Starlette, source: Source) -> None:
    async def answer(connection: HTTPConnection, error: Exception) -> ASGIApp:
        return _response(connection, cast(AsyncLockError, error), source.contended)

    async def refuse(_: HTTPConnection, error: FenceRefused) -> ASGIApp:
        return JSONResponse(error.detail, error.status_code, media_type=_web.MEDIA_TYPE)

    app.add_exception_handler(AsyncLockError, cast(Any, answer))
    app.add_exception_handler(FenceRefused, cast(Any, refuse))
    if isinstance(app, FastAPI):
        _wrap_openapi(app, lambda: source.contended)


def _surround(app: FastAPI, source: Source) -> None:
    """Keep our middleware outside of all others, in whatever order they are added."""
    build = app.build_middleware_stack
    ours = [
        Middleware(AnswerErrors, app.state, app.exception_handlers),
        Middleware(CancelOnDisconnect),
    ]

    def build_around() -> ASGIApp:
        try:
            _check_names(app.routes)
            _check_order(app.routes)
            _check_keys(app.routes)
        except ConfigurationError as error:
            return refuse_start(error)
        for inner in _mounted(app.routes):
            if AsyncLockError not in inner.exception_handlers:
                _answer_errors(inner, source)
        app.user_middleware = [*ours, *(one for one in app.user_middleware if one not in ours)]
        return build()

    app.build_middleware_stack = build_around  # type: ignore[method-assign]


def lifespan(
    *nodes: NodeAddress | LockManager, **settings: Unpack[ConnectSettings]
) -> Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]:
    """Only open and close the manager, for an application that composes its own lifespan.

    Each start makes a new manager, unless one was passed.

    Args:
        nodes: those of `setup`.
        settings: those of `asynclock.connect`; times are in seconds.
    """
    return _lifespan(Source(nodes, settings))


def _lifespan(source: Source) -> Callable[[FastAPI], AbstractAsyncContextManager[dict[str, Any]]]:
    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with source.run(_locked_routes(app.routes)) as locks:
            app.state.asynclock = locks
            yield {_web.KEY: locks}

    return run


def locks_of(connection: HTTPConnection) -> LockManager:
    """Return the manager of the application that serves this connection, or of one around it.

    Args:
        connection: a Request or a WebSocket.
    """
    locks = getattr(connection.state, _web.KEY, None) or getattr(
        connection.app.state, _web.KEY, None
    )
    if not isinstance(locks, LockManager):
        raise ConfigurationError(
            "no locks here: call asynclock.contrib.fastapi.setup(app, …), and let a server "
            "(or `with TestClient(app)`) run the application's lifespan"
        )
    return locks


Locks = Annotated[LockManager, Depends(locks_of)]
"""The annotation of a parameter that gets the manager: `async def handler(locks: Locks)`."""


def Locked(  # noqa: N802 - as `Depends`
    name: Name | params.Depends, **settings: Unpack[RouteSettings]
) -> Any:
    """Make a dependency that holds the mutex `name` while the endpoint's function runs.

        async def ship(order_id: int, lease: Annotated[Lease, Locked("orders:{order_id}")])

    The lock is released before the answer is sent (a streamed body is sent without the lock). A
    loss of the lease interrupts an `async def` endpoint, and the client gets 500 instead of the
    endpoint's result; a WebSocket is closed with 4500. If the client disconnects, the request is
    cancelled, while it waits for the lock as well as under it. A WebSocket's function is not
    cancelled: it learns of the end when it receives or sends. Functions in threads are not
    cancelled either: the request waits for their end.

    Args:
        name: a template for the path parameters, a function of the request, or
            `Depends(function)` with a function, async or not, that returns the name and takes what
            an endpoint may take: a body, a query, other dependencies. A parameter has the type
            that the route declares: with `order_id: int`, 042 and 42 are one name. Making a route
            whose path doesn't fit the template raises ConfigurationError.
        settings: those of `LockManager.lock` without `at_least`, and `retry_after`: seconds to
            advise a client that found the lock held (default: those of the error, an estimate).
    """
    source: Any = name if isinstance(name, params.Depends) else Depends(namer(name))
    declared = RouteLock(name, {**settings})

    async def hold(
        connection: HTTPConnection, locks: Locks, wanted: Any = source
    ) -> AsyncIterator[Lease]:
        presence = connection.scope.get(PRESENCE)
        if isinstance(presence, Presence) and key_lease() is None:
            presence.insist()  # with a key, the client comes back for the answer
        async with await declared.acquire(locks, wanted) as lease:
            yield lease

    _declared[hold] = declared
    return Depends(hold, scope="function")


def locked(
    name: Name | params.Depends, **settings: Unpack[RouteSettings]
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate an endpoint that needs no lease; put this below the route's decorator.

        @app.post("/orders/{order_id}/ship")
        @locked("orders:{order_id}", timeout=2)
        async def ship(order_id: int) -> None: ...

    Above the route's decorator it has no effect. An application that serves the function only
    without this lock raises ConfigurationError when it starts. A `def` endpoint is refused at
    once: use `Locked`.

    Args:
        name: as for `Locked`.
        settings: as for `Locked`.
    """
    dependency = Locked(name, **settings)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"locked needs an async function; {function!r} is not one: for a `def` endpoint "
                "use a parameter, Annotated[Lease, Locked(...)]"
            )
        # Read like the framework does: annotations are resolved in the function's own module.
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
        _note_lock(function, wrapper)
        return wrapper

    return decorate


def idempotent(
    *,
    keep: float = DEFAULT_KEEP,
    scope: Callable[[Request], str] | None = None,
    **settings: Unpack[LockSettings],
) -> type[APIRoute]:
    """Make a class of routes that answer once for each header `Idempotency-Key`.

        payments = APIRouter(route_class=idempotent(scope=user_of))

    The first answer is kept: its status, content type and body, of at most 65,000 bytes. The same
    request (method, path, query and body) gets that answer. Another request with the key gets 422.
    While the first one runs, others get 409 with Retry-After; after a stream or a larger body, 410.
    An exception and a status from 500 keep nothing: the next request tries again. An empty key gets
    400. GET, HEAD, OPTIONS, TRACE and requests without a key are answered as usual. The promise is
    that of `LockManager.once`.

    Args:
        keep: seconds that an answer is kept.
        scope: a function of the request that returns whose key it is, such as the user's id.
            Without one, a client that knows another one's key and request gets the answer, too.
            An answer is repeated before dependencies run, so it isn't kept from strangers by one.
        settings: those of `LockManager.lock` without `at_least`; `timeout` is 0 by default.
    """
    keyed = Idempotent(keep, scope, {"timeout": 0, **settings})

    class Route(APIRoute):
        answers_once = True

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def answer(request: Request) -> Response:
                locks, work = locks_of(request), functools.partial(handle, request)
                url = f"{request.url.path}?{request.url.query}"
                return await keyed.answer(locks, request, url, request.body, work, Response)

            return answer

    return Route


async def health(request: HTTPConnection) -> JSONResponse:
    """Answer 200 while a quorum of the nodes can vote, else 503, with the health of each node.

        app.add_api_route("/health/locks", health)

    The answer contains the nodes' addresses, so don't show it to strangers.

    Args:
        request: the framework passes it.
    """
    status, body = health_of(locks_of(request).nodes())
    return JSONResponse(body, status, headers={"Cache-Control": "no-store"})


def _response(connection: HTTPConnection, error: AsyncLockError, contended: Contended) -> ASGIApp:
    problem = problem_of(error, contended)
    if connection.scope["type"] == "websocket" and not _can_deny(connection):
        return WebSocketClose(problem.close_code, problem.kind)
    return Response(*problem.answer)


def _can_deny(connection: HTTPConnection) -> bool:
    """Return whether the handshake of a WebSocket can still be answered like a request."""
    waits = getattr(connection, "application_state", None) is WebSocketState.CONNECTING
    return waits and "websocket.http.response" in connection.scope.get("extensions", {})


# ---- Checks the locks of routes when a route is made, and describes them in OpenAPI --------------


_declared: WeakKeyDictionary[Callable[..., Any], RouteLock] = WeakKeyDictionary()
"""The lock of each dependency that `Locked` made."""

_with_lock: WeakKeyDictionary[Callable[..., Any], WeakSet[Callable[..., Any]]]
_with_lock = WeakKeyDictionary()
"""For each function that `locked` decorates, the functions with a lock that it made."""

_BY_DEPENDENCY = ", and Depends(function) with a function that takes what an endpoint may take"
"""How to name a lock after values that the path doesn't have; the end of an error's sentence."""
_KEYED_ANSWERS = {400: "unusable-key", 409: "in-progress", 410: "unkept-answer", 422: "reused-key"}
"""What OpenAPI tells of routes that answer once for each key."""
_KEY_PARAMETER = {"name": _web.HEADER, "in": "header", "schema": {"type": "string"}}
_ADDERS = ("add_api_route", "add_api_websocket_route", "include_router", "mount")
"""The methods of a router that every way to add a route ends up calling."""


def _check_new_routes(app: FastAPI) -> None:
    """Check the routes that `app` has, and from now on each new one."""
    _check_names(app.routes)
    for name in _ADDERS:
        setattr(app.router, name, _checking(app, getattr(app.router, name)))


def _checking(app: FastAPI, add: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(add)
    def add_and_check(*args: Any, **kwargs: Any) -> None:
        before = len(app.routes)
        add(*args, **kwargs)
        _check_names(app.routes[before:])

    return add_and_check


def _check_names(routes: Sequence[BaseRoute], around: Collection[str] = ()) -> None:
    """Raise ConfigurationError if a lock's name needs a variable that its path does not have.

    `around` has the variables of the path under which the routes are mounted.
    """
    for route in _flat(routes):
        variables = {*around, *getattr(route, "param_convertors", ())}
        if _is_mount(route):
            _check_names(_below(route), variables - {"path"})  # Mount itself adds "path"
        elif getattr(route, "dependant", None) is not None:
            for lock in _locks_of(route.dependant):
                lock.check(variables, f"route {route.path_format}", _BY_DEPENDENCY)


def _locked_routes(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, RouteLock]]:
    """Yield each lock with the path of its route."""
    for route in _endpoints(routes):
        yield from ((route.path_format, lock) for lock in _locks_of(route.dependant))


def _check_order(routes: Sequence[BaseRoute]) -> None:
    """Raise ConfigurationError if `locked` stands above a route, which then takes no lock.

    An application may serve a function both with a lock and without.
    """
    paths = {
        route.dependant.call: route.path_format
        for route in _endpoints(routes)
        if inspect.isfunction(route.dependant.call)
    }
    served = {function for endpoint in paths for function in layers(endpoint)}
    for endpoint, path in paths.items():
        if endpoint in _with_lock and served.isdisjoint(_with_lock[endpoint]):
            raise ConfigurationError(
                f"route {path} takes no lock: put @locked below the route's decorator, directly "
                f"above {endpoint.__name__}"
            )


def _check_keys(routes: Sequence[BaseRoute]) -> None:
    """Raise ConfigurationError if an endpoint wants a key's lease, but its routes ignore keys."""
    plain, keyed = list[Any](), list[Any]()
    for route in _endpoints(routes):
        (keyed if _answers_once(route) else plain).append(route)
    for route in plain:
        wants = any(inner.call is key_lease for inner in route.dependant.dependencies)
        if wants and all(route.dependant.call != other.dependant.call for other in keyed):
            raise ConfigurationError(
                f"route {route.path_format} ignores {_web.HEADER}, so key_lease has no lease for "
                "it: add the endpoint to APIRouter(route_class=idempotent(...)), not to the "
                "application or to another router"
            )


def _note_lock(function: Callable[..., Any], with_lock: Callable[..., Any]) -> None:
    """Note for `_check_order` that `locked` made `with_lock` of `function`."""
    for layer in layers(function):
        _with_lock.setdefault(layer, WeakSet()).add(with_lock)


def _endpoints(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    """Yield the routes that call an endpoint with its dependencies, those of mounts too."""
    for route in _flat(routes):
        if _is_mount(route):
            yield from _endpoints(_below(route))
        elif getattr(route, "dependant", None) is not None:
            yield route


def _answers_once(route: Any) -> bool:
    return hasattr(getattr(route, "original_route", route), "answers_once")


def _mounted(routes: Sequence[BaseRoute]) -> Iterator[Starlette]:
    """Yield the applications that are mounted among `routes`, directly or inside others."""
    for route in _flat(routes):
        if _is_mount(route):
            if isinstance(route.app, Starlette):
                yield route.app
            yield from _mounted(_below(route))


def _is_mount(route: Any) -> bool:
    return isinstance(getattr(route, "original_route", route), Mount)


def _below(mount: Any) -> Sequence[BaseRoute]:
    # In applications of other frameworks, `routes` may be something else.
    return mount.routes if isinstance(mount.routes, list) else ()


def _describe(schema: dict[str, Any], routes: Sequence[BaseRoute], contended: int) -> None:
    """Add the answers of routes under a lock, or that answer once for each key, to a schema."""
    for route in _flat(routes):
        dependant = getattr(route, "dependant", None)
        locked = dependant is not None and any(_locks_of(dependant))
        keyed = _answers_once(route)
        for method in getattr(route, "methods", None) or ():
            operation = schema["paths"].get(route.path_format, {}).get(method.lower())
            if operation is None:  # not in the schema
                continue
            answers = {contended: "contended"} if locked else {}
            if keyed and method not in _web.SAFE:
                answers = {**_KEYED_ANSWERS, **answers}
                parameters = operation.setdefault("parameters", [])
                if all(one.get("name", "").lower() != _web.HEADER.lower() for one in parameters):
                    parameters.append(_KEY_PARAMETER)
            for status, kind in {**answers, 503: "unavailable"}.items() if answers else ():
                text = f"{HTTPStatus(status).phrase}: urn:asynclock:{kind}"
                answer = {"description": text, **_web.schema_of(status, kind)}
                operation.setdefault("responses", {}).setdefault(str(status), answer)


def _flat(routes: Iterable[BaseRoute]) -> Iterator[Any]:
    # Later versions keep included routers as objects and have a function that lists their routes.
    flatten: Callable[..., Iterator[Any]] = getattr(fastapi.routing, "iter_route_contexts", iter)
    return flatten(routes)


def _locks_of(dependant: Any) -> Iterator[RouteLock]:
    if inspect.isfunction(dependant.call) and dependant.call in _declared:
        yield _declared[dependant.call]
    for inner in dependant.dependencies:
        yield from _locks_of(inner)


def _wrap_openapi(app: FastAPI, contended: Callable[[], int]) -> None:
    """Make `app.openapi` describe the answers of locks as well."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        _describe(schema, app.routes, contended())
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
