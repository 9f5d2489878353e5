"""What a server remembers: keys that expire, and the commands that lock scripts and tests use.

A model of Redis for the in-memory node, no more of it than is needed; tests/simulation holds it
against a real server. Words are bytes, as they come from the wire.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

__all__ = ["Keyspace", "ReplyError", "Status"]


class ReplyError(Exception):
    """An error reply, such as `ERR wrong number of arguments`."""


class Status(str):
    """A status reply, such as OK."""


OK = Status("OK")
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Words = tuple[bytes, ...]
Command = Callable[["Keyspace", Words], Any]
COMMANDS: dict[bytes, tuple[Command, bool]] = {}
"""Name → what it does, and whether it only reads its first argument."""


def _command(name: str, *, reads: bool = False) -> Callable[[Command], Command]:
    def register(function: Command) -> Command:
        COMMANDS[name.encode()] = function, reads
        return function

    return register


class Keyspace:
    """Keys, values and moments of expiry on the server's own clock.

    clock: seconds since 1970. on_change: told each key that is written, deleted or has expired.
    on_read: told each key that is read.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[bytes], None],
        on_read: Callable[[bytes], None],
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._on_read = on_read
        self.values: dict[bytes, Any] = {}
        self.expiries: dict[bytes, int] = {}
        """In milliseconds; a key without an entry lives for ever."""

    def call(self, words: Words) -> Any:
        """Do a command. Raises ReplyError."""
        known = COMMANDS.get(words[0].upper())
        if known is None:
            raise ReplyError(f"ERR unknown command '{words[0].decode(errors='replace')}'")
        function, reads = known
        if reads and len(words) > 1:
            self._on_read(words[1])
        try:
            return function(self, words[1:])
        except (IndexError, ValueError) as error:
            raise ReplyError(f"ERR {error or 'wrong arguments'}") from None

    def now(self) -> int:
        """Milliseconds since 1970, by its own clock."""
        return int(self._clock() * 1000)

    def expire_due(self) -> None:
        """Drop what has expired; each command looks at its own keys, this at all."""
        for key in list(self.expiries):
            self.get(key)

    def get(self, key: bytes) -> Any:
        """The value, None if there is none."""
        expiry = self.expiries.get(key)
        # As in Redis: a key is there until its moment has passed.
        if expiry is not None and self.now() > expiry:
            self.delete(key)
        return self.values.get(key)

    def typed(self, key: bytes, kind: type) -> Any:
        """The value, which must be of that kind. Raises ReplyError."""
        value = self.get(key)
        if value is not None and type(value) is not kind:
            raise ReplyError(_WRONG_TYPE)
        return value

    def put(self, key: bytes, value: Any, expiry: int | None) -> None:
        """Write a value and its expiry."""
        self.values[key] = value
        if expiry is None:
            self.expiries.pop(key, None)
        else:
            self.expiries[key] = expiry
        self._on_change(key)

    def delete(self, key: bytes) -> bool:
        """Remove a key. → whether it was there."""
        self.expiries.pop(key, None)
        if self.values.pop(key, None) is None:
            return False
        self._on_change(key)
        return True

    def changed(self, key: bytes) -> None:
        """A value was changed in place; an empty collection is no key."""
        if self.values.get(key) in ({},):
            self.delete(key)
        else:
            self._on_change(key)

    def clear(self) -> None:
        """Forget everything; nobody is told which keys there were."""
        self.values.clear()
        self.expiries.clear()


# ---- strings and keys ------------------------------------------------------------------------


@_command("GET", reads=True)
def _get(space: Keyspace, words: Words) -> Any:
    return space.typed(words[0], bytes)


@_command("SET")
def _set(space: Keyspace, words: Words) -> Any:
    key, value, options = words[0], words[1], [word.upper() for word in words[2:]]
    before = space.get(key)
    there = before is not None
    if b"GET" in options:
        space.typed(key, bytes)
    if (b"NX" in options and there) or (b"XX" in options and not there):
        return None
    expiry = space.expiries.get(key) if b"KEEPTTL" in options else None
    for unit, scale in ((b"PX", 1), (b"EX", 1000)):
        if unit in options:
            expiry = space.now() + scale * int(options[options.index(unit) + 1])
    space.put(key, value, expiry)
    return before if b"GET" in options else OK


