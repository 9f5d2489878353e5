"""Ends a body when what it stands on is lost, for holds that are made of others' leases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from .._engine.lease import Lease


class Interruption:
    """Around one body: the loss of any of some leases ends it, as that of a `Lease` does."""

    __slots__ = ("_leases", "_scope", "task")

    def __init__(self) -> None:
        self._leases: Sequence[Lease] = ()
        self._scope: asyncio.Timeout | None = None
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        """Whose body it is."""

    async def enter(self, leases: Sequence[Lease]) -> None:
        """The body begins. Raises RuntimeError if it has begun before."""
        if self._scope is not None:
            raise RuntimeError("this lease has been entered already")
        self.task = asyncio.current_task()
        self._leases = leases
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        for lease in leases:
            lease.on_end(self._look)

    def _look(self) -> None:
        lost = any(one.lost_reason is not None and one.terms.interrupt for one in self._leases)
        if lost and self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """The body has ended. → whether it was this that ended it."""
        scope, self._scope = self._scope, None
        if scope is not None and asyncio.current_task() is self.task:
            try:
                await scope.__aexit__(kind, error, trace)
            except TimeoutError:
                return True
        return False
