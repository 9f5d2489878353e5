"""A FastAPI dependency that rejects requests with a stale fence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .. import _extras

with _extras.imports("asynclock.fencing.fastapi", "fastapi"):
    from fastapi import HTTPException, Request, params

from ._path_values import namer
from .headers import FenceHeaderError, check_fence, refusal
from .stamp import FenceStamp, FenceStore, StaleFenceError


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
