"""An event loop whose time jumps to the next timer when nothing else is left to do.

    run_virtual(scenario())        # an hour of locking on memory:// nodes in a moment

It is for code that only uses in-memory nodes: there are no sockets and no threads. All deadlines
and ttls, of locks and of nodes, follow the loop's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from asynclock import _clock

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
        """Return the virtual time in seconds; only differences have a meaning."""
        return self.now

    def call_at(  # type: ignore[override]  # simpler types than typeshed's
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer; each takes a little time, or `while now < deadline` would never end."""
        return super().call_at(max(when, self.now + _GRAIN), callback, *args, context=context)

    async def create_connection(self, *_address: object, **_options: object) -> Any:
        """Refuse with OSError, which the link reports as the cause of its failure."""
        raise OSError("run_virtual has no network: use memory:// nodes")

    create_unix_connection: Any = create_connection
    getaddrinfo: Any = create_connection
    sock_connect: Any = create_connection

    def _process_events(self, _events: list[Any]) -> None:
        """Do nothing: there are no events from outside."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes the loop."""


class _Idle:
    """Replaces the selector: a wait only moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Let `timeout` seconds pass. Raises RuntimeError if no timer would ever end the wait."""
        if timeout is None:
            raise RuntimeError("everybody waits, and no timer is set: a deadlock")
        self._loop.now += max(0.0, timeout)
        return []


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end in virtual time. Raises RuntimeError if it waits without end.

    During the run, all locks of this process use the virtual clock: use no other locks.
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
