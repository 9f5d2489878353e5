"""Writes to Redis that are rejected if they come from a stale holder."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from .._keys import SEEN, derived, lock_key
from ..errors import ConfigurationError
from .stamp import Fenced, FenceStamp, StaleFenceError

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

Value = str | bytes | int | float

_GUARD = (files(__package__) / "guard.lua").read_text("utf-8")
_DAY = 86400.0


class FencedRedis:
    """Applies a write only if its fence is not lower than the highest fence seen for its lock.

        fenced = FencedRedis(redis.asyncio.Redis(...))
        async with locks.lock("orders:42") as lease:
            await fenced.hset(lease, "order:42", {"state": "paid"})

    Comparison and write are one script, so no other write comes between them. All keys written
    under one lock share one record, `prefix` + the lock's name + `:#seen`. Each slot of a semaphore
    has its own record, and so have the readers and the writer of a read-write lock: a writer is
    rejected after a newer reader or writer, a reader after a newer writer. In a Redis Cluster,
    records and written keys must be in one hash slot: put the same {tag} in both.

    Every method raises `StaleFenceError` if a newer holder has written before, and the client's own
    errors otherwise. A call that was cancelled or lost its connection may have been applied; it is
    safe to repeat it with the same fence.

    Args:
        client: an asyncio client of redis-py, for one server or a Cluster.
        prefix: what the keys of all records begin with.
        retention: seconds that Redis keeps a record after its last accepted write (None: without
            limit); the same for all users of the records. A lease that was acquired more than half
            of that ago needs a record, so its holder must have written, or called `claim`, within
            `retention`: otherwise it is rejected, because a newer holder's record may have expired.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = "asynclock:seen:",
        retention: float | None = _DAY,
    ) -> None:
        if not inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
            raise ConfigurationError(f"FencedRedis needs a redis.asyncio client, not {client!r}")
        if retention is not None and not 0.001 <= retention < 2**40:
            raise ConfigurationError(f"retention must be positive seconds or None: {retention!r}")
        self._prefix = prefix
        self._retention = 0 if retention is None else round(retention * 1000)
        self._script = client.register_script(_GUARD)

    async def claim(self, lease: Fenced, /) -> None:
        """Store only the fence, without another write: earlier holders are rejected from now on.

        Args:
            lease: the lease under which the caller writes, or its stamp.
        """
        await self._apply(lease, "claim")

    async def set(
        self, lease: Fenced, key: str | bytes, value: Value, *, ttl: float | None = None
    ) -> None:
        """SET `key`.

        Args:
            lease: the lease under which the caller writes, or its stamp.
            key: the key to write.
            value: its new value.
            ttl: seconds that the key lives (None: without limit).
        """
        if ttl is not None and not 0.001 <= ttl < 2**40:
            raise ConfigurationError(f"ttl must be positive seconds or None: {ttl!r}")
        lifetime = () if ttl is None else (round(ttl * 1000),)
        await self._apply(lease, "set", [key], value, *lifetime)

    async def hset(
        self, lease: Fenced, key: str | bytes, mapping: Mapping[str, Value] | Mapping[bytes, Value]
    ) -> int:
        """HSET fields of a hash; return the number of new fields.

        Args:
            lease: the lease under which the caller writes, or its stamp.
            key: the key of the hash.
            mapping: fields and values, at least one.
        """
        if not mapping:
            raise ConfigurationError("hset needs at least one field")
        words = [word for pair in mapping.items() for word in pair]
        return await self._apply(lease, "hset", [key], *words)

    async def delete(self, lease: Fenced, *keys: str | bytes) -> int:
        """DEL keys; return the number of keys that existed.

        Args:
            lease: the lease under which the caller writes, or its stamp.
            keys: the keys to remove, at least one.
        """
        if not keys:
            raise ConfigurationError("delete needs at least one key")
        return await self._apply(lease, "del", keys)

    async def _apply(
        self, lease: Fenced, operation: str, keys: Sequence[str | bytes] = (), *words: Value
    ) -> int:
        stamp = FenceStamp.of(lease)
        applied, figure = await self._script(
            keys=[self._record(stamp.name, part) for part in (stamp.part, *stamp.rivals)]
            + list(keys),
            args=[operation, stamp.fence, self._retention, len(stamp.rivals), *words],
        )
        if applied < 0:
            raise StaleFenceError.too_old(stamp, int(figure))
        if not applied:
            raise StaleFenceError.refused(stamp, int(figure))
        return int(figure)

    def _record(self, name: str, part: str) -> str:
        key = lock_key(self._prefix, name)
        return derived(derived(key, part) if part else key, SEEN)
