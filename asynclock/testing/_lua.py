"""Runs the very Lua files that servers run, on an in-memory keyspace (docs/decisions/0012)."""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from asynclock.errors import ConfigurationError
from asynclock.testing._keyspace import ReplyError, Status

__all__ = ["run_script", "sha_of"]

Call = Callable[[tuple[bytes, ...]], Any]


def sha_of(source: bytes) -> str:
    """The name of a script on the wire."""
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


def run_script(source: bytes, keys: Sequence[bytes], args: Sequence[bytes], call: Call) -> Any:
    """Run a script; `call` does its commands. Raises ReplyError."""
    return _lua().run(source, keys, args, call)


@functools.cache
def _lua() -> _Lua:
    return _Lua()


class _Lua:
    """One interpreter of Lua 5.1, the version of Redis, for the whole process."""

    def __init__(self) -> None:
        try:
            lua51: Any = importlib.import_module("lupa.lua51")
        except ImportError:
            raise ConfigurationError(
                "memory:// nodes run the lock scripts in lupa: pip install asynclock[test]"
            ) from None
        self._kind = lua51.lua_type
        self._runtime = lua51.LuaRuntime(encoding=None, register_eval=False)
        self._call: Call = _nothing
        self._compiled: dict[bytes, Any] = {}
        self._runtime.globals()[b"redis"] = self._runtime.table_from(
            {b"call": self._redis_call, b"sha1hex": lambda text: sha_of(text).encode()}
        )

    def run(self, source: bytes, keys: Sequence[bytes], args: Sequence[bytes], call: Call) -> Any:
        function = self._compiled.get(source)
        if function is None:
            text = b"return function(KEYS, ARGV)\n" + source + b"\nend"
            function = self._compiled[source] = self._runtime.execute(text)
        before, self._call = self._call, call
        try:
            result = function(self._runtime.table_from(keys), self._runtime.table_from(args))
        finally:
            self._call = before
        return self._to_reply(result)

    def _redis_call(self, *words: Any) -> Any:
        packed = tuple(
            word if isinstance(word, bytes) else _number(word).encode() for word in words
        )
        return self._to_lua(self._call(packed))

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, Status):
            return self._runtime.table_from({b"ok": reply.encode()})
        if isinstance(reply, list):
            return self._runtime.table_from([self._to_lua(one) for one in reply])
        return reply

    def _to_reply(self, value: Any) -> Any:
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, bytes):
            return value
        if isinstance(value, int | float):
            return int(value)
        if self._kind(value) != "table":
            return None
        if (error := value[b"err"]) is not None:
            raise ReplyError(error.decode())
        if (status := value[b"ok"]) is not None:
            return Status(status.decode())
        found: list[Any] = []
        while (one := value[len(found) + 1]) is not None:
            found.append(self._to_reply(one))
        return found


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.17g}"


def _nothing(_words: tuple[bytes, ...]) -> Any:
    raise ReplyError("ERR no script runs")
