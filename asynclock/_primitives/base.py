"""What all primitives have in common: settings, calls, Lua, and how their keys are declared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Never,
    Protocol,
    TypedDict,
    TypeVar,
)

from .. import _clock, _settings
from .._engine.acquire import Acquire, AcquireContext, Enterable, LazyAcquire
from .._engine.context import EngineSettings
from .._engine.engine import Engine
from .._engine.inspection import NodeView, question
from .._engine.lease import Lease, enter
from .._engine.spec import HandOff, LeaseOptions, LockSpec, holder
from .._keys import MESSAGE, counter, derived
from .._nodes.wire import Command, Failure, Script
from ..errors import NotAcquiredError


class HoldSettings(TypedDict, total=False):
    """How to keep a lease: these are the arguments of `LockManager.lock`; times in seconds."""

    ttl: float | None
    """Seconds that a lease lives without renewal (default: the manager's)."""
    renew: bool
    """Whether the lease is renewed while it is held (default: True)."""
    max_hold: float | None
    """Maximum seconds of renewal (default: no limit)."""
    interrupt: bool
    """Whether a loss interrupts the body of `async with` (default: True)."""


class WaitSettings(HoldSettings, total=False):
    """How to keep a lease, and how many seconds to wait while others have the lock."""

    timeout: float | None
    """Seconds to wait for the lock (default: no limit)."""


class LockSettings(WaitSettings, total=False):
    """How to keep a lease, how long to wait, and how waiters of this process take the lock over."""

    handoff: HandOff
    """How a released lock passes to a waiting task of this process (default: True)."""


class MutexSettings(LockSettings, total=False):
    """The settings of a mutex that may also rest after its release."""

    at_least: float | None
    """Seconds from the acquire for which nobody else gets the name (default: no rest)."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """A manager's default settings for its locks; times in seconds."""

    settings: EngineSettings
    usual: LeaseOptions
    """The options of a lock that is made without settings of its own."""
    uninterrupted: LeaseOptions
    """The same for code that blocks."""

    def options(
        self,
        *,
        ttl: float | None,
        renew: bool = True,
        max_hold: float | None = None,
        interrupt: bool = True,
        handoff: HandOff = True,
        at_least: float | None = None,
    ) -> LeaseOptions:
        """Return checked options; `ttl=None` means the manager's ttl. Raises ConfigurationError."""
        if ttl is max_hold is at_least is None and renew is handoff is True:
            if interrupt is True:
                return self.usual
            if interrupt is False:
                return self.uninterrupted
        return LeaseOptions(
            ttl=_settings.ttl(
                self.usual.ttl if ttl is None else ttl,
                node_timeout=self.settings.node_timeout,
                max_ttl=self.settings.max_ttl,
            ),
            renew=_settings.flag(renew, "renew"),
            max_hold=_settings.optional_seconds(max_hold, "max_hold"),
            interrupt=_settings.flag(interrupt, "interrupt"),
            handoff=_settings.handoff(handoff),
            at_least=_settings.optional_seconds(at_least, "at_least") or 0.0,
        )

    def read(
        self, settings: HoldSettings, known: type = LockSettings, **more: float | None
    ) -> tuple[LeaseOptions, float | None]:
        """Return checked options (of `more`, too) and the timeout. Raises ConfigurationError."""
        if not (settings or more):
            return self.usual, None
        if wrong := settings.keys() - known.__annotations__.keys():
            raise _settings.unknown(wrong)
        given: dict[str, Any] = {"ttl": None, **more, **settings}
        timeout = given.pop("timeout", None)
        return self.options(**given), timeout


L = TypeVar("L", bound=Enterable)


class _Unset:
    """The type of UNSET."""


UNSET: Final = _Unset()
"""Stands for an argument that was not passed, where None has a meaning of its own."""

Timeout = float | None | _Unset


def limited(timeout: Timeout, default: float | None) -> float | None:
    """Return the checked timeout of one call, in seconds; `default` if none was passed."""
    if isinstance(timeout, _Unset):
        return default
    return _settings.optional_seconds(timeout, "timeout", zero=True)


class Entered(list[L]):
    """The leases that an `async with` on one lock object has entered and not left."""

    __slots__ = ()

    def leave(self) -> L:
        """Remove and return the lease that the calling task leaves: the last one that it entered.

        A single lease is returned to any task: a fixture may be left in another one than it was
        entered in. Raises RuntimeError if there is no lease, or if all of several belong to others.
        """
        if len(self) == 1:
            return self.pop()
        task = asyncio.current_task()
        mine = [lease for lease in self if lease.task is task]
        if not mine:
            raise RuntimeError(NOT_OURS if self else "this lock is not entered")
        self.remove(mine[-1])
        return mine[-1]


NOT_OURS: Final = (
    "several other tasks have entered this lock object, so it is unknown which lease this task "
    "leaves; enter `lock.acquire()`, or leave each lease in the task that entered it"
)


class Named(_settings.Answering):
    """A name, and the settings for its leases."""

    __slots__ = ("_engine", "_options", "_spec", "_timeout")

    def __init__(
        self, engine: Engine, spec: LockSpec, options: LeaseOptions, timeout: float | None
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._options = options
        if timeout is not None:
            timeout = _settings.seconds(timeout, "timeout", zero=True)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ttl={self._options.ttl:g}>"

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""
        return self._spec.name


class Acquirable(Named, Generic[L]):
    """A name and settings that can be acquired. Any number of tasks may share it."""

    __slots__ = ("_entered",)

    _entered: Entered[L]
    """The only state: which lease an `async with` on this object must release. Unset before the
    first one, because most objects only serve one `acquire`."""

    def _note(self, lease: L) -> L:
        try:
            self._entered.append(lease)
        except AttributeError:
            self._entered = Entered((lease,))
        return lease

    def _call(self, timeout: float | None, *, once: bool = False) -> AcquireContext[L]:
        """Make a call of `acquire`, or (with `once`) of `try_acquire`."""
        return LazyAcquire(self.name, partial(self._obtain, timeout, once))

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> L:
        """Do the work of such a call, which was made at `since`, when it is awaited."""
        raise NotImplementedError  # `Lockable` makes calls of its own, without this

    def acquire(self, *, timeout: Timeout = UNSET, **unknown: Never) -> AcquireContext[L]:
        """Get the lease: `await` it, or enter it with `async with`.

        Waits at most `timeout` seconds from this call, or one node timeout if that is longer
        (None: without limit; default: the lock's own timeout). Rivals that ask at the same moment
        may each get some of the nodes and nobody a quorum: then a call whose timeout has ended goes
        on until somebody has the name, for at most four node timeouts in all. Raises
        AcquireTimeoutError if others had the lock all that time, QuorumUnavailableError if too few
        nodes answered (until the timeout; without one, through the longest quarantine),
        AlreadyHeldError inside an `async with` on this lock in the same task, ConfigurationError if
        the call can never succeed. A cancelled or closed call holds nothing.
        """
        if unknown:
            raise _settings.unknown(unknown)
        return self._call(self._timeout if timeout is UNSET else limited(timeout, self._timeout))

    async def try_acquire(self, **unknown: Never) -> L | None:
        """Get the lease if the lock is free now, else None. Too few answers raise an error.

        That is QuorumUnavailableError, after one node timeout. It takes longer only where a node is
        being connected to, or has to be told the fence of another one: at most one more for each.
        None means that somebody else has the lock: where rivals that ask at the same moment split
        the nodes' votes, this asks again until one of them has it, for at most four node timeouts.
        """
        if unknown:
            raise _settings.unknown(unknown)
        try:
            return await self._call(None, once=True)
        except NotAcquiredError:
            return None

    async def __aenter__(self) -> L:
        lease = await self._obtain(self._timeout, False, _clock.now())
        return self._note(await lease.__aenter__())

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, bool | None]:
        entered: Entered[L] = getattr(self, "_entered", None) or Entered()
        return entered.leave().__aexit__(kind, error, trace)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _settings.enter_async
        __await__ = _settings.instead("`await lock.acquire()`, or `async with lock`")


class Lockable(Acquirable[Lease]):
    """A lock with a spec, whose lease is a plain `Lease`."""

    __slots__ = ()

    def _call(self, timeout: float | None, *, once: bool = False) -> Acquire:
        return Acquire(self._engine, self._spec, self._options, timeout, once)

    async def __aenter__(self) -> Lease:
        # The same as in the base class, without a coroutine of the lease.
        return self._note(enter(await self._call(self._timeout)))


CLOCK: Final = "clock.lua"
"""The Lua file that every script of a primitive begins with."""
FUNCTIONS: Final = "prelude.lua"
"""The Lua functions that all scripts have in common."""
BATCH: Final = "batch.lua"
"""The Lua file of scripts that do several names in one call."""
PRELUDE: Final = (CLOCK, FUNCTIONS)
"""What all scripts but the mutex's begin with; that one has its usual path in between."""


class AnyLease(Enterable, Protocol):
    """A lease of any kind: `Lease`, `MultiLease` or `ReentrantLease`."""

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""

    @property
    def owner(self) -> str:
        """The random id stored in Redis, with the label of this process."""

    @property
    def fence(self) -> int:
        """The fencing token to pass to the store."""

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the lease is not entered."""

    def remaining(self) -> float:
        """Return the seconds until the lease ends without renewal; 0 once it has ended."""

    async def wait_lost(self) -> None:
        """Wait until the lease has ended; after a release `lost_reason` is None."""

    async def extend(self, ttl: float | None = None) -> None:
        """Renew the lease now for `ttl` seconds (default: its present ttl), and keep that ttl."""

    async def check(self) -> bool:
        """Return whether the nodes still keep the lease for us, without renewing it."""

    async def detach(self) -> bytes:
        """Hand the lease out of this process, if it can be: return the ticket to resume it."""

    async def publish(self, text: str) -> bool:
        """Publish a message for people; return whether a quorum of nodes stores it now."""

    async def release(self) -> bool:
        """Release the lease. Return whether it was held until now."""

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts."""


class AnyLock(Protocol):
    """A lock of any kind: what `lock`, `semaphore`, `multi_lock` and the like return.

    Of a read-write lock, each of its two sides is such a lock.
    """

    @property
    def name(self) -> str:
        """The name that is locked, without the manager's prefix."""

    def acquire(self, *, timeout: float | None = ...) -> AcquireContext[AnyLease]:
        """Get a lease: `await` it, or enter it with `async with`."""

    async def try_acquire(self) -> AnyLease | None:
        """Get a lease if the lock is free now, else None."""

    async def __aenter__(self) -> AnyLease: ...

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> Coroutine[Any, Any, bool | None]: ...


# ---- What a primitive keeps on the nodes, declared beside its script -----------------------------
# The tools iterate over these declarations, so that a new primitive changes none of them.


@dataclass(frozen=True, slots=True)
class Part:
    """One sort of key that belongs to a name."""

    script: Script
    suffix: str = ""
    """The end of the key, after the lock's own key; "" for the lock's own key."""
    shown: str = ""
    """The part as users know it, unless it is numbered."""
    numbered: int = 0
    """Maximum number of such keys of one name, each with a number behind `suffix`; 0: no number."""
    single: ClassVar[bool] = False
    """Whether a read gets what lock.lua gets, so that one command can read many of these keys."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The ends of all such keys."""
        return tuple(f"{self.suffix}{i}" for i in range(self.numbered)) or (self.suffix,)

    def named(self, end: str) -> str:
        """Return the part as users know it, of the key with this end."""
        return end if self.numbered else self.shown

    def keys(self, whole: str, end: str = "") -> tuple[str, ...]:
        """Return the keys that the script takes; of numbered ones, `end` says which."""
        end = end or self.suffix
        key = derived(whole, end) if end else whole
        return key, counter(key)

    def inspect(self, keys: tuple[str, ...]) -> Command:
        """Return the command that reads the key."""
        return Command(self.script, keys, ("inspect",))


@dataclass(frozen=True, slots=True)
class Held(Part):
    """A key that names the owner of a lease."""

    single: ClassVar[bool] = True
    queue: str = ""
    """The end of the key of the queue whose first waiter a release wakes; "" for none."""
    beside: tuple[str, ...] = ()
    """The ends of the keys of the other side, with which this one takes turns."""

    def spec(self, name: str, whole: str, end: str = "", **more: Any) -> LockSpec:
        """Return the spec of a lock on `name`; `more` replaces fields of the usual spec."""
        keys = self.keys(whole, end)
        usual = {"queue_key": keys[0], "watched": keys[:1], "part": self.named(end)}
        usual |= {"queue": self.queue and derived(whole, self.queue)}
        usual |= {"neighbours": tuple(derived(whole, other) for other in self.beside)}
        return LockSpec(name, self.script, keys, phased=bool(self.beside), **(usual | more))

    def views(self, node: str, reply: Any) -> list[NodeView] | Failure:
        """Return the owner that `node` names in its reply, if there is one."""
        one = holder(reply)
        if isinstance(one, Failure):
            return one
        return [] if one.owner is None else [NodeView(node, one.owner, one.left, one.fence)]


@dataclass(frozen=True, slots=True)
class Queue(Part):
    """The tickets of those who wait, in order (queue.lua)."""

    def inspect(self, keys: tuple[str, ...]) -> Command:
        return question(keys[0])


OTHER: Final = "-2"
"""Suffix of the second name that a trial may use."""
Trial = Callable[[Engine, str, LeaseOptions, float], Awaitable[object]]
"""Uses the primitive of a name once, with a timeout in seconds, so that its scripts run."""


async def use(*locks: AbstractAsyncContextManager[object]) -> None:
    """Enter and leave each lock: the trial of most primitives."""
    for lock in locks:
        async with lock:
            pass


@dataclass(frozen=True, slots=True)
class Kind:
    """What tools must know of one kind of primitive."""

    name: str
    """What inspections and JSON call it."""
    scripts: tuple[Script, ...]
    trial: Trial
    parts: tuple[Part, ...] = ()
    """The keys that a survey reads."""
    method: str = ""
    """The method of LockManager that makes the primitive, if its name isn't that of the kind."""

    def keys(self, whole: str) -> set[str]:
        """Return all keys of the primitive whose lock's own key is `whole`; of slots the first."""
        found = {part.keys(whole, part.ends[0]): part.single for part in self.parts}
        messages = {derived(keys[0], MESSAGE) for keys, single in found.items() if single}
        return messages.union(*found)

    def queues(self, whole: str) -> tuple[Command, ...]:
        """Return what reads the queues of the primitive whose lock's own key is `whole`."""
        queues = (part for part in self.parts if isinstance(part, Queue))
        return tuple(part.inspect(part.keys(whole)) for part in queues)
