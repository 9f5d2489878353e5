"""The result of a call of `acquire`: `await` it, enter it with `async with`, or make a task of it.

To Python the result is a coroutine, so it can be passed wherever a coroutine can. Most acquires
only use `await`, which takes a generator from `__await__` and needs nothing else from this module.
Callers that drive a coroutine step by step, such as a task, use `send`.
"""

from __future__ import annotations

import asyncio
import warnings
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Never, Protocol, Self, TypeVar

from .. import _clock


class Enterable(Protocol):
    """A lease of any kind, as far as `async with` needs it."""

    @property
    def task(self) -> asyncio.Task[Any] | None: ...
    async def __aenter__(self) -> Self: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Coroutine[Any, Any, None]: ...


L_co = TypeVar("L_co", bound=Enterable, covariant=True)


class Use(Enum):
    """The type of UNUSED, which marks a call that has not been awaited yet."""

    NONE = "none"


UNUSED: Final[Literal[Use.NONE]] = Use.NONE
REUSED: Final = "cannot reuse already awaited acquire"


class AcquireContext(Coroutine[Any, Any, L_co]):
    """One call of `acquire`: `await` it to get the lease, or enter it with `async with`.

    The call is a coroutine: `asyncio.create_task`, `gather`, `wait_for` and the like accept it. It
    sends nothing before it is awaited, but its `timeout` counts from the call. It can be used once;
    the second use raises RuntimeError. Python warns ("was never awaited") if it is never used.
    """

    __slots__ = ("_entered", "_steps")

    __name__ = "acquire"
    """The name that a task shows for this coroutine."""
    _entered: L_co | Literal[Use.NONE] | None
    """The lease that an `async with` on this call holds; UNUSED at first, then None.

    Subclasses set UNUSED: one more __init__ would slow each acquire down.
    """
    _steps: Generator[Any, Any, L_co] | None
    """The generator that `send` drives; unset while none is being driven."""

    @property
    @abstractmethod
    def _name(self) -> str:
        """The name of the lock, for messages."""

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, L_co]:
        """Make the call. Raises RuntimeError unless `_entered` is UNUSED, and sets it to None."""

    def __repr__(self) -> str:
        return f"<AcquireContext of {self._name!r}>"

    # as a coroutine

    def send(self, value: Any, /) -> Any:
        """Run the call until it awaits something, like `coroutine.send`."""
        steps = self._driven()
        try:
            return steps.send(value)
        except BaseException:
            self._steps = None
            raise

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        """Raise an exception at the point where the call waits, like `coroutine.throw`."""
        steps = self._driven()
        if self._entered is UNUSED:
            self._entered = None
        error = kind if value is None and trace is None else _instance(kind, value, trace)
        try:
            return steps.throw(error)
        except BaseException:
            self._steps = None
            raise

    def close(self) -> None:
        """End the call where it waits, like `coroutine.close`, and clean up."""
        steps, self._steps = getattr(self, "_steps", None), None
        if self._entered is UNUSED:
            self._entered = None
        if steps is not None:
            steps.close()

    def _driven(self) -> Generator[Any, Any, L_co]:
        steps = getattr(self, "_steps", None)
        if steps is None:
            if self._entered is not UNUSED:
                raise RuntimeError(REUSED)
            steps = self._steps = self._detached()
        return steps

    def _detached(self) -> Generator[Any, Any, L_co]:
        """Make the call in such a way that the generator is closed when this object is dropped."""
        return self.__await__()

    def __del__(self) -> None:
        if self._entered is UNUSED:
            warnings.warn(
                f"acquire of {self._name!r} was never awaited",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    # as a context manager

    async def __aenter__(self) -> L_co:
        lease = self._entered = await (await self).__aenter__()
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = self._entered
        if lease is None or lease is UNUSED:
            raise RuntimeError("this acquire was never entered")
        self._entered = None
        await lease.__aexit__(kind, error, trace)


LEASES_HAVE: Final = (  # the public attributes of all leases, for users who forget the `await`
    "adopt",
    "check",
    "depth",
    "extend",
    "fence",
    "fences",
    "held",
    "leases",
    "lost_reason",
    "name",
    "owner",
    "part",
    "release",
    "remaining",
    "task",
    "ttl",
    "wait_lost",
)


def _await_first(name: str) -> property:
    def explain(call: AcquireContext[Any]) -> Never:
        text = f"'AcquireContext' object has no attribute {name!r}"
        text += f": await it first to get the lease on {call._name!r}"  # noqa: SLF001 - as a method
        raise AttributeError(text, name=name, obj=call)

    return property(explain, doc="Raises AttributeError: only the lease has it, not the call.")


if not TYPE_CHECKING:  # type checkers must go on to report these attributes
    # No __getattr__: it would slow down every access to an attribute of a call.
    for attribute in LEASES_HAVE:
        setattr(AcquireContext, attribute, _await_first(attribute))


def _instance(kind: Any, value: Any, trace: TracebackType | None) -> BaseException:
    # The signature throw(type, value, traceback), deprecated since Python 3.12.
    error = value if isinstance(value, BaseException) else kind() if value is None else kind(value)
    found: BaseException = error.with_traceback(trace)
    return found


class LazyAcquire(AcquireContext[L_co]):
    """A call of `make`, which gets the seconds left (None: no limit) and returns a lease."""

    __slots__ = ("_called", "_deadline", "_make")

    def __init__(
        self,
        name: str,
        make: Callable[[float | None], Coroutine[Any, Any, L_co]],
        timeout: float | None,
    ) -> None:
        self._entered = UNUSED
        self._called = name
        self._make = make
        self._deadline = None if timeout is None else _clock.now() + timeout

    @property
    def _name(self) -> str:
        return self._called

    def __await__(self) -> Generator[Any, Any, L_co]:
        if self._entered is not UNUSED:
            raise RuntimeError(REUSED)
        self._entered = None
        deadline = self._deadline
        left = None if deadline is None else max(0.0, deadline - _clock.now())
        return self._make(left).__await__()
