"""The settings of locks: their types as keyword arguments, and a manager's defaults for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from .. import _settings
from .._engine.spec import HandOff, LeaseOptions
from .._keys import MARKER
from ..errors import ConfigurationError


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


@dataclass(frozen=True, slots=True)
class Defaults:
    """A manager's default settings for its locks; times in seconds."""

    ttl: float
    node_timeout: float
    max_ttl: float
    prefix: str
    usual: LeaseOptions
    """The options of a lock that is made without settings of its own."""

    @classmethod
    def checked(
        cls, ttl: float, max_ttl: float | None, node_timeout: float, prefix: str
    ) -> Defaults:
        """Build the defaults from the arguments of `connect`. Raises ConfigurationError."""
        if prefix != "":
            prefix = _settings.name(prefix, "prefix")
        if MARKER in prefix:
            raise ConfigurationError(f"prefix must not contain {MARKER!r}: {prefix!r}")
        timeout = _settings.seconds(node_timeout, "node_timeout")
        longest = _settings.optional_seconds(max_ttl, "max_ttl")
        usual = _settings.seconds(ttl, "ttl")
        longest = max(usual, 10.0) if longest is None else longest
        _settings.ttl(usual, node_timeout=timeout, max_ttl=longest)
        if timeout > longest / 4:
            # An attempt takes up to two node timeouts and must end well before every quarantine.
            raise ConfigurationError(
                f"node_timeout={timeout:g} must be at most a quarter of max_ttl={longest:g}"
            )
        return cls(usual, timeout, longest, prefix, LeaseOptions(usual))

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
        if ttl is max_hold is at_least is None and renew is interrupt is handoff is True:
            return self.usual
        return LeaseOptions(
            ttl=_settings.ttl(
                self.ttl if ttl is None else ttl,
                node_timeout=self.node_timeout,
                max_ttl=self.max_ttl,
            ),
            renew=bool(renew),
            max_hold=_settings.optional_seconds(max_hold, "max_hold"),
            interrupt=bool(interrupt),
            handoff=_settings.handoff(handoff),
            at_least=_settings.optional_seconds(at_least, "at_least") or 0.0,
        )

    def read(
        self, settings: HoldSettings, at_least: float | None = None
    ) -> tuple[LeaseOptions, float | None]:
        """Return the checked options and the timeout. Raises ConfigurationError."""
        if wrong := settings.keys() - LockSettings.__annotations__.keys():
            raise _settings.unknown(wrong)
        given: dict[str, Any] = {"ttl": None, "at_least": at_least, **settings}
        timeout = given.pop("timeout", None)
        return self.options(**given), timeout
