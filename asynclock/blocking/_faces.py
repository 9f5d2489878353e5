"""What the generated classes inherit: the ways between a thread and the asynchronous objects.

The manager (`Bridge`) calls the event loop of this process. Leases (`Holding`) and what `with`
acquires (`Enterable`) also end what an interrupted thread had.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeVar, cast

import anyio.to_thread

from .. import _settings
from .._engine.lease import ended
from .._process import of_one_process
from ..errors import AsyncLockError, ConfigurationError
from ..manager import LockManager as AsyncLockManager
from . import _loop

T = TypeVar("T")
_log = logging.getLogger("asynclock")

# What a `with` has taken ends also if its thread is interrupted. Python runs signal handlers
# between two steps of the main thread, also before the first line of an `__exit__`, where no `try`
# of ours can catch what a handler raises. But `with` looks `__exit__` up before it enters, and
# drops what it has found when it is over, however that comes. So a `with` that has dropped it
# before the block was left has been interrupted.

_looked_up = threading.local()


class Exit:
    """An `__exit__` that remembers which object the thread has got by its last look-up."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, instance: object, owner: object = None) -> Callable[..., None]:
        bound = () if instance is None else (instance,)  # an exit stack asks the class
        found = partial(self._function, *bound)
        _looked_up.exit = weakref.ref(found)
        return found


def _block(entered: object) -> Callable[[Callable[[], None]], object]:
    """Return a function that watches the block of the `with` that this thread is about to enter.

    That function takes another one, and calls it when the `with` is over. Dropping its result ends
    the watch.
    """
    found = vars(_looked_up).pop("exit", lambda: None)()
    if found is None or any(one is not entered for one in found.args):
        return lambda _: None
    return lambda end: weakref.ref(found, lambda _: end())


@of_one_process
class Bridge:
    """A manager, as far as its locks and leases need it to reach the event loop."""

    def __init__(self, *, locks: AsyncLockManager) -> None:
        self._locks = locks
        self._background: _loop.BackgroundLoop | None = None
        """The event loop that was used; in a forked child that of its parent."""
        self._with: object = None
        """Set while a `with` is to be watched."""
        _managers[id(self)] = self

    def __repr__(self) -> str:
        return f"<blocking {repr(self._locks)[1:]}"

    if not TYPE_CHECKING:  # or type checkers would accept any attribute

        def __getattr__(self, name: str) -> Never:
            text = f"blocking locks have no {name!r}"
            if name in _settings.METHODS_HERE:
                text += f": write {_settings.METHODS_HERE[name]}"
            elif hasattr(AsyncLockManager, name) and not name.startswith("_"):
                text += f": write locks.run(lambda locks: locks.{name}(...)...)"
            raise AttributeError(text, name=name, obj=self)

        __aenter__ = __aexit__ = _settings.enter_plain

    def asynchronous(self) -> AsyncLockManager:
        """Return the asynchronous manager; use it only in the event loop, as `run` does.

        Raises ConfigurationError in a child that was forked after the first use.
        """
        if self._background is not None and self._background is not _loop.current:
            raise ConfigurationError(
                f"these locks were used by process {self._background.pid}, from which this one was "
                "forked: its connections and leases are not ours. Call connect() in the child "
                "(Celery: worker_process_init, gunicorn: post_fork), or only make the manager "
                "before the fork and use it after"
            )
        return self._locks

    @property
    def loop_here(self) -> _loop.BackgroundLoop | None:
        """The event loop if this process has used the manager; otherwise None."""
        return self._background if self._background is _loop.current else None

    def call(
        self, work: _loop.Work[T], undo: _loop.Undo[T] | None = None, *, ends: bool = False
    ) -> T:
        """Run `work` in the event loop for the calling thread; see `BackgroundLoop.call`."""
        self.asynchronous()
        self._background = background = _loop.background()
        return background.call(work, undo, ends=ends)

    async def reclaim(self, ticket: bytes) -> None:
        """End a detached lease whose ticket nobody has, because its thread was interrupted."""
        with contextlib.suppress(AsyncLockError):
            await (await self._locks.resume(ticket)).release()

    def run(self, function: Callable[[AsyncLockManager], Awaitable[T]]) -> T:
        """Run an async function with the asynchronous manager, for calls without a method here.

            leader = locks.run(lambda locks: locks.election("cron").leader())

        The function must not block the event loop: all leases of the process are renewed there. Its
        locks and leases are asynchronous ones, to be used by such functions only. An interruption
        of this call (KeyboardInterrupt) cancels the function. Raises what the function raises, also
        CancelledError and SystemExit, and ConfigurationError if it returns nothing to await.
        """

        def work() -> Awaitable[T]:
            made = function(self._locks)
            if not isinstance(made, Awaitable):
                raise ConfigurationError(
                    "pass `run` a function that returns an awaitable, such as "
                    f"`lambda locks: locks.inspect('a')`; this one returned {type(made).__name__}"
                )
            return made

        return self.call(work)

    def close(self) -> None:
        """Release all leases and end all connections; a second call does nothing.

        At the exit of the process all managers are closed; later calls do nothing either.
        """
        try:
            with _loop.gate:  # no other thread gets the loop meanwhile
                background = _loop.current
                if self._background is background is None:
                    self._locks._engine.close()
            if background and self._background in (None, background) and not background.ends:
                self.call(self._locks.aclose, ends=True)
        except BaseException:
            self._finish()
            raise
        self._with = None

    def _finish(self) -> None:
        """Close for a thread that was interrupted."""
        self._with = None
        if background := self.loop_here:
            background.finish(self._locks.aclose)

    def __enter__(self) -> Self:
        watch = _block(self)
        try:
            self.call(self._locks.__aenter__)
            self._with = watch(self._finish)
        except AsyncLockError:
            raise
        except BaseException:  # interrupted
            self.close()
            raise
        return self

    @Exit
    def __exit__(self, *_: object) -> None:
        self.close()


