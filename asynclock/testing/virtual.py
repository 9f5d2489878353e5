"""An event loop whose time jumps to the next timer whenever nothing is left to do.

    run_virtual(scenario())        # an hour of locking on memory:// nodes in a moment

For code that talks to in-memory nodes only: there are no sockets and no threads. Deadlines and
ttls, the locks' and the nodes', follow the loop's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from asynclock import _clock

__all__ = ["VirtualLoop", "run_virtual"]

T = TypeVar("T")

_START = 1000.0
_GRAIN = 1e-6
_EPOCH = 1_700_000_000.0


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop without a selector; `time()` moves only when every task waits for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = _START
        self._selector = _Idle(self)

    def time(self) -> float:
        """Seconds since some moment."""
        return self.now

    def call_at(  # type: ignore[override]  # said in simpler types than typeshed's
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As everywhere; but a timer takes some time, or `while now < deadline` would never end."""
        return super().call_at(max(when, self.now + _GRAIN), callback, *args, context=context)

    def _process_events(self, _events: list[Any]) -> None:
        """Nothing ever comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody else wakes it up."""


class _Idle:
    """In place of a selector: waiting is moving the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Let `timeout` seconds pass. RuntimeError if no timer would ever end the wait."""
        if timeout is None:
            raise RuntimeError("everybody waits, and no timer is set: a deadlock")
        self._loop.now += max(0.0, timeout)
        return []


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end in virtual time. RuntimeError if it waits for something for ever.

    The clock of all locks of this process is the virtual one meanwhile: use no other locks then.
    """
    loop = VirtualLoop()
    try:
        with _virtual_clock(loop):
            return loop.run_until_complete(work)
    finally:
        loop.close()


@contextlib.contextmanager
def _virtual_clock(loop: VirtualLoop) -> Iterator[None]:
    before = _clock.now, _clock.wall
    _clock.now, _clock.wall = loop.time, lambda: _EPOCH + loop.now
    try:
        yield
    finally:
        _clock.now, _clock.wall = before
