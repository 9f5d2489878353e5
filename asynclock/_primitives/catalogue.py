"""The primitives besides the mutex, as methods of the manager."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from .. import _settings
from .._engine.engine import Engine
from .._engine.lease import HandOff, Terms
from .base import Defaults
from .readwrite import ReadWriteLock
from .semaphore import MOST, Semaphore


class HoldSettings(TypedDict, total=False):
    """How a lease is to be kept: as the arguments of `LockManager.lock`; seconds."""

    ttl: float | None
    renew: bool
    max_hold: float | None
    interrupt: bool


class WaitSettings(HoldSettings, total=False):
    """The same, and how long to wait while others have it."""

    timeout: float | None


class LockSettings(WaitSettings, total=False):
    """The same, and how it passes to those of this process who wait."""

    handoff: HandOff


class Catalogue:
    """Makes primitives; the manager inherits it."""

    _engine: Engine
    _defaults: Defaults

    def _terms(self, settings: LockSettings) -> tuple[Terms, float | None]:
        given: dict[str, Any] = {"ttl": None, **settings}
        timeout = given.pop("timeout", None)
        return self._defaults.terms(**given), timeout

    def rwlock(self, name: str, **settings: Unpack[LockSettings]) -> ReadWriteLock:
        """A read-write lock on `name`: `.read()` is shared, `.write()` exclusive.

        Settings as of `lock`, for both sides. Raises ConfigurationError.
        """
        terms, timeout = self._terms(settings)
        checked = _settings.name(name, "a lock's name")
        return ReadWriteLock(self._engine, self._defaults.prefix, checked, terms, timeout)

    def semaphore(self, name: str, permits: int, **settings: Unpack[LockSettings]) -> Semaphore:
        """A semaphore on `name`: at most `permits` (1 to 256) leases at a time.

        Settings as of `lock`. Raises ConfigurationError.
        """
        terms, timeout = self._terms(settings)
        checked = _settings.name(name, "a semaphore's name")
        most = _settings.count(permits, "permits", MOST)
        return Semaphore(self._engine, self._defaults.prefix, checked, most, terms, timeout)
