"""Runs the same Lua files as servers do, on an in-memory keyspace (docs/decisions/0012)."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from asynclock import _extras
from asynclock.errors import ConfigurationError
from asynclock.testing.memory.keyspace import ReplyError, StatusReply

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


@functools.cache
def _lua() -> _Lua:
    return _Lua()


class _Lua:
    """Return the process's only interpreter of Lua 5.1, which is the version in Redis."""

    def __init__(self) -> None:
        try:
            lua51: Any = importlib.import_module("lupa.lua51")
        except ImportError:
            raise ConfigurationError(
                _extras.needs("memory://", "test")
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
        return reply if type(reply) is bytes or type(reply) is int else self._to_lua(reply)

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
        if value is None or value is False:
            return None
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
