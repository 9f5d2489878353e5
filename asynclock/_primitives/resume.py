"""Taking over a lease that another process, or this one, has detached.

The owner that resumes replaces the owner of the detached lease, node by node, and only where that
still has the name; it raises the fence like any other acquire. An attempt that fails deletes what
it took, so at most one owner ever replaces the old one at a quorum (tests/model: DR1, DX1 to DX4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from .. import _settings
from .._engine.acquire import Acquire
from .._engine.ask import Attempt
from .._engine.context import closed
from .._engine.ending import Detached, no_such
from .._engine.engine import Engine
from .._engine.grant import LocalQueue
from .._engine.lease import Lease
from .._engine.refusals import had, hopeless, is_owner_id, outage
from .._engine.spec import LeaseOptions, LockSpec
from ..errors import ConfigurationError, LeaseLostError
from . import fair, lock

SPECS: Final[dict[str, Callable[[str, str], LockSpec]]] = {
    one.MUTEX.kind: one.spec for one in (lock, fair)
}
"""For each kind of lock whose leases can be detached: what returns its spec."""
ENDED: Final = "it has ended, or another resume took it"


def spec_of(detached: Detached, prefix: str) -> LockSpec:
    """Return the spec of the lock of a detached lease.

    Raises ConfigurationError if it is no lease of ours, or if managers with this prefix have no
    such lock.
    """
    if not is_owner_id(_settings.name(detached.owner, "a ticket's owner")):
        raise no_such()
    make = SPECS.get(detached.kind)
    spec = make and make(prefix, _settings.name(detached.name))
    if spec is None or spec.keys[0] != detached.key:
        raise ConfigurationError(
            "the ticket is of a manager with another prefix, or is damaged: resume the lease "
            f"with the prefix that the detaching manager has; this one's is {prefix!r}",
            name=detached.name,
        )
    return spec


class Resume(Acquire):
    """One attempt to take a detached lease over: if that fails, a second one would, too."""

    __slots__ = ("_from", "_plain")

    def __init__(
        self, engine: Engine, spec: LockSpec, options: LeaseOptions, detached: Detached
    ) -> None:
        # No local queue: tasks of this process that wait in it must not keep this call out.
        beside = replace(spec, queue_key=None, exempt=(detached.owner,))
        super().__init__(engine, beside, options, None, once=True)
        self._from = detached
        self._plain = spec

    async def _contend(
        self, queue: LocalQueue | None, first: Attempt | None, kept: float | None
    ) -> Lease:
        if first is None:
            raise closed()
        if first.won:
            first.spec = self._plain  # renewals and the release are those of any other lease
            return self._won(first, queue, kept)
        if first.hopeless:
            raise hopeless(first)
        if first.outage:
            raise outage(first)
        name, fence = self._from.name, self._from.fence
        raise LeaseLostError(
            f"the detached lease on {name!r} (fence {fence}) can't be resumed: {ENDED}"
            + (f"; {name!r} {had(first.holder)}" if first.holder else ""),
            name=name,
            reason=ENDED,
            owner=self._from.owner,
            fence=fence,
        )
