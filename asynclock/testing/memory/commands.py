"""The commands on keys that an in-memory node knows: those that the library's scripts use.

Nothing more of Redis is modelled, so an option that no script uses is an error.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Any

from asynclock.testing.memory.keyspace import (
    OK,
    Keyspace,
    ReplyError,
    SortedSet,
    StatusReply,
    Words,
)

Function = Callable[[Keyspace, Words], Any]
COMMANDS: dict[bytes, tuple[Function, bool]] = {}
"""For each command: its function, and whether it only reads the key in its first argument."""


def execute(space: Keyspace, words: Words) -> Any:
    """Execute a command. Raises ReplyError."""
    known = COMMANDS.get(words[0].upper())
    if known is None:
        raise ReplyError(f"ERR unknown command '{words[0].decode(errors='replace')}'")
    function, reads = known
    if reads and len(words) > 1:
        space.read(words[1])
    try:
        return function(space, words[1:])
    except (IndexError, ValueError) as error:
        raise ReplyError(f"ERR {error or 'wrong arguments'}") from None


def _command(name: str, *, reads: bool = False) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        COMMANDS[name.encode()] = function, reads
        return function

    return register


# ---- strings and keys of any type ----------------------------------------------------------------


@_command("GET", reads=True)
def _get(space: Keyspace, words: Words) -> Any:
    return space.typed(words[0], bytes)


@_command("MGET")
def _mget(space: Keyspace, words: Words) -> list[bytes | None]:
    if not words:
        raise ValueError
    for key in words:
        space.read(key)
    values = (space.get(key) for key in words)
    return [value if isinstance(value, bytes) else None for value in values]


@_command("SET")
def _set(space: Keyspace, words: Words) -> Any:
    key, value, *options = words
    expiry, flags = None, set()
    rest = iter(options)
    for option in map(bytes.upper, rest):
        if option == b"PX":
            expiry = space.now() + int(next(rest, b""))
        elif option in (b"NX", b"GET", b"KEEPTTL"):
            flags.add(option)
        else:
            raise ValueError("syntax error")
    before = space.get(key)
    if b"GET" in flags:
        space.typed(key, bytes)
    if b"NX" in flags and before is not None:
        return None
    if b"KEEPTTL" in flags:
        expiry = space.expiries.get(key)
    space.put(key, value, expiry)
    return before if b"GET" in flags else OK


@_command("DEL")
def _del(space: Keyspace, words: Words) -> int:
    return sum(space.get(key) is not None and space.delete(key) for key in words)


@_command("EXISTS", reads=True)
def _exists(space: Keyspace, words: Words) -> int:
    return sum(space.get(key) is not None for key in words)


@_command("TYPE", reads=True)
def _type(space: Keyspace, words: Words) -> StatusReply:
    names: dict[type, str] = {bytes: "string", dict: "hash", SortedSet: "zset", type(None): "none"}
    return StatusReply(names[type(space.get(words[0]))])


@_command("PEXPIRE")
def _pexpire(space: Keyspace, words: Words) -> int:
    key, milliseconds = words
    if space.get(key) is None:
        return 0
    space.put(key, space.values[key], space.now() + int(milliseconds))
    return 1


@_command("PTTL", reads=True)
def _pttl(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return -2
    expiry = space.expiries.get(words[0])
    return -1 if expiry is None else max(0, expiry - space.now())


@_command("KEYS")
def _keys(space: Keyspace, words: Words) -> list[bytes]:
    space.expire_due()
    # Redis takes a mark after a backslash as itself, Python takes it so within brackets.
    pattern = re.sub(r"\\(.)", r"[\1]", words[0].decode("utf-8", "surrogateescape"))
    return [
        key
        for key in space.values
        if fnmatch.fnmatchcase(key.decode("utf-8", "surrogateescape"), pattern)
    ]


@_command("SCAN")
def _scan(space: Keyspace, words: Words) -> list[Any]:
    options = {words[i].upper(): words[i + 1] for i in range(1, len(words) - 1, 2)}
    return [b"0", _keys(space, (options.get(b"MATCH", b"*"),))]


# ---- hashes --------------------------------------------------------------------------------------


@_command("HMGET", reads=True)
def _hmget(space: Keyspace, words: Words) -> list[bytes | None]:
    value = space.typed(words[0], dict) or {}
    return [value.get(field) for field in words[1:]]


@_command("HSET")
def _hset(space: Keyspace, words: Words) -> int:
    value = space.typed(words[0], dict) or {}
    pairs = dict(zip(words[1::2], words[2::2], strict=True))
    new = len(pairs.keys() - value.keys())
    space.put(words[0], {**value, **pairs}, space.expiries.get(words[0]))
    return new


# ---- sorted sets ---------------------------------------------------------------------------------


def _sorted_set(space: Keyspace, key: bytes) -> SortedSet:
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


def _with_scores(value: SortedSet, members: list[bytes], options: Words) -> list[bytes]:
    if not options:
        return members
    if [option.upper() for option in options] != [b"WITHSCORES"]:
        raise ValueError("syntax error")
    return [word for member in members for word in (member, _score(value[member]))]


@_command("ZADD")
def _zadd(space: Keyspace, words: Words) -> int:
    value, only_up = _sorted_set(space, words[0]), words[1].upper() == b"GT"
    pairs = words[2:] if only_up else words[1:]
    scores = {member: float(score) for score, member in zip(pairs[::2], pairs[1::2], strict=True)}
    if not scores:
        raise ValueError
    if only_up:
        scores = {one: max(score, value.get(one, score)) for one, score in scores.items()}
    new = len(scores.keys() - value.keys())
    value.update(scores)
    space.put(words[0], value, space.expiries.get(words[0]))
    return new


@_command("ZREM")
def _zrem(space: Keyspace, words: Words) -> int:
    value = _sorted_set(space, words[0])
    gone = sum(value.pop(member, None) is not None for member in words[1:])
    if gone:
        space.changed(words[0])
    return gone


@_command("ZREMRANGEBYSCORE")
def _zremrangebyscore(space: Keyspace, words: Words) -> int:
    value, inside = _sorted_set(space, words[0]), _bounds(words[1], words[2])
    gone: int = _zrem(space, (words[0], *[member for member in value if inside(value[member])]))
    return gone


@_command("ZSCORE", reads=True)
def _zscore(space: Keyspace, words: Words) -> bytes | None:
    score = _sorted_set(space, words[0]).get(words[1])
    return None if score is None else _score(score)


@_command("ZRANK", reads=True)
def _zrank(space: Keyspace, words: Words) -> int | None:
    value = _sorted_set(space, words[0])
    return value.ordered().index(words[1]) if words[1] in value else None


@_command("ZCARD", reads=True)
def _zcard(space: Keyspace, words: Words) -> int:
    return len(_sorted_set(space, words[0]))


def _range(space: Keyspace, words: Words, step: int) -> list[bytes]:
    value, (start, stop) = _sorted_set(space, words[0]), (int(word) for word in words[1:3])
    members = value.ordered()[::step]
    first = max(0, start + len(members) if start < 0 else start)
    last = stop + len(members) if stop < 0 else stop
    return _with_scores(value, members[first : last + 1], words[3:])


@_command("ZRANGE", reads=True)
def _zrange(space: Keyspace, words: Words) -> list[bytes]:
    return _range(space, words, 1)


@_command("ZREVRANGE", reads=True)
def _zrevrange(space: Keyspace, words: Words) -> list[bytes]:
    return _range(space, words, -1)


@_command("ZRANGEBYSCORE", reads=True)
def _zrangebyscore(space: Keyspace, words: Words) -> list[bytes]:
    value, inside = _sorted_set(space, words[0]), _bounds(words[1], words[2])
    members = [member for member in value.ordered() if inside(value[member])]
    return _with_scores(value, members, words[3:])
