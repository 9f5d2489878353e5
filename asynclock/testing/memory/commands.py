"""The commands on keys that an in-memory node knows: those that the library's scripts use.

Nothing more of Redis is modelled, so an option that no script uses is an error.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import importlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from asynclock import _settings
from asynclock.errors import ConfigurationError

# ---- The keys of an in-memory node, with their expiry and listeners for changes ------------------
# This models a Redis server; commands.py has the commands. tests/simulation compares it with a real
# server. All words are bytes, as they come from the connection.


class ReplyError(Exception):
    """An error reply, such as `ERR wrong number of arguments`."""


class StatusReply(str):
    """A status reply, such as OK."""

    __slots__ = ()


OK = StatusReply("OK")
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Words = tuple[bytes, ...]


class SortedSet(dict[bytes, float]):
    """The score of each member."""

    def ordered(self) -> list[bytes]:
        """Return the members sorted by score, then by name."""
        return sorted(self, key=lambda member: (self[member], member))


class Keyspace:
    """Keys, values and expiry times on the server's own clock.

    clock: seconds since 1970. on_change: called with each key that is written, deleted or expired.
    on_read: called with each key that is read.
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
        """The expiry of each key in milliseconds since 1970; keys without an entry never expire."""

    def read(self, key: bytes) -> None:
        """Report that a command reads `key`."""
        self._on_read(key)

    def now(self) -> int:
        """Return milliseconds since 1970 on the server's clock."""
        return int(self._clock() * 1000)

    def expire_due(self) -> None:
        """Drop every expired key; a command checks only the keys it names."""
        for key in list(self.expiries):
            self.get(key)

    def get(self, key: bytes) -> Any:
        """Return the value, None if there is none."""
        expiry = self.expiries.get(key)
        # As in Redis, a key exists until the clock is past its expiry.
        if expiry is not None and self.now() > expiry:
            self.delete(key)
        return self.values.get(key)

    def typed(self, key: bytes, kind: type) -> Any:
        """Return the value, which must be of type `kind`. Raises ReplyError."""
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
        """Remove a key. Return whether it existed."""
        self.expiries.pop(key, None)
        if self.values.pop(key, None) is None:
            return False
        self._on_change(key)
        return True

    def changed(self, key: bytes) -> None:
        """Report a value that was changed in place; an empty collection is removed."""
        if self.values.get(key) == {}:
            self.delete(key)
        else:
            self._on_change(key)

    def clear(self) -> None:
        """Remove all keys, without a report per key."""
        self.values.clear()
        self.expiries.clear()


Function = Callable[[Keyspace, Words], Any]


def execute(space: Keyspace, words: Words) -> Any:
    """Execute a command. Raises ReplyError."""
    name = words[0].upper()
    reads = READS.get(name)
    function = reads or OTHERS.get(name)
    if function is None:
        raise ReplyError(f"ERR unknown command '{words[0].decode(errors='replace')}'")
    try:
        if reads:
            space.read(words[1])
        return function(space, words[1:])
    except (IndexError, ValueError) as error:
        raise ReplyError(f"ERR {error or 'wrong arguments'}") from None


# ---- strings and keys of any type ----------------------------------------------------------------


def _mget(space: Keyspace, words: Words) -> list[bytes | None]:
    if not words:
        raise ValueError
    for key in words:
        space.read(key)
    values = (space.get(key) for key in words)
    return [value if isinstance(value, bytes) else None for value in values]


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


def _type(space: Keyspace, words: Words) -> StatusReply:
    names: dict[type, str] = {bytes: "string", dict: "hash", SortedSet: "zset", type(None): "none"}
    return StatusReply(names[type(space.get(words[0]))])


def _pexpire(space: Keyspace, words: Words) -> int:
    key, milliseconds = words
    if space.get(key) is None:
        return 0
    space.put(key, space.values[key], space.now() + int(milliseconds))
    return 1


