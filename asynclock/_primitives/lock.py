"""The mutex: one holder at a time, over one node or a quorum."""

from __future__ import annotations

from functools import lru_cache

from .._engine.recipe import Recipe
from .._nodes.script import Script
from .._settings import COUNTER, HASH_TAG
from ..errors import ConfigurationError
from .base import PRELUDE, Lockable

SCRIPT = Script.load(__package__, PRELUDE, "lock.lua")


def lock_key(prefix: str, name: str) -> str:
    """The key of `name`; the keys of its parts begin with it.

    On a Cluster the name is in braces: all that begins so shares a slot.
    """
    if not prefix.endswith(HASH_TAG):
        return prefix + name
    if name.startswith("}"):
        raise ConfigurationError(f"on a Cluster a name must not start with a brace: {name!r}")
    return f"{prefix}{name}}}"


@lru_cache(maxsize=1024)
def recipe(prefix: str, name: str) -> Recipe:
    """How a mutex on `name` is locked. Kept, as most names are locked again and again."""
    key = lock_key(prefix, name)
    return Recipe(name, SCRIPT, (key, key + COUNTER), line=key, watched=(key,))


class Lock(Lockable):
    """A mutex: at most one lease at a time for its name, whatever fails.

    Redlock's promise in time holds while clocks drift by less than 1 % of the ttl and guards are
    on; the fence of each lease lets a store refuse what comes too late, without any such
    condition. On every deployment. Algorithm: docs/fencing.md; Redlock:
    https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
    """

    __slots__ = ()
