"""Checks of fences: a fence protects nothing unless the store checks it.

`FencedRedis` guards writes to Redis. `require_fence` and `fence_middleware` guard HTTP handlers;
they are in `fencing.fastapi` and `fencing.aiohttp`, which this package doesn't import.
docs/fencing.md has the recipe for SQL.
"""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from .._keys import SEEN, derived, lock_key
from ..errors import AsyncLockError, ConfigurationError

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

__all__ = [
    "LOCK_FENCE_HEADER",
    "LOCK_NAME_HEADER",
    "LOCK_PART_HEADER",
    "FenceHeaderError",
    "FenceStamp",
    "FenceStore",
    "Fenced",
    "FencedRedis",
    "MemoryFenceStore",
    "StaleFenceError",
    "check_fence",
    "fence_headers",
    "read_fence_headers",
]

# ---- The stamp that a store compares: the name of a lock, its part, and the fence of one lease ---


FENCE_LIMIT = 2**53
"""All fences are below this number, so that Lua, JSON and JavaScript represent them exactly."""


READ, WRITE = "read", "write"
"""The parts in the leases of a read-write lock."""
_PART = re.compile(r"[a-z0-9]{0,16}")


class Fenced(Protocol):
    """Anything with a lock's name and a fence, such as a `Lease` or a `FenceStamp`.

    If it also has a `part`, such as the slot of a semaphore, that is compared as well.
    """

    @property
    def name(self) -> str:
        """Name of the lock."""

    @property
    def fence(self) -> int:
        """Fencing token, which rises with every lease on the name."""


@dataclass(frozen=True, slots=True)
class FenceStamp:
    """A lock's name and a fence without the lease, to be sent in a message or a request.

    Raises ConfigurationError for wrong values.

    Args:
        name: the lock's name.
        fence: the lease's fencing token.
        part: the lease's (`lease.part`): the slot of a semaphore, the side of a read-write lock, or
            "" for a lock with a single holder.
    """

    name: str
    fence: int
    part: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not _is_text(self.name):
            raise ConfigurationError(f"a lock's name is a non-empty str, not {self.name!r}")
        if not isinstance(self.fence, int) or isinstance(self.fence, bool):
            raise ConfigurationError(f"a fence is an int, not {self.fence!r}")
        if not 0 < self.fence < FENCE_LIMIT:
            raise ConfigurationError(f"a fence must be between 1 and 2**53 - 1, not {self.fence}")
        if not isinstance(self.part, str) or not _PART.fullmatch(self.part):
            raise ConfigurationError(
                f"a part is up to 16 small letters and digits, not {self.part!r}"
            )

    @classmethod
    def of(cls, fenced: Fenced) -> FenceStamp:
        """Return the stamp of a lease. Raises ConfigurationError if its values are wrong.

        Args:
            fenced: a lease of any kind on one name, or another stamp.
        """
        fences = getattr(fenced, "fences", None)
        if isinstance(fences, Mapping):  # one record for all of them would protect none
            raise ConfigurationError(
                f"{fenced!r} has a fence for each of its parts: check each on its own, for example "
                "FenceStamp(name, lease.fences[name]) for a name of a multi_lock, and "
                "FenceStamp(lease.name, lease.fences[slot], slot) for a permit"
            )
        return cls(fenced.name, fenced.fence, getattr(fenced, "part", ""))

    @property
    def rivals(self) -> tuple[str, ...]:
        """The parts of the name whose highest fences this fence must not be below.

        The slots of a semaphore are independent of each other. A reader comes after all writers
        with lower fences, but readers hold at the same time, whatever the order of their fences. A
        writer comes after all writers and readers with lower fences.
        """
        if self.part == READ:
            return (WRITE,)
        return (WRITE, READ) if self.part == WRITE else (self.part,)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair can't be encoded
        return False
    return True


