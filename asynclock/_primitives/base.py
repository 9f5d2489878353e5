"""What all locks have in common: settings, and the ways to acquire them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from .. import _settings
from .._engine.acquiring import Acquiring, L
from .._engine.acquisition import Wish
from .._engine.engine import Engine
from .._engine.lease import HandOff, Lease, Terms
from .._engine.recipe import Recipe
from ..errors import ConfigurationError, NotAcquiredError


class _Unset:
    """The type of UNSET."""


UNSET: Final = _Unset()
"""An argument that was not given, where None means something."""

Timeout = float | None | _Unset


def limited(timeout: Timeout, default: float | None) -> float | None:
    """The timeout of one call."""
    if isinstance(timeout, _Unset):
        return default
    return _settings.optional_seconds(timeout, "timeout", zero=True)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a manager gives to the locks it makes; seconds."""

    ttl: float
    node_timeout: float
    max_ttl: float
    prefix: str
    usual: Terms
    """What a lock gets that asks for nothing special."""

    @classmethod
    def checked(
        cls, ttl: float, max_ttl: float | None, node_timeout: float, prefix: str
    ) -> Defaults:
        """What `connect` was given. Raises ConfigurationError."""
        if not isinstance(prefix, str):
            raise ConfigurationError(f"prefix must be a str, not {type(prefix).__name__}")
        timeout = _settings.seconds(node_timeout, "node_timeout")
        longest = _settings.optional_seconds(max_ttl, "max_ttl")
        usual = _settings.seconds(ttl, "ttl")
        longest = max(usual, 10.0) if longest is None else longest
        _settings.ttl(usual, node_timeout=timeout, max_ttl=longest)
        if timeout > longest / 4:
            # An attempt takes up to two node timeouts and must end well within every quarantine.
            raise ConfigurationError(
                f"node_timeout={timeout:g} must be at most a quarter of max_ttl={longest:g}"
            )
        return cls(usual, timeout, longest, prefix, Terms(usual))

    def terms(
        self,
        *,
        ttl: float | None,
        renew: bool = True,
        max_hold: float | None = None,
        interrupt: bool = True,
        handoff: HandOff = True,
    ) -> Terms:
        """Checked terms; `ttl` None means the manager's."""
        if ttl is max_hold is None and renew is interrupt is handoff is True:
            return self.usual
        if handoff not in (True, False, "block", "strict"):
            raise ConfigurationError(
                f'handoff must be True (from reserved fences), "strict" or False, not {handoff!r}'
            )
        return Terms(
            ttl=_settings.ttl(
                self.ttl if ttl is None else ttl,
                node_timeout=self.node_timeout,
                max_ttl=self.max_ttl,
            ),
            renew=bool(renew),
            max_hold=_settings.optional_seconds(max_hold, "max_hold"),
            interrupt=bool(interrupt),
            handoff=True if handoff == "block" else handoff,
        )


class Lockable:
    """A name with settings that can be acquired: stateless, shared by any number of tasks."""

    __slots__ = ("_engine", "_entered", "_recipe", "_terms", "_timeout")

    def __init__(self, engine: Engine, recipe: Recipe, terms: Terms, timeout: float | None) -> None:
        self._engine = engine
        self._recipe = recipe
        self._terms = terms
        if timeout is not None:
            timeout = _settings.seconds(timeout, "timeout", zero=True)
        self._timeout = timeout
        # Which lease an `async with` on this object must end: nothing else is kept here.
        self._entered: Entered[Lease] = Entered()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} ttl={self._terms.ttl:g}>"

    @property
    def name(self) -> str:
        """The name it locks."""
        return self._recipe.name

    def _wanted(self) -> Recipe:
        # Which place of the name to try first, where there are several.
        return self._recipe

    def acquire(self, *, timeout: Timeout = UNSET) -> Acquiring[Lease]:
        """Get the lease: `await` it, or enter it with `async with`.

        Waits at most `timeout` seconds (None: for ever; default: the lock's own). Raises
        AcquireTimeoutError if others had it for so long, QuorumUnavailableError if too few nodes
        answered (for so long, or through the longest quarantine when waiting for ever),
        AlreadyHeldError if this very task holds it, ConfigurationError if it can never work.
        Cancelled, it leaves nothing behind.
        """
        limit = self._timeout if timeout is UNSET else limited(timeout, self._timeout)
        return Wish(self._engine, self._wanted(), self._terms, limit)

    async def try_acquire(self) -> Lease | None:
        """Get the lease if it is free now, else None. An outage raises QuorumUnavailableError."""
        wish = Wish(self._engine, self._wanted(), self._terms, None, once=True)
        try:
            return await wish
        except NotAcquiredError:
            return None

    async def __aenter__(self) -> Lease:
        wish = Wish(self._engine, self._wanted(), self._terms, self._timeout)
        lease = (await wish).enter()
        self._entered.append(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._entered.leave().__aexit__(kind, error, trace)


class Entered(list[L]):
    """The leases that an `async with` on one lock object has entered and not left."""

    __slots__ = ()

    def leave(self) -> L:
        """The one that is left now: ours, if this task entered one.

        Else whichever was entered last: a fixture may be left in another task than it was
        entered in.
        """
        if len(self) == 1:
            return self.pop()
        task = asyncio.current_task()
        mine = [lease for lease in self if lease.task is task]
        lease = mine[-1] if mine else self[-1]
        self.remove(lease)
        return lease


PRELUDE: Final = "prelude.lua"
"""Comes before every script."""
