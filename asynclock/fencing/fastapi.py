"""A FastAPI dependency that rejects requests with a stale fence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from .. import _settings

with _settings.imports("asynclock.fencing.fastapi", "fastapi"):
    from fastapi import HTTPException, Request, WebSocket, params
    from fastapi.encoders import jsonable_encoder
    from starlette.requests import HTTPConnection

from .._primitives.synchronized import check_name, name_of_route
from . import FenceHeaderError, FenceStamp, FenceStore, StaleFenceError, check_fence, refusal

Name = str | Callable[[Request], str] | Callable[[WebSocket], str]


class FenceRefused(HTTPException):
    """A request has no usable fence; `detail` is the body, as in RFC 9457.

    With `asynclock.contrib.fastapi.setup` it becomes an `application/problem+json` answer. FastAPI
    by itself puts the body inside of `detail`, as that of each HTTPException.
    """

    def __init__(self, status: int, body: dict[str, object]) -> None:
        super().__init__(status, body)


def require_fence(
    store: FenceStore, name: str | Callable[[Request], str] | params.Depends
) -> Callable[[Request], Awaitable[FenceStamp]]:
    """Make a dependency for handlers that act under the lock `name`.

        fence = Depends(require_fence(store, "orders:{order_id}"))

        @app.put("/orders/{order_id}")
        async def put(order: Order, stamp: Annotated[FenceStamp, fence]) -> None: ...

    The dependency answers 428 without headers, 400 to malformed headers or those of another lock,
    412 to a stale fence. The check comes before the handler, and a newer holder may write before
    the handler does. So pass the stamp to the store that the handler writes to.

    Args:
        store: remembers the highest fence of each lock.
        name: a template for the route's path parameters, which have the types that the route
            declares, a function of the request, or `Depends(function)` with a function that
            takes what an endpoint may take, and returns the name.
    """

    async def check(request: Request, expected: str) -> FenceStamp:
        try:
            return await check_fence(request.headers, store, expected)
        except (FenceHeaderError, StaleFenceError) as error:
            status, body = refusal(error)
            raise FenceRefused(status, body) from error

    if isinstance(name, params.Depends):
        source: Any = name

        async def of_dependency(request: Request, expected: Any = source) -> FenceStamp:
            return await check(request, expected)

        return of_dependency

    name_of = namer(name)

    async def dependency(request: Request) -> FenceStamp:
        return await check(request, await name_of(request))

    return dependency


# ---- The name of a route's lock, made from the values that the route's function gets -------------
# A client may write one value in many ways: 42, 042, +42 and 42.0 are all the same `order_id: int`.
# A lock's name made from what the client wrote would be another lock for each of them.


def namer(name: Name) -> Callable[[HTTPConnection], Awaitable[str]]:
    """Return the dependency that names the lock of a request by a template or a function.

    Raises ConfigurationError if `name` is neither.
    """
    check_name(name, ", or Depends(function)")

    async def name_of(connection: HTTPConnection) -> str:
        if isinstance(name, str):
            return name_of_route(name, path_values(connection))
        return cast(Callable[[HTTPConnection], str], name)(connection)

    return name_of


def path_values(connection: HTTPConnection) -> dict[str, object]:
    """Return the variables of the path, each converted to the type that the route declares.

    Equal values get one form, that of JSON. A variable that the route doesn't declare, or whose
    value is refused (FastAPI answers 422), stays as the client wrote it.
    """
    dependant = getattr(connection.scope.get("route"), "dependant", None)
    declared = {} if dependant is None else {field.alias: field for field in _fields(dependant)}
    return {
        name: _converted(declared[name], value) if name in declared else value
        for name, value in connection.path_params.items()
    }


def _fields(dependant: Any) -> Iterator[Any]:
    # The function's own parameters come last: they win. A variable that a router's prefix brings
    # looks like a query parameter to the route.
    for inner in dependant.dependencies:
        yield from _fields(inner)
    yield from dependant.query_params
    yield from dependant.path_params


def _converted(field: Any, value: object) -> object:
    converted, errors = field.validate(value, {}, loc=("path", field.alias))
    return value if errors else jsonable_encoder(converted)