class StaleFenceError(AsyncLockError):
    """A newer holder has written before; nothing was written: abandon (in a web handler: 412).

    `fence` is the rejected fence, `highest` the highest one that the store has seen for `name`, or
    None if the store doesn't report it.
    """

    def __init__(
        self, message: str, *, name: str | None = None, fence: int = 0, highest: int | None = None
    ) -> None:
        super().__init__(message, name=name)
        self.fence = fence
        self.highest = highest

    @classmethod
    def refused(cls, stamp: FenceStamp, highest: int) -> StaleFenceError:
        """Return the error for a store that has seen `highest`."""
        message = f"fence {stamp.fence} of {_shown(stamp)} is stale: {highest} was seen before"
        return cls(message, name=stamp.name, fence=stamp.fence, highest=highest)

    @classmethod
    def too_old(cls, stamp: FenceStamp, oldest: int) -> StaleFenceError:
        """Return the error for a store that may have forgotten newer fences below `oldest`."""
        message = (
            f"fence {stamp.fence} of {_shown(stamp)} is too old: the store has no record of it, "
            f"and keeps no records of fences below {oldest} (begin each lease with a claim)"
        )
        return cls(message, name=stamp.name, fence=stamp.fence)


def _shown(stamp: FenceStamp) -> str:
    return f"{stamp.name!r} ({stamp.part})" if stamp.part else repr(stamp.name)


# ---- Stores for the highest fence of each lock, for checks that are separate from the write ------


class FenceStore(Protocol):
    """Stores the highest fence per lock; `FencedRedis` is one that many processes can share."""

    async def claim(self, lease: Fenced, /) -> None:
        """Store this fence, or raise `StaleFenceError` if a higher one was seen."""


class MemoryFenceStore:
    """Stores the highest fences that one process has seen.

    Use it only if a single process guards the protected resource; several workers need a shared
    store. Names may come from strangers, so beyond `max_names` (each part of a name counts) it
    forgets the name that was unused for longest. A late request for a forgotten name passes.
    """

    def __init__(self, max_names: int = 100_000) -> None:
        if max_names < 1:
            raise ConfigurationError(f"max_names must be at least 1, not {max_names!r}")
        self._max_names = max_names
        self._highest: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def claim(self, lease: Fenced, /) -> None:
        """Store this fence, or raise `StaleFenceError` if a higher one was seen."""
        stamp = FenceStamp.of(lease)
        highest = max(self._highest.get((stamp.name, part), 0) for part in stamp.rivals)
        if stamp.fence < highest:
            raise StaleFenceError.refused(stamp, highest)
        own = (stamp.name, stamp.part)
        self._highest[own] = max(stamp.fence, self._highest.get(own, 0))
        self._highest.move_to_end(own)
        if len(self._highest) > self._max_names:
            self._highest.popitem(last=False)


# ---- The HTTP headers of a lease: X-Lock-Name, X-Lock-Fence and X-Lock-Part ----------------------
# The name is percent-encoded UTF-8, because header values are ASCII. The fence is decimal. The part
# is sent only if the name has several parts: slots of a semaphore, sides of a read-write lock.


LOCK_NAME_HEADER = "X-Lock-Name"
LOCK_FENCE_HEADER = "X-Lock-Fence"
LOCK_PART_HEADER = "X-Lock-Part"

Headers = Mapping[str, str] | Iterable[tuple[str, str]]

# Without the comma: a proxy that joins two headers with a comma must not produce a valid name.
_READABLE = "!$&()*+-./:;=@_~"
_NAME = re.compile(r"(?:[A-Za-z0-9!$&()*+\-./:;=@_~]|%[0-9A-Fa-f]{2}){1,2048}")
_FENCE = re.compile(r"[1-9][0-9]{0,15}")


class FenceHeaderError(AsyncLockError, ValueError):
    """The request's lock headers are missing or malformed: fix the sender.

    `header` is the wrong header; `missing` is True if it is absent (428) and False if it is
    malformed (400).
    """

    def __init__(
        self, message: str, *, name: str | None = None, header: str = "", missing: bool = False
    ) -> None:
        super().__init__(message, name=name)
        self.header = header
        self.missing = missing


