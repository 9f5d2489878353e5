"""The name of a FastAPI route's lock, made from the values that the route's function gets.

A client may write one value in many ways: 42, 042, +42 and 42.0 are all the same `order_id: int`.
A lock's name made from what the client wrote would be another lock for each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

from fastapi.encoders import jsonable_encoder
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket

from ._naming import check_name, fill_in

Name = str | Callable[[Request], str] | Callable[[WebSocket], str]


def namer(name: Name) -> Callable[[HTTPConnection], Awaitable[str]]:
    """Return the dependency that names the lock of a request by a template or a function.

    Raises ConfigurationError if `name` is neither.
    """
    check_name(name, ", or Depends(function)")

    async def name_of(connection: HTTPConnection) -> str:
        if isinstance(name, str):
            return fill_in(name, path_values(connection))
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