def _pttl(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return -2
    expiry = space.expiries.get(words[0])
    return -1 if expiry is None else max(0, expiry - space.now())


def _keys(space: Keyspace, words: Words) -> list[bytes]:
    space.expire_due()
    # Redis takes a mark after a backslash as itself, Python takes it so within brackets.
    pattern = re.sub(r"\\(.)", r"[\1]", words[0].decode("utf-8", "surrogateescape"))
    return [
        key
        for key in space.values
        if fnmatch.fnmatchcase(key.decode("utf-8", "surrogateescape"), pattern)
    ]


def _scan(space: Keyspace, words: Words) -> list[Any]:
    options = {words[i].upper(): words[i + 1] for i in range(1, len(words) - 1, 2)}
    return [b"0", _keys(space, (options.get(b"MATCH", b"*"),))]


# ---- hashes --------------------------------------------------------------------------------------


def _hmget(space: Keyspace, words: Words) -> list[bytes | None]:
    value = space.typed(words[0], dict) or {}
    return [value.get(field) for field in words[1:]]


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


def _zrem(space: Keyspace, words: Words) -> int:
    value = _sorted_set(space, words[0])
    gone = sum(value.pop(member, None) is not None for member in words[1:])
    if gone:
        space.changed(words[0])
    return gone


def _zremrangebyscore(space: Keyspace, words: Words) -> int:
    value, inside = _sorted_set(space, words[0]), _bounds(words[1], words[2])
    gone: int = _zrem(space, (words[0], *[member for member in value if inside(value[member])]))
    return gone


def _zscore(space: Keyspace, words: Words) -> bytes | None:
    score = _sorted_set(space, words[0]).get(words[1])
    return None if score is None else _score(score)


def _zrank(space: Keyspace, words: Words) -> int | None:
    value = _sorted_set(space, words[0])
    return value.ordered().index(words[1]) if words[1] in value else None


def _range(space: Keyspace, words: Words, step: int) -> list[bytes]:
    value, (start, stop) = _sorted_set(space, words[0]), (int(word) for word in words[1:3])
    members = value.ordered()[::step]
    first = max(0, start + len(members) if start < 0 else start)
    last = stop + len(members) if stop < 0 else stop
    return _with_scores(value, members[first : last + 1], words[3:])


def _zrangebyscore(space: Keyspace, words: Words) -> list[bytes]:
    value, inside = _sorted_set(space, words[0]), _bounds(words[1], words[2])
    members = [member for member in value.ordered() if inside(value[member])]
    return _with_scores(value, members, words[3:])


READS: dict[bytes, Function] = {
    b"TYPE": _type,
    b"PTTL": _pttl,
    b"HMGET": _hmget,
    b"ZSCORE": _zscore,
    b"ZRANK": _zrank,
    b"ZRANGEBYSCORE": _zrangebyscore,
    b"GET": lambda space, words: space.typed(words[0], bytes),
    b"EXISTS": lambda space, words: sum(space.get(key) is not None for key in words),
    b"ZCARD": lambda space, words: len(_sorted_set(space, words[0])),
    b"ZRANGE": lambda space, words: _range(space, words, 1),
    b"ZREVRANGE": lambda space, words: _range(space, words, -1),
}
"""The function of each command that only reads the key in its first argument."""
OTHERS: dict[bytes, Function] = {
    b"MGET": _mget,
    b"SET": _set,
    b"PEXPIRE": _pexpire,
    b"KEYS": _keys,
    b"SCAN": _scan,
    b"HSET": _hset,
    b"ZADD": _zadd,
    b"ZREM": _zrem,
    b"ZREMRANGEBYSCORE": _zremrangebyscore,
    b"DEL": lambda space, words: sum(
        space.get(key) is not None and space.delete(key) for key in words
    ),
}


# ---- Runs the same Lua files as servers do, on an in-memory keyspace (docs/decisions/0012) -------


Call = Callable[[tuple[bytes, ...]], Any]


@functools.lru_cache(maxsize=256)
def sha_of(source: bytes) -> str:
    """Return the SHA-1 by which EVALSHA names a script."""
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


def run_script(source: bytes, keys: Sequence[bytes], args: Sequence[bytes], call: Call) -> Any:
    """Run a script; `call` executes its commands. Raises ReplyError."""
    return _lua().run(source, keys, args, call)


_WRAP = b"""
return function(script)
  return function(count, ...)
    local keys, args = {}, {...}
    for i = 1, count do keys[i] = args[i] end
    local reply = script(keys, {unpack(args, count + 1)})
    if type(reply) ~= 'table' or reply.err or reply.ok then return false, reply end
    local size = 0
    while reply[size + 1] ~= nil do size = size + 1 end
    return true, unpack(reply, 1, size)
  end
end
"""
"""Turns a script into a function of the number of keys, the keys and the arguments. For a reply
that is a list, the function returns true and the elements, otherwise false and the reply: to make
or read a table from Python takes longer than to pass all its elements."""


def check_lua() -> None:
    """Check that scripts can run here. Raises ConfigurationError with the package to install."""
    _lua()


_here = threading.local()


def _lua() -> _Lua:
    """Return this thread's interpreter: each loop has nodes of its own."""
    if not hasattr(_here, "lua"):
        _here.lua = _Lua()
    return cast("_Lua", _here.lua)


class _Lua:
    """An interpreter of Lua 5.1, which is the version in Redis."""

    def __init__(self) -> None:
        try:
            lua51: Any = importlib.import_module("lupa.lua51")
        except ImportError:
            raise ConfigurationError(
                _settings.needs("memory://", "test")
                + " (from Python 3.15 on also lupa, which pip compiles)"
            ) from None
        self._kind = lua51.lua_type
        self._runtime = lua51.LuaRuntime(encoding=None, register_eval=False)
        self._call: Call = _nothing
        self._compiled: dict[bytes, Any] = {}
        self._wrap = self._runtime.execute(_WRAP)
        self._runtime.globals()[b"redis"] = self._runtime.table_from(
            {
                b"call": self._redis_call,
                b"pcall": self._redis_pcall,
                b"sha1hex": lambda text: sha_of(text).encode(),
            }
        )

    def run(self, source: bytes, keys: Sequence[bytes], args: Sequence[bytes], call: Call) -> Any:
        function = self._compiled.get(source)
        if function is None:
            text = b"return function(KEYS, ARGV)\n" + source + b"\nend"
            function = self._compiled[source] = self._wrap(self._runtime.execute(text))
        before, self._call = self._call, call
        try:
            returned = function(len(keys), *keys, *args)
        finally:
            self._call = before
        # lupa returns one value by itself: that is the `true` of an empty list.
        flat, *result = returned if type(returned) is tuple else (returned,)
        return [self._to_entry(one) for one in result] if flat else self._to_reply(result[0])

    def _redis_call(self, *words: Any) -> Any:
        for word in words:
            if type(word) is not bytes:
                words = tuple(w if type(w) is bytes else _number(w).encode() for w in words)
                break
        reply = self._call(words)
        return reply if type(reply) is bytes else self._to_lua(reply)

    def _redis_pcall(self, *words: Any) -> Any:
        try:
            return self._redis_call(*words)
        except ReplyError as error:
            return self._runtime.table_from({b"err": str(error).encode()})

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, StatusReply):
            return self._runtime.table_from({b"ok": reply.encode()})
        if isinstance(reply, list):
            return self._runtime.table_from([self._to_lua(one) for one in reply])
        return reply

    def _to_reply(self, value: Any) -> Any:
        kind = type(value)
        if kind is bytes or kind is int:
            return value
        if value is True:
            return 1
        if kind is float:
            return int(value)
        if self._kind(value) != "table":
            return None
        if (error := value[b"err"]) is not None:
            raise ReplyError(error.decode())
        if (status := value[b"ok"]) is not None:
            return StatusReply(status.decode())
        found: list[Any] = []
        while (one := value[len(found) + 1]) is not None:
            found.append(self._to_entry(one))
        return found

    def _to_entry(self, value: Any) -> Any:
        # An error inside a list is one of the replies, as it is on a server.
        try:
            return self._to_reply(value)
        except ReplyError as error:
            return error


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.17g}"


def _nothing(_words: tuple[bytes, ...]) -> Any:
    raise ReplyError("ERR no script runs")
