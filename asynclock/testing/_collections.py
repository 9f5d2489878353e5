"""Commands on hashes and sorted sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asynclock.testing._keyspace import Commands, Keyspace, SortedSet, Words

COMMANDS = Commands()


def _hash(space: Keyspace, key: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = space.typed(key, dict) or {}
    return found


@COMMANDS.add("HGET", reads=True)
def _hget(space: Keyspace, words: Words) -> Any:
    return _hash(space, words[0]).get(words[1])


@COMMANDS.add("HMGET", reads=True)
def _hmget(space: Keyspace, words: Words) -> list[bytes | None]:
    value = _hash(space, words[0])
    return [value.get(field) for field in words[1:]]


@COMMANDS.add("HGETALL", reads=True)
def _hgetall(space: Keyspace, words: Words) -> list[bytes]:
    return [word for pair in _hash(space, words[0]).items() for word in pair]


@COMMANDS.add("HLEN", reads=True)
def _hlen(space: Keyspace, words: Words) -> int:
    return len(_hash(space, words[0]))


@COMMANDS.add("HSET")
def _hset(space: Keyspace, words: Words) -> int:
    value = _hash(space, words[0])
    pairs = dict(zip(words[1::2], words[2::2], strict=True))
    new = len(pairs.keys() - value.keys())
    space.put(words[0], {**value, **pairs}, space.expiries.get(words[0]))
    return new


@COMMANDS.add("HDEL")
def _hdel(space: Keyspace, words: Words) -> int:
    value = _hash(space, words[0])
    gone = sum(value.pop(field, None) is not None for field in words[1:])
    if gone:
        space.changed(words[0])
    return gone


# ---- sorted sets -----------------------------------------------------------------------------


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


@COMMANDS.add("ZADD")
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


@COMMANDS.add("ZREM")
def _zrem(space: Keyspace, words: Words) -> int:
    value = _zset(space, words[0])
    gone = sum(value.pop(member, None) is not None for member in words[1:])
    if gone:
        space.changed(words[0])
    return gone


@COMMANDS.add("ZREMRANGEBYSCORE")
def _zremrangebyscore(space: Keyspace, words: Words) -> int:
    value, inside = _zset(space, words[0]), _bounds(words[1], words[2])
    gone: int = _zrem(space, (words[0], *[member for member in value if inside(value[member])]))
    return gone


@COMMANDS.add("ZSCORE", reads=True)
def _zscore(space: Keyspace, words: Words) -> bytes | None:
    score = _zset(space, words[0]).get(words[1])
    return None if score is None else _score(score)


@COMMANDS.add("ZCARD", reads=True)
def _zcard(space: Keyspace, words: Words) -> int:
    return len(_zset(space, words[0]))


@COMMANDS.add("ZRANK", reads=True)
def _zrank(space: Keyspace, words: Words) -> int | None:
    members = _zset(space, words[0]).ordered()
    return members.index(words[1]) if words[1] in members else None


@COMMANDS.add("ZRANGE", reads=True)
def _zrange(space: Keyspace, words: Words) -> list[bytes]:
    value = _zset(space, words[0])
    members = _ranked(value.ordered(), int(words[1]), int(words[2]))
    return _with_scores(value, members, words[3:])


@COMMANDS.add("ZREVRANGE", reads=True)
def _zrevrange(space: Keyspace, words: Words) -> list[bytes]:
    value = _zset(space, words[0])
    members = _ranked(value.ordered()[::-1], int(words[1]), int(words[2]))
    return _with_scores(value, members, words[3:])


@COMMANDS.add("ZRANGEBYSCORE", reads=True)
def _zrangebyscore(space: Keyspace, words: Words) -> list[bytes]:
    value, inside = _zset(space, words[0]), _bounds(words[1], words[2])
    members = [member for member in value.ordered() if inside(value[member])]
    options = [word.upper() for word in words[3:]]
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        offset, count = int(options[at + 1]), int(options[at + 2])
        members = members[offset:] if count < 0 else members[offset : offset + count]
    return _with_scores(value, members, words[3:])


@COMMANDS.add("ZCOUNT", reads=True)
def _zcount(space: Keyspace, words: Words) -> int:
    value, inside = _zset(space, words[0]), _bounds(words[1], words[2])
    return sum(inside(score) for score in value.values())
