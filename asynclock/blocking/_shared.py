"""Primitives without a lease, for code that blocks: events, latches and barriers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from .. import _settings
from .._engine.inspection import Inspection
from .._primitives import barrier, event, latch
from ._bridge import Bridge


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    async def inspect(self) -> Inspection: ...


S = TypeVar("S", bound=_Named)
R = TypeVar("R")


class Shared(Generic[S]):
    """A name whose state the nodes keep. Any number of threads may share the object."""

    def __init__(self, manager: Bridge, *, made: S) -> None:
        self._manager = manager
        self._made = made

    def __repr__(self) -> str:
        return f"<blocking {type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """The name that was passed to the manager."""
        return self._made.name

    def inspect(self) -> Inspection:
        """Return what each node stores; takes at most one node timeout."""
        return self._call(lambda made: made.inspect())

    def _call(self, function: Callable[[S], Awaitable[R]]) -> R:
        return self._manager.run(lambda _: function(self._made))


@_settings.made_by("connect(...).event(name)")
class SharedEvent(Shared[event.SharedEvent]):
    """A flag that every process sees, for code that blocks; see `asynclock.SharedEvent`."""

    def set(self, *, timeout: float | None = None) -> None:
        """Set the event: all that wait for it go on; see `asynclock.SharedEvent.set`."""
        self._call(lambda made: made.set(timeout=timeout))

    def clear(self, *, timeout: float | None = None) -> None:
        """Clear the event: threads that come later wait. Raises the same errors as `set`."""
        self._call(lambda made: made.clear(timeout=timeout))

    def is_set(self, *, timeout: float | None = None) -> bool:
        """Return whether the event is set now. Raises the same errors as `set`."""
        return self._call(lambda made: made.is_set(timeout=timeout))

    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until the event is set. Return True, or False after `timeout` seconds.

        Raises QuorumUnavailableError if too few nodes answer until then.
        """
        return self._call(lambda made: made.wait(timeout=timeout))


@_settings.made_by("connect(...).latch(name, count)")
class Latch(Shared[latch.Latch]):
    """Opens once, after a number of counts, for code that blocks; see `asynclock.Latch`."""

    @property
    def count(self) -> int:
        """The number of counts that open it."""
        return self._made.count

    def count_down(self, by: int = 1, *, timeout: float | None = None) -> int:
        """Count down by `by`, and return what remains; see `asynclock.Latch.count_down`."""
        return self._call(lambda made: made.count_down(by, timeout=timeout))

    def remaining(self, *, timeout: float | None = None) -> int:
        """Return the number of counts that remain. Raises the same errors as `count_down`."""
        return self._call(lambda made: made.remaining(timeout=timeout))

    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait until nothing remains. Return True, or False after `timeout` seconds.

        Raises the same errors as `count_down`.
        """
        return self._call(lambda made: made.wait(timeout=timeout))


@_settings.made_by("connect(...).barrier(name, parties)")
class Barrier(Shared[barrier.Barrier]):
    """A number of parties go on together, for code that blocks; see `asynclock.Barrier`.

    Each thread that waits is one party. A thread that is interrupted while it waits leaves.
    """

    @property
    def parties(self) -> int:
        """The number of parties that go on together."""
        return self._made.parties

    def wait(self, *, timeout: float | None = None) -> int:
        """Wait until all parties wait; return this party's place in the order of arrival, from 0.

        The errors are those of `asynclock.Barrier.wait`.
        """
        return self._call(lambda made: made.wait(timeout=timeout))

    def waiting(self, *, timeout: float | None = None) -> int:
        """Return the number of parties that wait now. Raises the same errors as `wait`."""
        return self._call(lambda made: made.waiting(timeout=timeout))

    def abort(self, *, timeout: float | None = None) -> None:
        """Break the barrier until `reset`; see `asynclock.Barrier.abort`."""
        self._call(lambda made: made.abort(timeout=timeout))

    def reset(self, *, timeout: float | None = None) -> None:
        """Make the barrier usable again, and empty; see `asynclock.Barrier.reset`."""
        self._call(lambda made: made.reset(timeout=timeout))

    def broken(self, *, timeout: float | None = None) -> bool:
        """Return whether the barrier is broken. Raises the same errors as `abort`."""
        return self._call(lambda made: made.broken(timeout=timeout))