_managers: weakref.WeakValueDictionary[int, Bridge] = weakref.WeakValueDictionary()


@atexit.register
def _end() -> None:
    if _loop.current is not None:
        # Of a copy of the references: other threads may still make managers, and drop them.
        managers = filter(None, (one() for one in _managers.valuerefs()))
        _loop.current.stop([one._locks.aclose for one in managers if one.loop_here])


# ---- Locks and leases ---------------------------------------------------------------------------


class Face(_settings.Answering):
    """An object that threads use; the asynchronous one behind it does the work in the loop."""

    __slots__ = ("_inner", "_manager")

    def __init__(self, manager: Bridge, *, inner: Any) -> None:
        manager.asynchronous()  # raises in a forked child
        self._manager = manager
        self._inner = inner

    def __repr__(self) -> str:
        return f"<blocking {repr(self._inner)[1:]}"

    @property
    def name(self) -> str:
        """The name that is locked or shared, without the manager's prefix."""
        return cast("str", self._inner.name)

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = _settings.enter_plain


@of_one_process
class Holding(Face):
    """A lease, with what ends it. Any thread of the process may use it."""

    __slots__ = ("__weakref__", "_ended", "_with")
    _with: object
    """Set while a `with` is to be watched."""

    def __init__(self, manager: Bridge, *, inner: Any) -> None:
        super().__init__(manager, inner=inner)
        self._ended = False
        """Whether the lease has been released, so that any thread may drop it."""

    @property
    def part(self) -> str | None:
        """Which part of the name is held, for a store that tells them apart; None for the whole."""
        return getattr(self._inner, "part", None)

    def release(self) -> bool:
        """Release the lock. Return whether it was held until now."""
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
        The callback sees the context variables as they are now. Its exceptions are logged. It keeps
        the lease only if it refers to it: a lease that is dropped ends with its ttl, and then no
        callback comes.
        """
        self._call_back(callback, wanted=False)

    def on_wanted(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` in another thread, as `on_lost` does, when `ask_back` asks for the lease.

        The call comes once, a round trip or two after the request (0.4 s without pushes), unless
        the lease ends before or is dropped.
        """
        self._call_back(callback, wanted=True)

    def _call_back(self, callback: Callable[[Self], object], *, wanted: bool) -> None:
        _settings.callback(callback)
        self._manager.asynchronous()  # raises in a forked child
        _loop.background().start(partial(_tell, weakref.ref(self), callback, wanted=wanted))

    def _finish(self) -> None:
        """Release for a thread that was interrupted, unless that has been done."""
        self._with = None
        if background := self._manager.loop_here:
            background.finish(self._inner.release)

    def __enter__(self) -> Self:
        try:
            watch = _block(self)
            refusal = self._manager.call(self._enter)
            if refusal is None:
                self._with = watch(self._finish)
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

    @Exit
    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None and not self._manager.loop_here:
            return  # in a forked child: don't replace the exception that ends the body's copy
        try:
            self._manager.call(lambda: self._inner.__aexit__(kind, *error), ends=True)
            self._with = None
        except BaseException:
            self._finish()
            raise
        self._ended = True

    def __del__(self) -> None:
        # Drop the last reference in the loop: the end of a lease changes objects of the loop.
        if not getattr(self, "_ended", True):  # without it its making was interrupted
            last, background = [self._inner], self._manager.loop_here
            del self._inner
            if background is not None:
                background.soon(last.clear)


