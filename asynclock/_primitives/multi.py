"""Several mutexes as one: all or nothing, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence

from .._engine.engine import Engine
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import Terms
from .._engine.recipe import Recipe
from .._nodes.script import Script
from .._settings import COUNTER
from .base import PRELUDE, Lockable
from .lock import lock_key, recipe

SCRIPT = Script.load(__package__, PRELUDE, "multi.lua")

MOST = 64
"""Names at most: a server does nothing else while it locks them."""


class MultiLock(Lockable):
    """All of several names, or none: each is the mutex that `lock(name)` would be.

    One script takes all names on a node at once, so nobody ever waits while holding some of them:
    no deadlock in whatever order others want them. One lease, and one fence that is right for each
    of the names: above all that any of them has seen. Whoever wants many busy names competes with
    those who want one and may wait for long.

    On single, replicated and quorum deployments. On Cluster the names would have to live in one
    slot: UnsupportedDeploymentError.
    """

    __slots__ = ("_parts", "names")

    def __init__(
        self,
        engine: Engine,
        prefix: str,
        names: Sequence[str],
        terms: Terms,
        timeout: float | None,
    ) -> None:
        self.names = tuple(sorted(set(names)))
        """What it locks, sorted, each once."""
        keys = [lock_key(prefix, name) for name in self.names]
        self._parts = [recipe(prefix, name) for name in self.names]
        whole = Recipe(
            ", ".join(self.names),
            SCRIPT,
            tuple(key + end for key in keys for end in ("", COUNTER)),
            line="\0".join(keys),
            watched=tuple(keys),
        )
        super().__init__(engine, whole, terms, timeout)

    async def inspect(self) -> Inspection:
        """Who has each name, node by node (`parts`)."""
        return await inspect_parts(self._engine, "multi_lock", self._parts)
