"""Ends a body when what it stands on is lost, for holds that are made of others' leases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from .._engine.interruption import Interruption
from .._engine.lease import Lease


class Body:
    """Around one body: the loss of any of some leases ends it, as that of a `Lease` does."""

    __slots__ = ("_interruption", "_leases", "task")

    def __init__(self) -> None:
        self._leases: Sequence[Lease] = ()
        self._interruption: Interruption | None = None
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        """Whose body it is."""

    def enter(self, leases: Sequence[Lease]) -> None:
        """The body begins. Raises RuntimeError if it has begun before."""
        if self._interruption is not None:
            raise RuntimeError("this lease has been entered already")
        self._interruption = Interruption()
        self.task = self._interruption.task
        self._leases = leases
        for lease in leases:
            lease.on_end(self._look)

    def _look(self) -> None:
        lost = any(one.lost_reason is not None and one.terms.interrupt for one in self._leases)
        if lost and self._interruption is not None:
            self._interruption.strike()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """The body has ended with `kind`. → whether it was this that ended it."""
        body, self._interruption = self._interruption, None
        return body is not None and body.leave(kind)
