"""The call of `acquire`: `await` it, enter it with `async with`, or make a task of it.

To Python the call is a coroutine; most acquires only use `await`, which takes a generator from
`__await__`. A call first waits for its turn among the tasks of its process, and may take a lease
over there. Then it asks the nodes: once with all others of its tick, and if that doesn't win, as
often as it takes (seek.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from .. import _clock, _settings
from .._rules.seeking import answer_by, limit
from ..errors import AsyncLockError
from ..events import Acquired, Failed, Voted
from . import refusals
from .attempt import Attempt
from .context import closed
from .engine import Engine
from .grant import SPARE_FENCES, Grant, LocalQueue, Turn, reserve_ahead, reserve_now
from .lease import Lease, take
from .outbox import Ask
from .seek import Seek
from .spec import LeaseOptions, LockSpec


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
    ) -> Coroutine[Any, Any, bool | None]: ...


L_co = TypeVar("L_co", bound=Enterable, covariant=True)


REUSED: Final = "cannot reuse already awaited acquire"


class AcquireContext(Coroutine[Any, Any, L_co]):
    """One call of `acquire`: `await` it to get the lease, or enter it with `async with`.

    The call is a coroutine: `asyncio.create_task`, `gather`, `wait_for` and the like accept it. It
    sends nothing before it is awaited, but its `timeout` counts from the call. It can be used once;
    the second use raises RuntimeError. Python warns ("was never awaited") if it is never used.
    """

    __slots__ = ("_entered", "_steps", "_used")

    __name__ = "acquire"
    """The name that a task shows for this coroutine."""
    _used: bool
    """Whether the call was awaited or closed.

    Subclasses set this to False: one more __init__ would slow each acquire down.
    """
    _entered: L_co | None
    """The lease that an `async with` on this call holds; unset before it is entered."""
    _steps: Generator[Any, Any, L_co] | None
    """The generator that `send` drives; unset while none is being driven."""

    @property
    @abstractmethod
    def _name(self) -> str:
        """The name of the lock, for messages."""

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, L_co]:
        """Make the call. Raises RuntimeError if `_used` is set, and sets it."""

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _settings.enter_async

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
        error = kind if value is None and trace is None else _instance(kind, value, trace)
        try:
            return steps.throw(error)
        except BaseException:
            self._steps = None
            raise

    def close(self) -> None:
        """End the call where it waits, like `coroutine.close`, and clean up."""
        steps, self._steps = getattr(self, "_steps", None), None
        self._used = True
        if steps is not None:
            steps.close()

    def _driven(self) -> Generator[Any, Any, L_co]:
        steps = getattr(self, "_steps", None)
        if steps is None:
            if self._used:
                raise RuntimeError(REUSED)
            steps = self._steps = self._detached()
        return steps

    def _detached(self) -> Generator[Any, Any, L_co]:
        """Make the call in such a way that the generator is closed when this object is dropped."""
        return self.__await__()

    def __del__(self) -> None:
        if not self._used:
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
    ) -> bool | None:
        lease: L_co | None = getattr(self, "_entered", None)
        if lease is None:
            raise RuntimeError("this acquire was never entered")
        self._entered = None
        return await lease.__aexit__(kind, error, trace)


for _attribute in vars(Lease):
    if not _attribute.startswith("_"):
        _text = f"acquire() is not awaited and has no {_attribute!r}: write `lease = await lock"
        setattr(AcquireContext, _attribute, _settings.Hint(_attribute, f"{_text}.acquire()`"))


def _instance(kind: Any, value: Any, trace: TracebackType | None) -> BaseException:
    # The signature throw(type, value, traceback), deprecated since Python 3.12.
    error = value if isinstance(value, BaseException) else kind() if value is None else kind(value)
    found: BaseException = error.with_traceback(trace)
    return found


class LazyAcquire(AcquireContext[L_co]):
    """A call of `make`, which gets the moment of this call and returns a lease."""

    __slots__ = ("_make", "_name", "_since")
    _name: str

    def __init__(self, name: str, make: Callable[[float], Coroutine[Any, Any, L_co]]) -> None:
        self._used = False
        self._name = name
        self._make = make
        self._since = _clock.now()

    def __await__(self) -> Generator[Any, Any, L_co]:
        if self._used:
            raise RuntimeError(REUSED)
        self._used = True
        return self._make(self._since).__await__()


class Work:
    """Work that can be stopped, such as a request of a web server, and its calls that wait.

    A context variable tells a call its work, also in tasks that the work has started.
    """

    def __init__(self, *, stopped: bool = False) -> None:
        self.stopped: bool = stopped
        """Whether calls only take a lock that is free, without waiting."""
        self._ends: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[], object]]] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the calls that the block makes belong to this work, which ends with the block."""
        token = WORK.set(self)
        try:
            yield
        finally:
            WORK.reset(token)
            self.stopped = False

    def stop(self) -> None:
        """End all waits with AcquireTimeoutError; later calls take only what is free."""
        self.stopped = True
        for call, (loop, _) in tuple(self._ends.items()):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(self._end, call)

    def _end(self, call: object) -> None:
        if call in self._ends:
            self._ends.pop(call)[1]()

    def add(self, call: object, end: Callable[[], object]) -> None:
        """Note that `call` waits; `end()` ends its wait, in the running loop."""
        self._ends[call] = asyncio.get_running_loop(), end
        if self.stopped:
            self._end(call)

    def remove(self, call: object) -> None:
        """Note that `call` no longer waits."""
        self._ends.pop(call, None)


