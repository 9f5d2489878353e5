"""Interrupts a body on a loss, for holds that consist of one or more leases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from .._engine.interruption import Interruption
from .._engine.lease import Lease


class Body:
    """Guards one body: the loss of any of its leases interrupts it, as with a single `Lease`."""

    __slots__ = ("_interruption", "_leases")

    def __init__(self) -> None:
        self._leases: Sequence[Lease] = ()
        self._interruption: Interruption | None = None

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that runs the body; None outside of it."""
        return None if self._interruption is None else self._interruption.task

    def enter(self, leases: Sequence[Lease]) -> None:
        """Begin the body, which any loss among `leases` interrupts.

        Raises RuntimeError if it has begun already, ConfigurationError in another event loop than
        the manager's.
        """
        if self._interruption is not None:
            raise RuntimeError("this lease has been entered already")
        leases[0].check_loop()
        self._interruption = Interruption()
        self._leases = leases
        for lease in leases:
            lease.guard(self._interruption)

    def move(self) -> None:
        """Make the calling task the one that a loss interrupts."""
        if self._interruption is None:
            raise RuntimeError("this lease is not entered")
        self._leases[0].check_loop()
        self._interruption.move()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """Note that the body has ended with `kind`; return whether a loss ended it."""
        body, self._interruption = self._interruption, None
        if body is None:
            return False
        for lease in self._leases:
            lease.unguard(body)
        return body.leave(kind)
