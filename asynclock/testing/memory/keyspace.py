"""The keys of an in-memory node, with their expiry and listeners for changes.

This models a Redis server; commands.py has the commands. tests/simulation compares it with a real
server. All words are bytes, as they come from the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