@_command("INCR")
def _incr(space: Keyspace, words: Words) -> int:
    number = int(space.typed(words[0], bytes) or b"0") + 1
    space.put(words[0], b"%d" % number, space.expiries.get(words[0]))
    return number


@_command("DEL")
@_command("UNLINK")
def _del(space: Keyspace, words: Words) -> int:
    return sum(space.get(key) is not None and space.delete(key) for key in words)


@_command("EXISTS", reads=True)
def _exists(space: Keyspace, words: Words) -> int:
    return sum(space.get(key) is not None for key in words)


@_command("PEXPIRE")
def _pexpire(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return 0
    space.put(words[0], space.values[words[0]], space.now() + int(words[1]))
    return 1


@_command("PEXPIREAT")
def _pexpireat(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return 0
    space.put(words[0], space.values[words[0]], int(words[1]))
    return 1


@_command("PERSIST")
def _persist(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None or words[0] not in space.expiries:
        return 0
    space.put(words[0], space.values[words[0]], None)
    return 1


@_command("PTTL", reads=True)
def _pttl(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return -2
    expiry = space.expiries.get(words[0])
    return -1 if expiry is None else max(0, expiry - space.now())


@_command("TTL", reads=True)
def _ttl(space: Keyspace, words: Words) -> int:
    left: int = _pttl(space, words)
    return left if left < 0 else (left + 500) // 1000


@_command("TYPE", reads=True)
def _type(space: Keyspace, words: Words) -> Status:
    value = space.get(words[0])
    kinds: dict[Any, str] = {bytes: "string", dict: "hash", SortedSet: "zset"}
    return Status("none" if value is None else kinds[type(value)])


@_command("KEYS")
def _keys(space: Keyspace, words: Words) -> list[bytes]:
    space.expire_due()
    pattern = words[0].decode("utf-8", "surrogateescape")
    return [
        key
        for key in space.values
        if fnmatch.fnmatchcase(key.decode("utf-8", "surrogateescape"), pattern)
    ]


@_command("SCAN")
def _scan(space: Keyspace, words: Words) -> list[Any]:
    options = {words[i].upper(): words[i + 1] for i in range(1, len(words) - 1, 2)}
    return [b"0", _keys(space, (options.get(b"MATCH", b"*"),))]


@_command("DBSIZE")
def _dbsize(space: Keyspace, _words: Words) -> int:
    space.expire_due()
    return len(space.values)


# ---- hashes ----------------------------------------------------------------------------------


def _hash(space: Keyspace, key: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = space.typed(key, dict) or {}
    return found


@_command("HGET", reads=True)
def _hget(space: Keyspace, words: Words) -> Any:
    return _hash(space, words[0]).get(words[1])


@_command("HGETALL", reads=True)
def _hgetall(space: Keyspace, words: Words) -> list[bytes]:
    return [word for pair in _hash(space, words[0]).items() for word in pair]


@_command("HLEN", reads=True)
def _hlen(space: Keyspace, words: Words) -> int:
    return len(_hash(space, words[0]))


@_command("HSET")
def _hset(space: Keyspace, words: Words) -> int:
    value = _hash(space, words[0])
    pairs = dict(zip(words[1::2], words[2::2], strict=True))
    new = len(pairs.keys() - value.keys())
    space.put(words[0], {**value, **pairs}, space.expiries.get(words[0]))
    return new


@_command("HDEL")
def _hdel(space: Keyspace, words: Words) -> int:
    value = _hash(space, words[0])
    gone = sum(value.pop(field, None) is not None for field in words[1:])
    if gone:
        space.changed(words[0])
    return gone


# ---- sorted sets -----------------------------------------------------------------------------


class SortedSet(dict[bytes, float]):
    """Member → score."""

    def ordered(self) -> list[bytes]:
        """By score, then by member."""
        return sorted(self, key=lambda member: (self[member], member))


def _zset(space: Keyspace, key: bytes) -> SortedSet:
    found: SortedSet = space.typed(key, SortedSet) or SortedSet()
    return found


def _score(number: float) -> bytes:
    return b"%d" % number if number == int(number) else repr(number).encode()


def _bounds(low: bytes, high: bytes) -> Callable[[float], bool]:
    least, most = (float(word.lstrip(b"(")) for word in (low, high))
    return lambda score: (
        (score > least if low.startswith(b"(") else score >= least)
        and (score < most if high.startswith(b"(") else score <= most)
    )


def _ranked(members: list[bytes], start: int, stop: int) -> list[bytes]:
    size = len(members)
    first = max(0, start + size if start < 0 else start)
    last = stop + size if stop < 0 else stop
    return members[first : last + 1]


def _with_scores(value: SortedSet, members: list[bytes], options: Words) -> list[bytes]:
    if b"WITHSCORES" not in (word.upper() for word in options):
        return members
    return [word for member in members for word in (member, _score(value[member]))]


@_command("ZADD")
def _zadd(space: Keyspace, words: Words) -> int:
    value = _zset(space, words[0])
    start = 1
    flags = set()
    while words[start].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
        flags.add(words[start].upper())
        start += 1
    new = 0
    for score, member in zip(words[start::2], words[start + 1 :: 2], strict=True):
        there = member in value
        if (b"NX" in flags and there) or (b"XX" in flags and not there):
            continue
        value[member] = float(score)
        new += not there
    if value:
        space.put(words[0], value, space.expiries.get(words[0]))
    return new


@_command("ZREM")
def _zrem(space: Keyspace, words: Words) -> int:
    value = _zset(space, words[0])
    gone = sum(value.pop(member, None) is not None for member in words[1:])
    if gone:
        space.changed(words[0])
    return gone


@_command("ZREMRANGEBYSCORE")
def _zremrangebyscore(space: Keyspace, words: Words) -> int:
    value, inside = _zset(space, words[0]), _bounds(words[1], words[2])
    gone: int = _zrem(space, (words[0], *[member for member in value if inside(value[member])]))
    return gone


@_command("ZSCORE", reads=True)
def _zscore(space: Keyspace, words: Words) -> bytes | None:
    score = _zset(space, words[0]).get(words[1])
    return None if score is None else _score(score)


@_command("ZCARD", reads=True)
def _zcard(space: Keyspace, words: Words) -> int:
    return len(_zset(space, words[0]))


@_command("ZRANK", reads=True)
def _zrank(space: Keyspace, words: Words) -> int | None:
    members = _zset(space, words[0]).ordered()
    return members.index(words[1]) if words[1] in members else None


@_command("ZRANGE", reads=True)
def _zrange(space: Keyspace, words: Words) -> list[bytes]:
    value = _zset(space, words[0])
    members = _ranked(value.ordered(), int(words[1]), int(words[2]))
    return _with_scores(value, members, words[3:])


@_command("ZREVRANGE", reads=True)
def _zrevrange(space: Keyspace, words: Words) -> list[bytes]:
    value = _zset(space, words[0])
    members = _ranked(value.ordered()[::-1], int(words[1]), int(words[2]))
    return _with_scores(value, members, words[3:])


@_command("ZRANGEBYSCORE", reads=True)
def _zrangebyscore(space: Keyspace, words: Words) -> list[bytes]:
    value, inside = _zset(space, words[0]), _bounds(words[1], words[2])
    members = [member for member in value.ordered() if inside(value[member])]
    options = [word.upper() for word in words[3:]]
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        offset, count = int(options[at + 1]), int(options[at + 2])
        members = members[offset:] if count < 0 else members[offset : offset + count]
    return _with_scores(value, members, words[3:])


@_command("ZCOUNT", reads=True)
def _zcount(space: Keyspace, words: Words) -> int:
    value, inside = _zset(space, words[0]), _bounds(words[1], words[2])
    return sum(inside(score) for score in value.values())
