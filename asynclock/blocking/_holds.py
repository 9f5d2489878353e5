"""What locks and leases for code that blocks do themselves: `with`, interruptions, `on_lost`.

The public classes, in `_generated.py`, inherit from these and add the rest: calls that go to the
asynchronous object as they are.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import anyio.to_thread

from .._forks import of_one_process
from ..errors import AsyncLockError
from ._bridge import Bridge
from ._endings import Block, noticed

_log = logging.getLogger("asynclock")


class Face:
    """An object that threads use; the asynchronous one behind it does the work in the loop."""

    __slots__ = ("_inner", "_manager")

    def __init__(self, manager: Bridge, *, inner: Any) -> None:
        self._manager = manager
        self._inner = inner

    def __repr__(self) -> str:
        return f"<blocking {type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """The name that is locked or shared, without the manager's prefix."""
        name: str = self._inner.name
        return name


def behind(lease: Any) -> Any:
    """Return the asynchronous lease behind `lease`; anything else as it is, to be refused."""
    return lease._inner if isinstance(lease, Holding) else lease


@of_one_process
class Holding(Face):
    """A lease, with what ends it. Any thread of the process may use it."""

    __slots__ = ("__weakref__", "_ended", "_with")

    def __init__(self, manager: Bridge, *, inner: Any) -> None:
        super().__init__(manager, inner=inner)
        self._ended = False
        """Whether the lease has been released, so that any thread may drop it."""
        self._with: object = None
        """Set while a `with` is to be watched."""

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    @property
    def part(self) -> str | None:
        """Which part of the name is held, for a store that tells them apart; None for the whole."""
        return getattr(self._inner, "part", None)

    def release(self) -> bool:
        """Release the lock. Return whether it was held until now.

        A second call sends nothing, and returns the same at once, as far as that is known yet.
        Normally returns when a quorum has confirmed, or after one node timeout. If a thread or a
        task of this process waits for the lock, the lock is handed over without asking a node. If
        other processes wait and this process may take the lock again within its turn, this returns
        True without waiting for the nodes. A loss that their replies show later sets `lost_reason`
        and is logged. Leaving `with` waits for the replies, unless the block has called this.
        """
        try:
            held: bool = self._manager.call(self._inner.release, ends=True)
        except BaseException:
            self._finish()
            raise
        self._ended = True
        return held

    def on_lost(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` with this lease in another thread when the lease is lost.

        If the lease has been lost already, the call comes at once; after a release it never comes.
        The callback sees the context variables as they are now. Its exceptions are logged.
        """
        self._manager.start(self._watch, callback)

    async def _watch(self, callback: Callable[[Self], object]) -> None:
        await self._inner.wait_lost()
        if self._inner.lost_reason is None:
            return
        try:
            await anyio.to_thread.run_sync(callback, self)
        except BaseException:  # also an exit: it would end the event loop of all threads
            _log.exception("a callback failed on the loss of %r", self.name)

    def _finish(self) -> None:
        """Release for a thread that was interrupted, unless that has been done."""
        self._with = None
        self._manager.finish(self._inner.release)

    def _begin(self, block: Block, end: Callable[[], None]) -> None:
        """Begin the body; call `end` if the `with` is over without the end of its body."""
        self._with = block.watch(end)

    def __enter__(self) -> Self:
        try:
            block = Block(self)
            refusal = self._manager.call(self._enter)
            if refusal is None:
                self._begin(block, self._finish)
                return self
        except AsyncLockError:
            raise
        except BaseException:  # interrupted: the body doesn't begin, so nothing else releases it
            self.release()
            raise
        raise refusal

    async def _enter(self) -> RuntimeError | None:
        try:
            await self._inner.__aenter__()
        except RuntimeError as error:  # a handler may raise a RuntimeError, too
            return error
        return None

    @noticed
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._manager.inherited:
            return  # in a forked child: don't replace the exception that ends the body's copy
        try:
            self._manager.call(lambda: self._inner.__aexit__(kind, error, trace), ends=True)
            self._with = None
        except BaseException:
            self._finish()
            raise
        self._ended = True

    def __del__(self) -> None:
        # Drop the last reference in the loop: the end of a lease changes objects of the loop.
        if not getattr(self, "_ended", True):  # without it its making was interrupted
            last = [self._inner]
            del self._inner
            self._manager.drop(last)


L = TypeVar("L", bound=Holding)


class Obtains(Face, Generic[L]):
    """Something that gives leases of one class."""

    __slots__ = ("_entered",)

    _lease: ClassVar[type[Holding]]

    def __init__(self, manager: Bridge, *, inner: Any) -> None:
        super().__init__(manager, inner=inner)
        self._entered: list[tuple[int, L]] = []
        """The leases that `with` on this object has entered, each with its thread."""

    def _obtain(self, work: Callable[[], Awaitable[Any]], *, enter: bool = False) -> L:
        # A KeyboardInterrupt may come between any two lines; then nothing may stay held.
        block = Block(self)
        lease, entry = None, None
        try:
            lease = self._manager.call(work, undo=_release)
            found = cast("L", lease and self._lease(self._manager, inner=lease))
            if enter:
                entry = threading.get_ident(), found
                self._entered.append(entry)
                found._begin(block, partial(self._cut, entry))
            return found  # noqa: TRY300 - still inside: an interruption here must release it
        except BaseException:
            if lease is not None:
                with contextlib.suppress(ValueError):
                    self._entered.remove(entry)  # type: ignore[arg-type]  # None is not in it
                with contextlib.suppress(Exception):
                    self._manager.call(lease.release, ends=True)
            raise

    def _cut(self, entry: tuple[int, L]) -> None:
        """End a block whose thread was interrupted at its end, unless it has ended."""
        self._forget(entry)
        entry[1]._finish()

    def _forget(self, entry: tuple[int, L]) -> bool:
        """Count a block as left; return False if that has been done, by another thread."""
        try:
            self._entered.remove(entry)
        except ValueError:
            return False
        return True


class Enterable(Obtains[L]):
    """Something that `with` acquires."""

    __slots__ = ()

    def __enter__(self) -> L:
        return self._obtain(self._entering, enter=True)

    async def _entering(self) -> Any:
        return await (await self._inner.acquire()).__aenter__()

    @noticed
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entry = None
        try:
            for entry in self._innermost_first():
                if self._forget(entry):
                    break
            else:
                raise RuntimeError(f"{self!r} is not entered")  # noqa: TRY301 - nothing is held
            entry[1].__exit__(kind, error, trace)
        except BaseException:
            for left in [entry] if entry else self._innermost_first()[:1]:
                self._cut(left)
            raise

    def _innermost_first(self) -> list[tuple[int, L]]:
        """Return what this thread entered, the last first, and then what others did.

        A generator that was entered in another thread has only the latter.
        """
        thread, entered = threading.get_ident(), list(self._entered)
        return [one for one in reversed(entered) if one[0] == thread] + entered


async def _release(lease: Any) -> None:
    if lease is not None:
        await lease.release()