async def _tell(
    dropped: weakref.ref[Any], callback: Callable[[Any], object], *, wanted: bool
) -> None:
    """Call `callback` with a lease once it is lost, or `wanted`, unless it is dropped before."""
    inner = getattr(dropped(), "_inner", None)
    lease = getattr(inner, "lease", inner)  # also that of a run
    if lease is None:  # it was dropped, or a result was kept
        return
    waiting = lease.wanted() if wanted else ended(lease)
    del inner, lease  # or this would keep it while it waits
    with contextlib.suppress(ConfigurationError):  # the manager is being closed
        asked, ours = await waiting, dropped()
        if not ours or (asked if wanted else getattr(ours, "lease", ours).lost_reason) is None:
            return
        try:
            await anyio.to_thread.run_sync(callback, ours)
        except (Exception, SystemExit, KeyboardInterrupt):  # an exit would end the event loop
            _log.exception("a callback of %r failed", ours.name)


L = TypeVar("L", bound=Holding)


class Enterable(Face, Generic[L]):
    """Something that `with` acquires; it gives leases of one class."""

    __slots__ = ("_entered",)

    _lease: ClassVar[type[Holding]]

    def __init__(self, manager: Bridge, *, inner: Any) -> None:
        super().__init__(manager, inner=inner)
        self._entered: dict[Any, int] = {}
        """The thread of each lease that `with` on this object has entered, the last one last."""

    def _obtain(self, work: Callable[[], Awaitable[Any]], *, enter: bool = False) -> L:
        # A KeyboardInterrupt may come between any two lines; then nothing may stay held.
        watch = _block(self) if enter else None
        lease, found = None, None
        try:
            lease = self._manager.call(work, undo=lambda got: got.release())
            found = cast("L", lease and self._lease(self._manager, inner=lease))
            if watch is not None:
                self._entered[found] = threading.get_ident()
                found._with = watch(partial(self._cut, found))
            return found  # noqa: TRY300 - still inside: an interruption here must release it
        except BaseException:
            self._entered.pop(found, None)
            if lease is not None and (background := self._manager.loop_here):
                background.finish(lease.release)
            raise

    def _cut(self, lease: L) -> None:
        """End a block whose thread was interrupted at its end, unless it has ended."""
        self._entered.pop(lease, None)
        lease._finish()

    def __enter__(self) -> L:
        return self._obtain(self._entering, enter=True)

    async def _entering(self) -> Any:
        return await (await self._inner.acquire()).__aenter__()

    @Exit
    def __exit__(self, *error: object) -> None:
        lease = None
        try:
            for lease in self._innermost_first():
                if self._entered.pop(lease, None) is not None:  # else another thread leaves it
                    break
            else:
                raise RuntimeError(f"{self!r} is not entered")  # noqa: TRY301 - nothing is held
            lease.__exit__(*error)
        except BaseException:
            for left in [lease] if lease else self._innermost_first()[:1]:
                self._cut(left)
            raise

    def _innermost_first(self) -> list[L]:
        """Return what this thread entered, the last first, and then what other threads did."""
        here, entered = threading.get_ident(), list(self._entered.items())
        ours = [one for one, thread in reversed(entered) if thread == here]
        return ours + [one for one, _ in entered]
