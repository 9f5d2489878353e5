"""The fair lock: first come, first served, across processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect
from .._engine.options import LeaseOptions
from .._engine.spec import LockSpec
from .._keys import derived, lock_key
from .._nodes.script import Command, Script
from ..errors import UnsupportedDeploymentError
from .base import PRELUDE, Lockable
from .kind import Held, Kind, Waiting

SCRIPT = Script.load(__package__, PRELUDE, "fair.lua", "lock.lua")


@dataclass(frozen=True, slots=True)
class _Waiters(Waiting):
    """The sorted set of waiters."""

    single: ClassVar[bool] = False

    def inspect(self, keys: tuple[str, ...]) -> Command:
        return Command.plain("ZCARD", keys[0])

    def count(self, reply: Any) -> int:
        return int(reply)


MUTEX = Held(SCRIPT, "fair")
WAITERS = _Waiters(SCRIPT, "waiters")
QUEUE = "queue"
KIND = Kind("fair", (SCRIPT,), (MUTEX, WAITERS), (QUEUE,))

PATIENCE = 2.0
"""Seconds after which a silent waiter counts as crashed; a live one asks again in half of that."""


class FairLock(Lockable):
    """A mutex that goes to the task that has waited longest, in any process.

    The server keeps the queue in the order in which requests first reached it. A waiter that
    crashed is skipped after 2 s; a waiter that stops waiting leaves at once. Every hand-over goes
    through the server, so this is slower than `lock`, which hands over inside a process.

    Works on single and replicated deployments. After a failover the replica may lack the end of the
    queue; those waiters queue again. A quorum has no single order of arrivals, so there `fair_lock`
    raises UnsupportedDeploymentError (docs/decisions/0003).
    """

    __slots__ = ()

    def __init__(
        self, engine: Engine, prefix: str, name: str, options: LeaseOptions, timeout: float | None
    ) -> None:
        nodes = len(engine.multiplexer.nodes)
        if nodes > 1:
            raise UnsupportedDeploymentError(
                f"fair_lock needs one server to keep the queue; {nodes} independent nodes have no "
                "common order of arrivals (use lock, or fair_lock on one of them)",
                name=name,
            )
        key = lock_key(prefix, name)
        keys = MUTEX.keys(key)
        spec = LockSpec(
            name,
            SCRIPT,
            keys,
            watched=keys[:1],
            neighbours=(derived(key, QUEUE), WAITERS.keys(key)[0]),
            ticket_ttl=PATIENCE,
            server_queue=True,
        )
        super().__init__(engine, spec, options, timeout)

    async def inspect(self) -> Inspection:
        """Return which owner has the lock, node by node; takes at most one node timeout."""
        return await inspect(self._engine, self._spec, "fair_lock")
