"""The mutex: one holder at a time, over one node or a quorum."""

from __future__ import annotations

from functools import lru_cache

from .. import _settings
from .._engine.spec import LockSpec
from .._keys import lock_key
from .._nodes.script import Script
from .base import BATCH, CLOCK, FUNCTIONS, Lockable
from .kind import Held, Kind, Queue

FILES = (
    CLOCK,
    "uncontended.lua",
    FUNCTIONS,
    BATCH,
    "quiet.lua",
    "queue.lua",
    "lock.lua",
    "mutex.lua",
    "holding.lua",
)
SCRIPT = Script.load(__package__, *FILES)
QUEUE = "queue"
MUTEX = Held(SCRIPT, kind="lock", queue=QUEUE)
KIND = Kind("lock", (SCRIPT,), (MUTEX, Queue(SCRIPT, QUEUE)))


@lru_cache(maxsize=1024)
def spec(prefix: str, name: str) -> LockSpec:
    """Return the spec of a mutex on `name`; cached, since most names are locked repeatedly."""
    return MUTEX.spec(name, lock_key(prefix, name))


@_settings.made_by("connect(...).lock(name)")
class Lock(Lockable):
    """A mutex: at most one lease at a time for its name, whatever fails.

    As with Redlock, this holds in time while clocks drift by less than 1 % of the ttl and the
    guards are on. The fence of each lease lets a store reject late writes without any such
    condition. Works on every deployment. Algorithm: docs/fencing.md; Redlock:
    https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """

    __slots__ = ()
