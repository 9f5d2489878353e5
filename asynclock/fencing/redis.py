"""Writes to Redis that a stale holder cannot make."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from .stamp import Fenced, FenceStamp, StaleFenceError

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

Value = str | bytes | int | float

_GUARD = (files(__package__) / "guard.lua").read_text("utf-8")
_WEEK = 7 * 86400.0


class FencedRedis:
    """Applies a write only if its fence is not lower than the last one seen for its lock.

    fenced = FencedRedis(redis.asyncio.Redis(...))
    async with locks.lock("orders:42") as lease:
        await fenced.hset(lease, "order:42", {"state": "paid"})

    Comparison and write are one script, so nothing gets between them. All keys written under one
    lock share one record, `prefix` + the lock's name, kept for `retention` seconds after the last
    accepted write (None: for ever); a holder that sleeps longer than that is not recognised. In a
    Redis Cluster, record and written keys must live in one slot: put the same {tag} in both.

    Every method raises `StaleFenceError` when a newer holder was here before, and the client's
    own errors otherwise. A call that was cancelled or lost its connection may have been applied;
    repeating it with the same fence does no harm.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str = "asynclock:seen:",
        retention: float | None = _WEEK,
    ) -> None:
        if not inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
            raise ConfigurationError(f"FencedRedis needs a redis.asyncio client, not {client!r}")
        if retention is not None and not 0.001 <= retention < 2**40:
            raise ConfigurationError(f"retention must be positive seconds or None: {retention!r}")
        self._prefix = prefix
        self._retention = 0 if retention is None else round(retention * 1000)
        self._script = client.register_script(_GUARD)

    async def claim(self, lease: Fenced, /) -> None:
        """Show the fence without writing: from now on, earlier holders are refused."""
        await self._apply(lease, "claim")

    async def set(
        self, lease: Fenced, key: str | bytes, value: Value, *, ttl: float | None = None
    ) -> None:
        """SET; the key lives for `ttl` seconds (None: for ever)."""
        if ttl is not None and not 0.001 <= ttl < 2**40:
            raise ConfigurationError(f"ttl must be positive seconds or None: {ttl!r}")
        lifetime = () if ttl is None else (round(ttl * 1000),)
        await self._apply(lease, "set", [key], value, *lifetime)

    async def hset(
        self, lease: Fenced, key: str | bytes, mapping: Mapping[str, Value] | Mapping[bytes, Value]
    ) -> int:
        """HSET of all fields of `mapping` → the number of fields that are new."""
        if not mapping:
            raise ConfigurationError("hset needs at least one field")
        words = [word for pair in mapping.items() for word in pair]
        return await self._apply(lease, "hset", [key], *words)

    async def delete(self, lease: Fenced, *keys: str | bytes) -> int:
        """DEL → the number of keys that existed."""
        if not keys:
            raise ConfigurationError("delete needs at least one key")
        return await self._apply(lease, "del", keys)

    async def _apply(
        self, lease: Fenced, operation: str, keys: Sequence[str | bytes] = (), *words: Value
    ) -> int:
        stamp = FenceStamp.of(lease)
        applied, figure = await self._script(
            keys=[self._prefix + stamp.name, *keys],
            args=[operation, stamp.fence, self._retention, *words],
        )
        if not applied:
            raise StaleFenceError.refused(stamp, int(figure))
        return int(figure)
