"""The primitives besides the mutex, as methods of the manager."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypedDict, Unpack

from .. import _settings
from .._engine.engine import Engine
from .._engine.options import HandOff, LeaseOptions
from .._keys import lock_key
from ..errors import ConfigurationError
from . import barrier, election, event, fair, latch, lock, multi, readwrite, semaphore
from .barrier import MOST as MOST_PARTIES
from .barrier import Barrier
from .base import Defaults
from .election import Election
from .event import SharedEvent
from .fair import FairLock
from .kind import Kind
from .latch import MOST as MOST_COUNTS
from .latch import Latch
from .lock import Lock, spec
from .multi import MOST as MOST_NAMES
from .multi import MultiLock
from .readwrite import ReadWriteLock
from .reentrant import ReentrantLock, Registry
from .register import KEEP, Register
from .semaphore import MOST, Semaphore
from .synchronized import P, R, synchronized

KINDS = tuple(
    module.KIND
    for module in (lock, readwrite, multi, fair, election, semaphore, event, latch, barrier)
)
"""What each primitive declares of itself."""
SCRIPTS = tuple(dict.fromkeys(script for kind in KINDS for script in kind.scripts))
"""All scripts; each connection loads them at once, because an unknown script loses a wake-up."""


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


class Catalogue:
    """The methods that make primitives; the manager inherits them."""

    _engine: Engine
    _defaults: Defaults

    def __init__(self) -> None:
        self._nestings: Registry = {}

    def _options(self, settings: LockSettings | WaitSettings) -> tuple[LeaseOptions, float | None]:
        if wrong := settings.keys() - LockSettings.__annotations__.keys():
            raise _settings.unknown(wrong)
        given: dict[str, Any] = {"ttl": None, **settings}
        timeout = given.pop("timeout", None)
        return self._defaults.options(**given), timeout

    def reentrant_lock(
        self, name: str, *, inherit: bool = False, **settings: Unpack[LockSettings]
    ) -> ReentrantLock:
        """Make a mutex on `name` that the task which holds it may acquire again.

        Raises ConfigurationError.

        Args:
            name: what is locked, as in `lock`.
            inherit: whether tasks started while it is held may acquire it too.
            settings: those of `lock`.
        """
        options, timeout = self._options(settings)
        wanted = spec(self._defaults.prefix, _settings.name(name))
        return ReentrantLock(
            self._engine, wanted, options, timeout, self._nestings, inherit=inherit
        )

    def multi_lock(self, *names: str, **settings: Unpack[LockSettings]) -> MultiLock:
        """Make a lock on all of `names` at once; each is the mutex of `lock(name)`.

        Raises ConfigurationError.

        Args:
            names: what is locked; at most 64 names.
            settings: those of `lock`.
        """
        options, timeout = self._options(settings)
        if not 1 <= len(names) <= MOST_NAMES:
            raise ConfigurationError(
                f"multi_lock takes from 1 to {MOST_NAMES} names, not {len(names)}"
            )
        checked = [_settings.name(name) for name in names]
        return MultiLock(self._engine, self._defaults.prefix, checked, options, timeout)

    def synchronized(
        self, template: str, *, lease: str | None = None, **settings: Unpack[LockSettings]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function: each call holds the mutex that `template` names.

            @locks.synchronized("orders:{order_id}", timeout=2)
            async def ship(order_id: int) -> None: ...

        A call raises the errors of `acquire`; decorating raises ConfigurationError.

        Args:
            template: the name, with `{order_id}`, `{order.id}` and the like for the call's
                arguments, defaults included.
            lease: the name of a keyword-only parameter that gets the lease.
            settings: those of `lock`.
        """
        options, timeout = self._options(settings)

        def lock(name: str) -> Lock:
            return self._mutex(_settings.name(name), options, timeout)

        return synchronized(lock, template, lease)

    def _mutex(self, name: str, options: LeaseOptions, timeout: float | None) -> Lock:
        return Lock(self._engine, spec(self._defaults.prefix, name), options, timeout)

    def rwlock(self, name: str, **settings: Unpack[LockSettings]) -> ReadWriteLock:
        """Make a read-write lock on `name`: `.read()` is shared, `.write()` is exclusive.

        Raises ConfigurationError.

        Args:
            name: what is locked.
            settings: those of `lock`; they apply to both sides.
        """
        options, timeout = self._options(settings)
        checked = _settings.name(name, "a lock's name")
        return ReadWriteLock(self._engine, self._defaults.prefix, checked, options, timeout)

    def fair_lock(self, name: str, **settings: Unpack[WaitSettings]) -> FairLock:
        """Make a mutex on `name` that goes to the longest waiter; not available over a quorum.

        Raises ConfigurationError, and UnsupportedDeploymentError over a quorum.

        Args:
            name: what is locked, apart from the mutex of `lock`.
            settings: those of `lock`, without `handoff`.
        """
        options, timeout = self._options(settings)
        checked = _settings.name(name)
        return FairLock(self._engine, self._defaults.prefix, checked, options, timeout)

    def election(self, name: str, **settings: Unpack[WaitSettings]) -> Election:
        """Make an election of the leader of `name`. Raises ConfigurationError.

        Args:
            name: what the leader leads.
            settings: those of `lock`, without `handoff`. `ttl` is the maximum number of seconds
                without a leader after a leader has crashed.
        """
        options, timeout = self._options(settings)
        checked = _settings.name(name, "an election's name")
        return Election(self._engine, self._defaults.prefix, checked, options, timeout)

    def event(self, name: str, *, keep: float = KEEP) -> SharedEvent:
        """Make an event on `name`: a flag that every process sees. Raises ConfigurationError.

        Args:
            name: the name of the event.
            keep: seconds after the last change at which the nodes forget the event.
        """
        return SharedEvent(self._register(name, event.KIND, keep))

    def latch(self, name: str, count: int, *, keep: float = KEEP) -> Latch:
        """Make a latch on `name` that opens after `count` counts. Raises ConfigurationError.

        Args:
            name: the name of the latch.
            count: number of counts that open it, 1 to 1000; the same in every process.
            keep: seconds after the last count at which the nodes forget the latch.
        """
        checked = _settings.count(count, "count", MOST_COUNTS)
        return Latch(self._engine, self._register(name, latch.KIND, keep), checked)

    def barrier(
        self, name: str, parties: int, *, ttl: float | None = None, keep: float = KEEP
    ) -> Barrier:
        """Make a barrier on `name` for `parties` at a time. Raises ConfigurationError.

        Args:
            name: the name of the barrier.
            parties: number of parties that pass together, 1 to 256; the same in every process.
            ttl: seconds after which a party that crashed while it waited stops counting (default:
                the manager's ttl).
            keep: seconds after the last arrival at which the nodes forget the barrier.
        """
        checked = _settings.count(parties, "parties", MOST_PARTIES)
        options = self._defaults.options(ttl=ttl)
        return Barrier(self._engine, self._register(name, barrier.KIND, keep), checked, options.ttl)

    def _register(self, name: str, kind: Kind, keep: float) -> Register:
        checked = _settings.name(name, f"the name of a {kind.name}")
        (key,) = kind.parts[0].keys(lock_key(self._defaults.prefix, checked))
        return Register(self._engine, checked, key, _settings.seconds(keep, "keep"))

    def semaphore(self, name: str, permits: int, **settings: Unpack[LockSettings]) -> Semaphore:
        """Make a semaphore on `name`: at most `permits` leases at a time.

        Raises ConfigurationError.

        Args:
            name: the name of the semaphore.
            permits: maximum number of leases, 1 to 256; the same in every process.
            settings: those of `lock`.
        """
        options, timeout = self._options(settings)
        checked = _settings.name(name, "a semaphore's name")
        most = _settings.count(permits, "permits", MOST)
        return Semaphore(self._engine, self._defaults.prefix, checked, most, options, timeout)
