"""Do it once: the mutex of a name, and beside it a register that keeps the result of its holder.

Under the lock a run first writes a claim, which decides what an earlier run may have left on a few
nodes. The result replaces this claim and no other: at most one is kept (docs/decisions/0035).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Self, cast

from ... import _clock, _settings
from ..._engine.acquire import Acquire
from ..._engine.engine import Engine
from ..._engine.lease import Lease, enter, give_back, loss_error, notice_end
from ..._engine.spec import LeaseOptions, from_json
from ..._process import of_one_process, wait_out
from ...errors import AsyncLockError, ConfigurationError, QuorumUnavailableError
from ..base import Acquirable, use
from ..lock import Lock, spec
from ..synchronized import P, R, decorator
from .register import Description, Register, state_kind

LARGEST = 65_536
"""Maximum number of bytes of a result, or of its JSON in UTF-8."""
DEEPEST = 100
"""Maximum number of lists and dicts inside each other: what is kept must be read anywhere."""


class _Entry(NamedTuple):
    """What the register stores: the claim of a run, or its result."""

    fence: int = 0
    run: str = ""
    """The random name of the run; "" if nothing is stored."""
    form: str = ""
    """"json" or "bytes", which are stored in base64; "" for a claim."""
    value: Any = None

    @classmethod
    def read(cls, text: str | None) -> _Entry:
        # The text comes from a server: accept only what a run writes.
        match [0, ""] if text is None else from_json(text):
            case [int(), str()] | [int(), str(), "json", _] as found:
                return cls(*found)
            case [int(fence), str(run), "bytes", str(value)]:
                with contextlib.suppress(ValueError):
                    return cls(fence, run, "bytes", base64.b64decode(value, validate=True))
        raise ConfigurationError("the result of this name was not written by this library")


def _storable(value: object) -> tuple[str, Any]:
    """Return the form and the value of a result that can be stored. Raises ConfigurationError."""
    if isinstance(value, bytes):
        form, stored, size = "bytes", base64.b64encode(value).decode(), len(value)
    else:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            form, stored, size = "json", json.loads(text), len(text.encode(errors="surrogatepass"))
            levels = _levels(stored)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"a result must be JSON or bytes: {error}") from error
        if levels > DEEPEST:
            raise ConfigurationError(f"a result must not be nested deeper than {DEEPEST} levels")
    if size > LARGEST:
        raise ConfigurationError(f"a result must have at most {LARGEST} bytes, not {size}")
    return form, stored


def _levels(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_levels, inner), default=0)


def _describe(value: str, _now: int) -> Description:
    found = _Entry.read(value)
    words = "done" if found.form else "begun"
    return {"done": bool(found.form), "fence": found.fence}, f"{words}, fence {found.fence}"


def _once(on: Engine, name: str, options: LeaseOptions, wait: float) -> Once:
    lock = Lock(on, spec(on.settings.prefix, name), options, wait)
    return Once(lock, options.ttl, None, lambda key: _once(on, key, options, wait))


KIND = state_kind("once", _describe, lambda *how: use(_once(*how)))


@of_one_process
class Run(_settings.Answering):
    """One use of a `Once`: the result that is kept already, or the lock under which to make it.

    The end of the `async with` block keeps the value passed to `finish`, and releases the lock. A
    loss of the lease interrupts the body with LeaseLostError, as with any lock.
    """

    def __init__(self, engine: Engine, register: Register) -> None:
        self.name: str = register.name
        """The name that was passed to `LockManager.once`."""
        self.done: bool = False
        """Whether a result is kept. If it is on entry, there is nothing to do but to return it."""
        self.result: Any = None
        """The result that is kept, the same for everybody; None without one."""
        self.fence: int = 0
        """The fence of this run; if a result is kept, that of the run that made it."""
        self.lease: Lease | None = None
        """The lease of this run; None if a result was kept before."""
        self._engine = engine
        self._register = register
        self._task: asyncio.Task[Any] | None = None
        self._id = engine.owners.new_token()
        self._value: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"<Run of {self.name!r} done={self.done} held={self.held}>"

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that entered this, or adopted its lease; None before."""
        return self._task if self.lease is None else self.lease.task

    @property
    def held(self) -> bool:
        """Whether this run has the lock at this moment, by our own clock."""
        return self.lease is not None and self.lease.held

    def finish(self, value: object) -> None:
        """Say that the work is done, with this result. The end of the block keeps it.

        A quorum keeps the result while this run has the lock, also if the block ends with an
        exception or a cancellation, which takes effect afterwards. If it can't be kept, the end of
        the block raises LeaseLostError (the lease was lost, or a later run has begun) or
        QuorumUnavailableError (too few nodes answered until the lease ended: it may be kept), or
        adds a note to the block's exception. Raises ConfigurationError if `value` is neither JSON
        nor bytes, or has over 65,536 bytes or 100 levels: the next run does the work again. Raises
        RuntimeError if a result is kept already.
        """
        if self.lease is None or self.done:
            raise RuntimeError(f"{self.name!r} is done: a result is kept already")
        self._value = _storable(value)

    async def release(self) -> bool:
        """End the run as the end of its block does. Return whether the lock was held until now."""
        if self.lease is None:
            return False
        try:
            await self._keep(self.lease, None)
        finally:  # also if this is cancelled
            released = await self.lease.release()
        return released

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        if self.lease is not None:
            enter(self.lease)
        return self

    async def __aexit__(self, *end: Any) -> None:  # noqa: PYI036 - passed on as it is
        lease = self.lease
        if lease is None:
            return
        try:
            if end[0] is not GeneratorExit:  # a coroutine being closed can't await
                await self._keep(lease, end[1])
        except BaseException as cut:
            await lease.__aexit__(type(cut), cut, cut.__traceback__)
            raise
        await lease.__aexit__(*end)

    def _learn(self, stored: str | None) -> _Entry:
        """Take over the result in the register, if one is kept; return what the register has."""
        found = _Entry.read(stored)
        if found.form:
            self.done, self.fence, self.result = True, found.fence, found.value
        return found

    async def _write(self, lease: Lease, deadline: float) -> None:
        """Write the claim, or the result. Raises LeaseLostError if a later run has begun."""
        mine = json.dumps([lease.fence, self._id, *self._value])

        def step(stored: str | None) -> str | None:
            found = _Entry.read(stored)
            # A result takes the place of its own claim only. A claim takes that of earlier ones:
            # if a higher fence has the lock by now, this request was late.
            late = self._value or found.form or found.fence > lease.fence
            return stored if late and found.run not in ("", self._id) else mine

        found = self._learn(await self._register.change(step, deadline))
        if found.run != self._id and (self._value or not found.form):
            raise loss_error(lease, "a later run has begun, so no result of this one is kept")

    async def _keep(self, lease: Lease, error: BaseException | None) -> None:
        """Keep the value passed to `finish`, if there is one; a failure is a note of `error`."""
        if not self._value or self.done:
            return
        # In a task of the manager: what is done must be kept even if the caller is cancelled now.
        task = self._engine.background.spawn(self._store(lease), f"asynclock: keep {self.name}")
        await wait_out(task)
        failure = loss_error(lease) if task.cancelled() else task.result()
        if failure is not None and error is None:
            raise failure
        if failure is not None and error is not None:
            error.add_note(f"The result is not known to be kept: {failure}")

    async def _store(self, lease: Lease) -> AsyncLockError | None:
        notice_end(lease)
        try:
            with contextlib.suppress(QuorumUnavailableError):  # the change asks for longer
                if not await lease.check():
                    return loss_error(lease)
            await self._write(lease, _clock.now() + lease.remaining())
        except AsyncLockError as error:
            return error
        return None


