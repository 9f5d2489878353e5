"""What the scripts reply, by name: each reader checks the shape of a reply, once, where it enters.

A reply of any other shape is a Failure of its node, like no answer. The scripts' headers have the
forms. Only `outbox.plain` looks at a reply before: it compares whole replies to a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, final

from .._nodes.wire import GRANTED_MARK, Failure, reader

LONGEST_MESSAGE: Final = 200
"""Maximum number of characters of a message, unless it is a leader's value."""
_RESTS: Final = "#rests:"
"""Beginning of the value of a key that rests: its owner has released it (docs/decisions/0036)."""
TOO_LATE: Final = Failure("the request reached it too late")
FENCES: Final = range(1, 2**53)
"""The numbers that may be fences: from 2^53 on, two numbers in a row may be equal."""


@final
class Granted(NamedTuple):
    """The node granted an acquire."""

    fence: int
    first: bytes = b""
    """The ticket of the first waiter; b"" if none is known."""


@final
class Refused(NamedTuple):
    """The node refused an acquire."""

    left: float | None
    """Seconds until the holder's key ends; None without an end."""
    holder: str
    """The owner of the lock, or the ticket that goes first if the lock is free."""
    number: int = 0
    """Number of our ticket; 0 if it doesn't wait there."""
    rank: int = 0
    """Number of tickets that go before ours."""
    free: bool = False
    """Whether the lock is free, so that the first ticket was woken."""
    slots: tuple[bytes, ...] = ()
    """What the node tells about the other slots of the name."""
    woken: tuple[bytes, ...] = ()
    """The tickets that were woken."""


@final
class Raised(NamedTuple):
    """The reply to a `raise`."""

    done: bool
    counter: int
    """The counter's value before it."""


@final
class Released(NamedTuple):
    """The reply to a release, leave or pass."""

    done: bool
    woken: tuple[bytes, ...] = ()
    """The tickets that were woken."""


@final
class Holder(NamedTuple):
    """What one node tells about a lock."""

    owner: str | None
    left: float | None
    """Seconds until the key ends; None without an end or an owner."""
    fence: int


@final
class Place(NamedTuple):
    """One ticket in a queue."""

    ticket: bytes
    place: float
    """What the order goes by."""
    value: bytes
    number: float
    """The ticket's own number."""


def _seconds(milliseconds: int) -> float | None:
    return milliseconds / 1000 if milliseconds >= 0 else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _tickets(found: object) -> tuple[bytes, ...]:
    match found:
        case bytes():
            return (found,) if found else ()
        case list() if all(type(one) is bytes for one in found):
            return tuple(found)
    raise ValueError


@reader
def acquired(reply: Any) -> Granted | Refused | Failure:
    """Read the reply to an acquire."""
    match reply:
        case [1, int(fence), int()] if fence in FENCES:
            return Granted(fence)
        case [1, int(fence), bytes(first), int()] if fence in FENCES:
            return Granted(fence, first)
        case [-1, int()]:
            return TOO_LATE
        case [0, int(left), bytes(holder), int()]:
            return Refused(_seconds(left), _text(holder))
        case [0, int(left), bytes(holder), int(number), int(rank), 0 | 1 as free, *more, int()]:
            slots = tuple(one for one in more if type(one) is bytes)
            woken = [one for one in more if type(one) is list]
            if len(more) == len(slots) + len(woken) < 2:
                told = _tickets(woken[0]) if woken else ()
                waits = number, rank, free == 1
                return Refused(_seconds(left), _text(holder), *waits, slots, told)
    raise ValueError


@reader
def raised(reply: Any) -> Raised:
    """Read the reply to a raise."""
    match reply:
        case [0 | 1 as done, int(counter), int()]:
            return Raised(done == 1, counter)
    raise ValueError


@reader
def released(reply: Any) -> Released:
    """Read the reply to a release, leave or pass."""
    match reply:
        case [0 | 1 as done, woken, int()]:
            return Released(done == 1, _tickets(woken))
    raise ValueError


@reader
def extended(reply: Any, size: int) -> list[bool]:
    """Read for each of `size` owners whether the node extended its lease."""
    match reply:
        case [bytes(marks), int()] if len(marks) == size:
            return [mark == GRANTED_MARK for mark in marks]
    raise ValueError


@reader
def done(reply: Any) -> bool:
    """Read a reply that only says whether the node did what was asked."""
    match reply:
        case [0 | 1 as done, int()]:
            return bool(done)
    raise ValueError


@reader
def holder(reply: Any) -> Holder:
    """Read the owner of a lock."""
    match reply:
        case [None, int(), int(counter), int()]:
            return Holder(None, None, counter)
        case [bytes(owner), int(left), int(counter), int()]:
            return Holder(_text(owner), _seconds(left), counter)
    raise ValueError


@reader
def readers(reply: Any) -> list[Holder]:
    """Read all readers of a lock."""
    match reply:
        case [list(rows), int(counter), int(now)]:
            pairs = zip(rows[::2], rows[1::2], strict=True)
            found = []
            for owner, expiry in pairs:
                left = float(expiry) / 1000 - now / 1_000_000
                found.append(Holder(_text(owner), left, counter))
            return found
    raise ValueError


def from_json(text: str | bytes) -> Any:
    """Return what a text from a server stands for; None if it isn't JSON, or too deeply nested."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found


def rests(value: str | None) -> bool:
    return value is not None and value.startswith(_RESTS)


def last_owner(value: str) -> str:
    """Return the owner in the value of a lock; of one that rests, the owner that released it."""
    return value.removeprefix(_RESTS)


def stored(replies: Iterable[Any]) -> list[bytes]:
    """Return all values in these replies to MGET."""
    found = [listed for listed in map(values, replies) if not isinstance(listed, Failure)]
    return [one for listed in found for one in listed if one is not None]


def published(messages: Iterable[bytes | None], owner: str | None) -> tuple[int, str] | None:
    """Return fence and text of the last message of `owner` among these; None without one."""
    found = []
    # A message names its owner, because it may outlive the lease.
    for one in map(from_json, filter(None, messages)):
        match one:
            case [int(fence), int(number), str(writer), str(text)] if writer == owner:
                found.append((fence, number, text))
    return max(found)[::2] if found else None


@reader
def places(reply: Any) -> list[Place]:
    """Read the tickets in a queue."""
    found = []
    for row in reply:
        match row:
            case [bytes(ticket), bytes(place), bytes(value), bytes(number)]:
                found.append(Place(ticket, float(place), value, float(number)))
            case _:
                raise ValueError
    return found


@reader
def values(reply: Any) -> list[bytes | None]:
    """Read the values of some keys."""
    match reply:
        case [_, *_] as found:
            if all(type(one) in (bytes, type(None)) for one in found):
                return list(found)
    raise ValueError
