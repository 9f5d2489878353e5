"""A lease, as far as the grant and the engine need it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol
from weakref import ReferenceType

from .options import LeaseOptions


class Holder(Protocol):
    """A lease, as far as the engine needs it."""

    @property
    def _options(self) -> LeaseOptions:
        """The options that the lease was requested with."""

    def _inside(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` runs a body of this lease."""

    def _ended(self, reason: str | None) -> None:
        """Mark the lease as ended, with the reason of a loss, or None for a release."""

    def _was_lost(self, reason: str) -> None:
        """Count and report the loss that the replies to the release show."""

    def _forked(self, reason: str) -> None:
        """In a forked child: mark the lease as not held."""


LeaseReference = ReferenceType[Holder]