def fence_headers(lease: Fenced) -> dict[str, str]:
    """Return the headers that name the lease under which a request is made.

    Args:
        lease: the lease, or its stamp.
    """
    stamp = FenceStamp.of(lease)
    headers = {
        LOCK_NAME_HEADER: quote(stamp.name, safe=_READABLE),
        LOCK_FENCE_HEADER: str(stamp.fence),
    }
    return {**headers, LOCK_PART_HEADER: stamp.part} if stamp.part else headers


def read_fence_headers(headers: Headers) -> FenceStamp:
    """Return the lock, part and fence that a request names. Raises `FenceHeaderError`.

    The result is the sender's claim: check that the sender is authorized, and that this lock guards
    what the request asks for (`check_fence` compares the name).

    Args:
        headers: a mapping of any framework, in any case, or pairs of name and value.
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    name, fence = _only(pairs, LOCK_NAME_HEADER), _only(pairs, LOCK_FENCE_HEADER)
    return FenceStamp(_read_name(name), _read_fence(fence), _read_part(pairs))


async def check_fence(headers: Headers, store: FenceStore, name: str) -> FenceStamp:
    """Check that a request may act under the lock `name`; store its fence and return its stamp.

    Raises `FenceHeaderError`, also if the request names another lock, and `StaleFenceError`.

    Args:
        headers: the request's, as for `read_fence_headers`.
        store: remembers the highest fence of each lock.
        name: the lock that guards what the request asks for.
    """
    stamp = read_fence_headers(headers)
    if stamp.name != name:
        raise FenceHeaderError(
            f"{LOCK_NAME_HEADER} is {stamp.name!r}, but this is guarded by {name!r}",
            name=name,
            header=LOCK_NAME_HEADER,
        )
    try:
        await store.claim(stamp)
    except ConfigurationError as error:  # no lock can have this name
        raise FenceHeaderError(str(error), name=name, header=LOCK_NAME_HEADER) from None
    return stamp


def refusal(error: FenceHeaderError | StaleFenceError) -> tuple[int, dict[str, object]]:
    """Return the HTTP status and the `application/problem+json` body for a refused request.

    Args:
        error: the error of `check_fence`.
    """
    more: dict[str, object]
    if isinstance(error, StaleFenceError):
        status, kind, title = 412, "stale-fence", "A newer holder was here first"
        more = {"fence": error.fence, "highest": error.highest}
    else:
        status, kind = 428 if error.missing else 400, "bad-fence-header"
        title, more = "The request has no usable fence", {"header": error.header}
    body = {"type": f"urn:asynclock:{kind}", "title": title, "status": status}
    lock = {} if error.name is None else {"lock": error.name}
    return status, {**body, **lock, **more, "detail": str(error)}


def _read_part(pairs: list[tuple[str, str]]) -> str:
    if not any(key.lower() == LOCK_PART_HEADER.lower() for key, _ in pairs):
        return ""
    text = _only(pairs, LOCK_PART_HEADER)
    if text and _PART.fullmatch(text):
        return text
    raise _malformed(LOCK_PART_HEADER, "up to 16 small letters and digits", text)


def _only(pairs: list[tuple[str, str]], header: str) -> str:
    values = [value for key, value in pairs if key.lower() == header.lower()]
    if not values:
        raise FenceHeaderError(f"no {header} header", header=header, missing=True)
    if len(values) > 1:
        raise FenceHeaderError(f"{len(values)} {header} headers, not one", header=header)
    return values[0].strip(" \t")


def _read_name(text: str) -> str:
    try:
        if _NAME.fullmatch(text):
            return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise _malformed(LOCK_NAME_HEADER, "a percent-encoded name", text)


def _read_fence(text: str) -> int:
    if _FENCE.fullmatch(text) and int(text) < FENCE_LIMIT:
        return int(text)
    raise _malformed(LOCK_FENCE_HEADER, "a number between 1 and 2**53 - 1", text)


def _malformed(header: str, wanted: str, text: str) -> FenceHeaderError:
    return FenceHeaderError(f"{header} is not {wanted}: {text[:80]!r}", header=header)


# ---- Writes to Redis that are rejected if they come from a stale holder --------------------------


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