WORK: ContextVar[Work | None] = ContextVar("asynclock_work", default=None)
"""The work that the current task belongs to."""


class Acquire(AcquireContext[Lease]):
    """One acquire of a lock, with a deadline (None: no limit) or only if the lock is free."""

    __slots__ = ("_deadline", "_engine", "_into", "_once", "_options", "_spec", "_started")

    def __init__(
        self,
        engine: Engine,
        spec: LockSpec,
        options: LeaseOptions,
        timeout: float | None,
        once: bool = False,
        since: float | None = None,
        into: Lease | None = None,
    ) -> None:
        self._used = False
        self._engine = engine
        self._spec = spec
        self._options = options
        self._once = once
        self._into = into
        """The lease that gets the grant; None: a new one."""
        if since is None or timeout == 0 or (once and timeout is None):
            since = _clock.now()  # each of several calls that don't wait gets time for answers
        self._started = since
        self._deadline = None if timeout is None else self._started + timeout

    @property
    def _name(self) -> str:
        return self._spec.name

    def __await__(self) -> Generator[Any, Any, Lease]:
        if self._used:
            raise RuntimeError(REUSED)
        self._used = True
        return self._call()

    def _detached(self) -> Generator[Any, Any, Lease]:
        # The engine refers to the object that makes the call. If that were the caller's object,
        # the call would go on after the caller has dropped it.
        terms = self._engine, self._spec, self._options
        twin = type(self)(*terms, None, once=self._once, into=self._into)
        twin._started, twin._deadline = self._started, self._deadline
        self._used = twin._used = True
        return twin._call()

    def _call(self) -> Generator[Any, Any, Lease]:
        # No coroutine in here: a hand-over between tasks runs only this, and must be cheap.
        engine = self._engine
        engine.ready()
        try:
            queue = self._queue()
            if queue is None:
                return (yield from self._ask(None))
            room = queue.asking + len(queue.grants) < queue.permits
            if room and (self._once or not queue.asking):
                queue.asking += 1
                return (yield from self._ask(queue))
            waiter = self._join(queue)
            try:
                turn = yield from waiter
            except BaseException:
                engine.clean_up(partial(self._leave, queue, waiter))
                raise
            if turn is None:
                raise self._too_long(queue)
            engine.totals.wakeups["turn"] += 1
            if type(turn) is Grant:
                if self._options.handoff is True:
                    lease = self._take_over(turn, turn.ttl / 2)
                    if lease is not None:
                        return lease
                lease = yield from self._accept(queue, turn).__await__()
                if lease is not None:
                    return lease
            return (yield from self._ask(queue))
        except AsyncLockError as error:
            if engine.observers:
                self._report(error)
            raise

    def _report(self, error: AsyncLockError) -> None:
        outcome, now = refusals.OUTCOMES.get(type(error), "error"), _clock.now()
        self._engine.observers(Failed(self._spec.name, outcome, now - self._started))

    def _ask(self, queue: LocalQueue | None) -> Generator[Any, Any, Lease]:
        """Ask the nodes until they grant: this task is the first in `queue`, or there is none."""
        engine, lease, first, turn_since, ask = self._engine, None, None, None, None
        owed = queue is not None and queue.kept is not None
        try:
            if owed and queue is not None:
                turn_since = queue.take_kept(_clock.now())
            left = None
            if self._deadline is not None:
                timeout = engine.settings.node_timeout
                until = answer_by(self._deadline, self._started, timeout)
                left = limit(until, _clock.now(), timeout)
            if turn_since is None and (left is None or left > 0) and not engine.closed:
                no_ticket = self._once or engine.no_quorum_since or not self._spec.queue
                place = () if no_ticket else engine.place
                ask = Ask(engine, self._spec, self._options.ttl, place)
                ask.send(left)  # as `Ask.decided` does, without a coroutine
                if ask.future.done():
                    yield
                yield from ask.future
                ask.settle()
                lease = self._won(ask, queue)
                if lease is None:
                    first = ask.to_attempt()
                    first.conclude()  # it may be won after all: then `Seek.run` returns it
            if lease is None:
                lease = yield from self._contend(queue, first, turn_since).__await__()
        except BaseException:
            if ask is not None:
                ask.cut_off()
            engine.clean_up(partial(self._give_up, queue, owed=owed))
            raise
        if queue is not None:
            queue.asking -= 1
            if queue.waiters:
                engine.next_in_line(queue)
        return lease

    def _give_up(self, queue: LocalQueue | None, *, owed: bool) -> None:
        if owed:  # the release woke no waiter, and perhaps no request since then woke one
            self._engine.pass_on(self._spec)
        if queue is not None:
            queue.asking -= 1
            self._engine.next_in_line(queue)

    async def _contend(
        self, queue: LocalQueue | None, first: Attempt | None, turn_since: float | None
    ) -> Lease:
        """Ask until the nodes grant; `first` is the attempt of the batch, if there was one.

        `turn_since`: the moment since which this process may go first.
        """
        work = WORK.get()
        # A call of stopped work still takes what is free, as with a timeout of 0.
        stopped = work is not None and work.stopped
        seek = Seek(
            self._engine,
            self._spec,
            self._options.ttl,
            self._started if stopped else self._deadline,
            self._started,
            self._once,
            turn_since is not None,
            queue or LocalQueue(self._spec.name, "", 1, 0.0),
        )
        if work is None or stopped:
            attempt = await seek.run(first)
        else:
            attempt = await _until_stopped(work, seek, first)
        now, ballot = _clock.now(), attempt.ballot
        until, sent, voters = attempt.valid_until, attempt.started, tuple(ballot.claims)
        since = now if turn_since is None or seek.contended is not None else turn_since
        what = attempt.spec, attempt.owner, ballot.fence, self._options
        grant = Grant(*what, until, voters, sent, queue, since, contended=attempt.others)
        return self._hold(grant, now)

    def _won(self, ask: Ask, queue: LocalQueue | None) -> Lease | None:
        """Return the lease if the whole batch was won and is still valid; otherwise None."""
        engine, batch, now = self._engine, ask.batch, _clock.now()
        if not ask.fence or now >= batch.valid_until:
            return None
        if engine.observers:
            engine.observers(Voted(self._spec.name, ask.to_attempt().votes()))
        if queue is not None:
            queue.unanswered = queue.holder = None
        until, sent, voters = batch.valid_until, batch.started, batch.voters
        grant = Grant(
            ask.spec, ask.owner, ask.fence, self._options, until, voters, sent, queue, now
        )
        return self._hold(grant, now)

    def _hold(self, grant: Grant, now: float, *, handed_over: bool = False) -> Lease:
        """Begin the first lease on `grant`, or the next one if it was handed over."""
        engine, lease, queue = self._engine, self._into, grant.queue
        fence = grant.take_fence() if handed_over else grant.fence
        engine.totals.acquired += 1
        if lease is None:
            lease = Lease(engine, grant, fence, self._options, now)
        else:
            take(lease, grant, fence, self._options, now)
        if queue is not None:
            if not handed_over:
                queue.grants.append(grant)
            if queue.waiters and len(grant.fences) < SPARE_FENCES:
                reserve_ahead(engine, grant)
        if not handed_over:
            engine.renewals.add(grant, grant.asked_since)
        if engine.observers:
            who, waited = (grant.spec.name, grant.owner, fence), now - self._started
            votes = 0 if handed_over else len(grant.voters)
            engine.observers(Acquired(*who, waited, votes, handed_over))
        return lease

    # the turn among the tasks of this process

    def _queue(self) -> LocalQueue | None:
        # try_acquire never waits in the queue. It fails at once if this process holds the name, and
        # else asks the nodes. It uses the local queue unless another task asks, or the name is kept
        # for one.
        spec, engine = self._spec, self._engine
        if spec.queue_key is None:
            return None
        queue = engine.queues.get(spec.queue_key) or engine.new_queue(spec, spec.queue_key)
        if self._once:
            if queue.full:
                raise refusals.held_here(self._engine, queue)
            if queue.kept is not None or queue.asking + len(queue.grants) >= queue.permits:
                return None
        elif queue.asking and queue.asking + len(queue.grants) < queue.permits:
            # Another task asks for a permit. A call that doesn't wait asks for one more beside it.
            return None if self._left() == 0 else queue
        return queue

    def _join(self, queue: LocalQueue) -> Turn:
        ours, loop = 0, self._engine.multiplexer.loop
        task = asyncio.current_task(loop)
        for grant in queue.grants:
            ours += grant.inside(task)
            if not grant.fences and grant.lease is not None:
                reserve_ahead(self._engine, grant)
        spec = self._spec
        if ours == queue.permits or (spec.shared and self._engine.renewals.shares(spec, task)):
            raise refusals.already_held(spec.name)
        waiter: Turn = asyncio.Future(loop=loop)
        queue.join(waiter, self._options, self._started)
        left = self._left()
        if left is not None:
            timer = waiter.get_loop().call_later(left, queue.give_up, waiter)
            waiter.add_done_callback(lambda _: timer.cancel())
        work = WORK.get()
        if work is not None:
            waiter.add_done_callback(work.remove)
            work.add(waiter, partial(queue.give_up, waiter))
        return waiter

    def _too_long(self, queue: LocalQueue) -> AsyncLockError:
        if queue.unanswered is not None and not queue.grants:
            # Nobody has it: the task that asks gets too few votes.
            return refusals.outage(queue.unanswered)
        work, timeout = WORK.get(), None
        if self._deadline is not None and (work is None or not work.stopped):
            timeout = round(self._deadline - self._started, 3)
        return refusals.too_long_here(self._engine, queue, timeout, self._started)

    def _leave(self, queue: LocalQueue, waiter: Turn) -> None:
        # Cancelled or closed just after our turn came: pass the turn on, if the options match.
        turn = queue.leave(waiter)
        waiter.cancel()  # has no effect if a turn was given; otherwise it stops the timer
        if turn is None:
            return
        if isinstance(turn, Grant):
            if not queue.hand_on(turn, self._options, _clock.now()):
                self._engine.release(turn)
                self._engine.next_in_line(queue)
        elif not queue.let_ask():
            queue.asking -= 1
            self._engine.next_in_line(queue)

    async def _accept(self, queue: LocalQueue, grant: Grant) -> Lease | None:
        """Take over a grant that needs a fence or an extension; if it can't, ask the nodes next."""
        engine, lease = self._engine, None
        try:
            if engine.closed:
                raise closed()
            await self._prepare(grant)
            lease = self._take_over(grant, 0.0)
            if lease is None:
                engine.release(grant)
                if self._left() == 0:
                    raise self._too_long(queue)
                queue.asking += 1
        finally:
            engine.clean_up(partial(engine.next_in_line, queue))
        return lease

    async def _prepare(self, grant: Grant) -> None:
        engine = self._engine
        try:
            reserved = reserve_now(engine, grant, self._options)
            if reserved is not None:
                await asyncio.wait((reserved,), timeout=self._left())
            if grant.valid_until - _clock.now() < grant.ttl / 2:
                extended = engine.extend_now(grant)
                await asyncio.wait((extended,), timeout=self._left())
        except BaseException:
            engine.clean_up(partial(engine.release, grant))
            raise

    def _left(self) -> float | None:
        # Seconds until the deadline.
        return None if self._deadline is None else max(0.0, self._deadline - _clock.now())

    def _take_over(self, grant: Grant, least: float) -> Lease | None:
        # Returns None if no fence is ready, or if at most `least` seconds of validity are left.
        now = _clock.now()
        if not grant.fences or grant.valid_until - now <= least:
            return None
        engine = self._engine
        engine.totals.handovers += 1
        return self._hold(grant, now, handed_over=True)


async def _until_stopped(work: Work, seek: Seek, first: Attempt | None) -> Attempt:
    """Run `seek` until it wins or `work` is stopped."""
    limit = asyncio.timeout(None)
    try:
        async with limit:
            work.add(seek, lambda: limit.reschedule(0.0))
            try:
                return await seek.run(first)
            finally:
                work.remove(seek)
    except AsyncLockError:  # AcquireTimeoutError is a TimeoutError, too
        raise
    except TimeoutError:
        raise seek.out_of_time() from None
