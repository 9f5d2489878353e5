"""The two ways to use a call of `acquire`: `await` it, or enter it with `async with`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Enterable(Protocol):
    """A lease of some kind."""

    @property
    def task(self) -> asyncio.Task[Any] | None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


L = TypeVar("L", bound=Enterable)


class Acquiring(ABC, Generic[L]):
    """A call of `acquire` that is not made yet: awaited it gives the lease, entered it holds it."""

    __slots__ = ("_entered",)

    _entered: L | None
    """The lease that an `async with` on this call holds.

    None at first: those who inherit set that, as one more __init__ would slow each acquire down.
    """

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, L]:
        """Make the call."""

    async def __aenter__(self) -> L:
        if self._entered is not None:
            raise RuntimeError("this acquire has been entered already")
        self._entered = await (await self).__aenter__()
        return self._entered

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, self._entered = self._entered, None
        if lease is None:
            raise RuntimeError("this acquire was never entered")
        await lease.__aexit__(kind, error, trace)


class Deferred(Acquiring[L]):
    """The call of a function that gives a lease."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Coroutine[Any, Any, L]]) -> None:
        self._entered = None
        self._make = make

    def __await__(self) -> Generator[Any, Any, L]:
        return self._make().__await__()
