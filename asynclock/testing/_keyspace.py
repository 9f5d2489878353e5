"""What a server remembers: keys that expire, and whom it tells of changes.

A model of Redis for the in-memory node, no more of it than lock scripts and tests need
(_strings.py, _collections.py: the commands); tests/simulation holds it against a real server.
Words are bytes, as they come from the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ReplyError(Exception):
    """An error reply, such as `ERR wrong number of arguments`."""


class Status(str):
    """A status reply, such as OK."""


OK = Status("OK")
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Words = tuple[bytes, ...]
Command = Callable[["Keyspace", Words], Any]


class Commands(dict[bytes, tuple[Command, bool]]):
    """Name → what it does, and whether it only reads its first argument."""

    def add(self, name: str, *, reads: bool = False) -> Callable[[Command], Command]:
        """Decorator: this function does `name`."""

        def register(function: Command) -> Command:
            self[name.encode()] = function, reads
            return function

        return register


class SortedSet(dict[bytes, float]):
    """Member → score."""

    def ordered(self) -> list[bytes]:
        """By score, then by member."""
        return sorted(self, key=lambda member: (self[member], member))


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

    def read(self, key: bytes) -> None:
        """Somebody looks at it: whoever waits for a change may want to know."""
        self._on_read(key)

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
