"""What the library's own tools get from a manager."""

from __future__ import annotations

from ._inspect.access import NodeAccess
from ._nodes.record import RECORD_KEY, RECORD_RETENTION
from ._primitives.register import Register
from .manager import LockManager


def node_access(locks: LockManager) -> NodeAccess:
    """Return the nodes behind `locks`; see `NodeAccess.of`."""
    return NodeAccess.of(locks._engine, locks._defaults.prefix)


def fleet_record(locks: LockManager) -> Register:
    """Return the record of the fleet's set of nodes, for `asynclock.fleet`."""
    key = locks._defaults.prefix + RECORD_KEY
    return Register(locks._engine, "the set of nodes", key, RECORD_RETENTION)