@_settings.made_by("connect(...).once(key)")
class Once(Acquirable[Run]):
    """Do something once, and give everybody the result, for `keep` seconds.

        async with locks.once("invoice:42", keep=86400) as run:
            if run.done:
                return run.result
            run.finish(await charge(invoice, fence=run.fence))

    Of all calls with one key, in all processes, one runs its body, under the mutex `lock(key)`. The
    others wait for its result. If a body ends without `run.finish`, the next one runs. This also
    decorates async functions. At most one result is kept. A body may run twice: if its process dies
    or loses the lease between the effect and the end of the block, or if a majority of nodes loses
    the result too early. A store that checks `run.fence` refuses late writes of the first.
    """

    __slots__ = ("_for_key", "_lease", "_register")

    def __init__(
        self, lock: Lock, keep: float, lease: str | None, for_key: Callable[[str], Once]
    ) -> None:
        super().__init__(lock._engine, lock._spec, lock._options, lock._timeout)
        (key,) = KIND.parts[0].keys(lock._spec.keys[0])
        self._register = Register(lock._engine, lock.name, key, _settings.seconds(keep, "keep"))
        self._lease = lease
        self._for_key = for_key

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate an async function; see `LockManager.once`."""

        async def run(key: str, call: Callable[[Any], Awaitable[R]]) -> R:
            async with self._for_key(key) as found:
                if not found.done:
                    found.finish(await call(found.lease))
            return cast("R", found.result)

        return decorator(run, "once", self.name, self._lease)(function)

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> Run:
        run = Run(self._engine, self._register)
        deadline = since if once else None if timeout is None else since + timeout
        if run._learn(await self._register.read(deadline)).form:
            return run
        lease = await Acquire(self._engine, self._spec, self._options, timeout, once, since)
        try:
            end = _clock.now() + lease.remaining()
            await run._write(lease, end if deadline is None else min(end, deadline))
            if run.done:
                await lease.release()
            else:
                run.lease, run.fence = lease, lease.fence
        except BaseException:
            give_back(lease)
            raise
        return run
