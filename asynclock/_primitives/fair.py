"""The fair lock: first come, first served, across processes."""

from __future__ import annotations

from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect
from .._engine.lease import Terms
from .._engine.recipe import Recipe
from .._nodes.script import Script
from .._settings import COUNTER, PART
from ..errors import UnsupportedDeploymentError
from .base import PRELUDE, Lockable
from .lock import lock_key

SCRIPT = Script.load(__package__, PRELUDE, "fair.lua", "lock.lua")

PATIENCE = 2.0
"""Seconds after which a waiter that does not ask again is taken for crashed; it asks in half."""


class FairLock(Lockable):
    """A mutex that goes to whoever has waited longest, in whatever process.

    The server keeps the queue, in the order in which requests first reached it; a waiter that
    crashed is skipped after 2 s, one that gives up leaves at once. Every hand-over goes through
    the server, so it is slower than `lock`, whose processes pass a lease on among their own tasks.

    On single and replicated deployments. A failover to a replica may forget the queue's end; those
    who wait queue again. Over a quorum there is no one order of arrivals, so it can't be had:
    UnsupportedDeploymentError (docs/decisions/0003).
    """

    __slots__ = ()

    def __init__(
        self, engine: Engine, prefix: str, name: str, terms: Terms, timeout: float | None
    ) -> None:
        nodes = len(engine.multiplexer.nodes)
        if nodes > 1:
            raise UnsupportedDeploymentError(
                f"fair_lock needs one server to keep the queue; {nodes} independent nodes have no "
                "common order of arrivals (use lock, or fair_lock on one of them)",
                name=name,
            )
        key = lock_key(prefix, name) + PART
        lock = f"{key}fair"
        recipe = Recipe(
            name,
            SCRIPT,
            (lock, lock + COUNTER),
            watched=(lock,),
            neighbours=(f"{key}queue", f"{key}waiters"),
            patience=PATIENCE,
            queued=True,
        )
        super().__init__(engine, recipe, terms, timeout)

    async def inspect(self) -> Inspection:
        """Who has it; takes at most one node timeout."""
        return await inspect(self._engine, self._recipe, "fair_lock")
