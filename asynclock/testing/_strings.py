"""Commands on strings and on keys of any type."""

from __future__ import annotations

import fnmatch
from typing import Any

from asynclock.testing._keyspace import OK, Commands, Keyspace, SortedSet, Status, Words

COMMANDS = Commands()


@COMMANDS.add("GET", reads=True)
def _get(space: Keyspace, words: Words) -> Any:
    return space.typed(words[0], bytes)


@COMMANDS.add("MGET")
def _mget(space: Keyspace, words: Words) -> list[bytes | None]:
    if not words:
        raise ValueError
    for key in words:
        space.read(key)
    values = (space.get(key) for key in words)
    return [value if isinstance(value, bytes) else None for value in values]


@COMMANDS.add("SET")
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


@COMMANDS.add("INCR")
def _incr(space: Keyspace, words: Words) -> int:
    number = int(space.typed(words[0], bytes) or b"0") + 1
    space.put(words[0], b"%d" % number, space.expiries.get(words[0]))
    return number


@COMMANDS.add("DEL")
@COMMANDS.add("UNLINK")
def _del(space: Keyspace, words: Words) -> int:
    return sum(space.get(key) is not None and space.delete(key) for key in words)


@COMMANDS.add("EXISTS", reads=True)
def _exists(space: Keyspace, words: Words) -> int:
    return sum(space.get(key) is not None for key in words)


@COMMANDS.add("PEXPIRE")
def _pexpire(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return 0
    space.put(words[0], space.values[words[0]], space.now() + int(words[1]))
    return 1


@COMMANDS.add("PEXPIREAT")
def _pexpireat(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return 0
    space.put(words[0], space.values[words[0]], int(words[1]))
    return 1


@COMMANDS.add("PERSIST")
def _persist(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None or words[0] not in space.expiries:
        return 0
    space.put(words[0], space.values[words[0]], None)
    return 1


@COMMANDS.add("PTTL", reads=True)
def _pttl(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return -2
    expiry = space.expiries.get(words[0])
    return -1 if expiry is None else max(0, expiry - space.now())


@COMMANDS.add("TTL", reads=True)
def _ttl(space: Keyspace, words: Words) -> int:
    left: int = _pttl(space, words)
    return left if left < 0 else (left + 500) // 1000


@COMMANDS.add("TYPE", reads=True)
def _type(space: Keyspace, words: Words) -> Status:
    value = space.get(words[0])
    kinds: dict[Any, str] = {bytes: "string", dict: "hash", SortedSet: "zset"}
    return Status("none" if value is None else kinds[type(value)])


@COMMANDS.add("KEYS")
def _keys(space: Keyspace, words: Words) -> list[bytes]:
    space.expire_due()
    pattern = words[0].decode("utf-8", "surrogateescape")
    return [
        key
        for key in space.values
        if fnmatch.fnmatchcase(key.decode("utf-8", "surrogateescape"), pattern)
    ]


@COMMANDS.add("SCAN")
def _scan(space: Keyspace, words: Words) -> list[Any]:
    options = {words[i].upper(): words[i + 1] for i in range(1, len(words) - 1, 2)}
    return [b"0", _keys(space, (options.get(b"MATCH", b"*"),))]


@COMMANDS.add("DBSIZE")
def _dbsize(space: Keyspace, _words: Words) -> int:
    space.expire_due()
    return len(space.values)
