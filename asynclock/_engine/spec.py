"""The protocol of our scripts: how a name is locked, the owner ids, the commands, the replies.

Also: what follows where nodes fail to reply (`Vote`). A primitive has no loop and no connection. It
names keys and a script with the operations of lock.lua and batch.lua; the engine does the rest.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, NamedTuple, final

from .. import _clock
from .._keys import MESSAGE, derived
from .._nodes.multiplexer import Multiplexer, barred
from .._nodes.wire import (
    EXTEND,
    GRANTED,
    GRANTED_DIGIT,
    RELEASE,
    UNREADABLE,
    Command,
    Failure,
    Script,
    Word,
    head,
    pack,
    reader,
    too_far,
)
from ..events import holder_id

HandOff = Literal["block", "strict"] | bool
ChooseSlot = Callable[[Sequence[bytes], int, float], "LockSpec | None"]
"""Takes the slot votes of the refusing nodes, the number of refusals that a slot can have and still
be won, and a random number in [0, 1). Returns the slot to try next, or None to wait."""
QueueKey = str | tuple[str | int, ...]
"""Identifies a local queue: a key, or a tuple, which can't be mistaken for a key."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Options of a lease, validated where the lock is made; times in seconds."""

    ttl: float
    renew: bool = True
    max_hold: float | None = None
    interrupt: bool = True
    handoff: HandOff = True
    at_least: float = 0.0
    """Seconds after the acquire for which nobody else gets the name, also after a release."""


@dataclass(slots=True, eq=False)
class LockSpec:
    """How to lock one name. Treat as immutable; it isn't `frozen`, which triples creation time."""

    name: str
    """The name as the user wrote it."""
    script: Script
    keys: tuple[str, ...]
    """The keys in the script's order; a change of the first one may free the name."""
    exempt: tuple[str, ...] = ()
    """The owner that doesn't stand in the way: the reader of an upgrade, the writer of a downgrade,
    or the owner of a detached lease, in whose place alone a mutex is granted; empty for none."""
    queue_key: QueueKey | None = None
    """The local queue in which tasks of this process wait for each other; None: no queue."""
    permits: int = 1
    """Maximum number of tasks in one local queue that may hold at the same time."""
    watched: tuple[str, ...] = ()
    """The keys whose change is worth a new attempt."""
    part: str = ""
    """The part of the name that this locks, such as a semaphore's slot; "" for the whole name."""
    neighbours: tuple[str, ...] = ()
    """Keys that acquire reads besides its own."""
    choose_slot: ChooseSlot | None = None
    """Called after a refusal to choose another slot of the name to try at once."""
    shared: str = ""
    """First key of the holders that share the name; such a holder may not wait to have it alone."""
    phased: bool = False
    """Whether readers and writers take turns in the queue; then a release reads all keys."""
    queue: str = ""
    """Key of the queue in which the nodes keep the waiters in order. "" for a lock on several
    names: its script derives each key. Such a call takes a ticket only after a split vote."""
    form: tuple[Script, int] = field(init=False)
    """What the names in one command have in common: their script, and how many keys each has."""
    all_keys: tuple[str, ...] = field(init=False)
    """The keys of an acquire."""
    release_keys: tuple[str, ...] = field(init=False)
    """The keys of a release."""

    @property
    def pace_key(self) -> QueueKey:
        """What identifies the holds of this lock; the gate of a semaphore has its own."""
        return self.queue_key or self.keys[0]

    @property
    def own_keys(self) -> tuple[str, ...]:
        """The keys that nobody but the holder changes; () for readers, who share theirs."""
        return () if self.phased and not self.shared else self.keys[::2]

    def __post_init__(self) -> None:
        own = (*self.keys, self.queue) if self.queue else self.keys
        self.all_keys = (*own, *self.neighbours)
        self.release_keys = self.all_keys if self.phased else own
        self.form = self.script, len(self.all_keys)

    def acquire(
        self,
        owner: str,
        ttl: float,
        floor: int,
        not_after: int,
        retention: int,
        ticket: tuple[Word, ...] = (),
    ) -> Command:
        """Build an acquire for `ttl` seconds; the ticket names the waiter and how long it lasts."""
        if self.exempt:
            ticket += (0, owner, 0, 0)[len(ticket) :]
        args = ("acquire", owner, ms(ttl), floor, not_after, retention, *ticket, *self.exempt)
        return Command(self.script, self.all_keys, args)

    def packed(self, op: str, owner: str, words: int = 0, more: bytes = b"") -> bytes:
        """Pack a release, or an acquire with `words` words in `more`, for a bundle."""
        keys = self.release_keys if op == RELEASE else self.all_keys
        return head(self.script, keys, op, 1 + words) + pack((owner,))[4:] + more

    def restore(
        self, owner: str, ttl: float, fence: int, not_after: int, retention: int
    ) -> Command:
        """Build an acquire that puts an owner's key back, ahead of all tickets."""
        barging = (0, owner, 0, 1) if self.queue else ()
        return self.acquire(owner, ttl, fence, not_after, retention, barging)

    def leave(self, ticket: Word) -> Command:
        """Build the command that removes a waiter's ticket."""
        return Command(self.script, self.all_keys, ("leave", ticket))

    def pass_on(self) -> Command:
        """Build the command that wakes the first waiter if the name is free."""
        return Command(self.script, self.all_keys, ("pass",))

    def ticket_key(self, ticket: str) -> str:
        """Return the key of a ticket; it changes when the ticket's turn comes.

        Of several names each has a queue, so there the nodes reply with keys.
        """
        return derived(self.queue, ticket) if self.queue else ticket

    def woken(self, parsed: Released) -> list[str]:
        """Return the keys of the tickets that a release, leave or pass woke on a node."""
        return [self.ticket_key(_text(one)) for one in parsed.woken]

    def write_back(self, owner: str, fence: int, retention: int) -> Command:
        """Build the command that raises the counter to `fence` if `owner` has the name."""
        return Command(self.script, self.keys, ("raise", owner, fence, retention))

    def release(
        self,
        owner: str,
        asked_since: float,
        retry_until: float,
        more: tuple[Word, ...] = (),
        op: str = RELEASE,
    ) -> Command:
        """Build a release (`op`: or REST), resent until `retry_until`; `more`: see lock.lua."""
        command = Command(self.script, self.release_keys, (op, owner, *more))
        return command.resent(asked_since, retry_until)

    def read_beside(self, kind: str = MESSAGE) -> Command:
        """Build the command that reads messages or, of this owner, requests for its lease."""
        others = self.neighbours if self.phased else ()  # a slot's message is no other slot's
        keys = [derived(key, kind) for key in (*self.keys[::2], *others)]
        return Command.plain("MGET", *keys, keys=keys)

    def publish(self, owner: str, text: Word, seconds: float, kind: str = MESSAGE) -> Command:
        """Build a command: `read_beside(kind)` finds `text` ("": none) if `owner` has the locks."""
        keys = [one for key in self.keys[::2] for one in (key, derived(key, kind))]
        command = Command(self.script, keys, ("publish", owner, text, ms(seconds)))
        command.wakes = keys[1::2]
        return command

    def extend(self, held: Iterable[tuple[LockSpec, str]], ttl: float, retention: int) -> Command:
        """Build the command that extends leases: each is a spec of this script, and an owner."""
        specs, owners = zip(*held, strict=True)
        keys = [key for spec in specs for key in spec.keys]
        return Command(self.script, keys, (EXTEND, ms(ttl), retention, *owners))

    def check(self, owner: str) -> Command:
        """Build the command that asks whether `owner` has the name."""
        return Command(self.script, self.keys, ("check", owner))

    def inspect(self) -> Command:
        """Build the command that asks for the owner, its remaining time and the fence."""
        return Command(self.script, self.keys, ("inspect",))


def ms(seconds: float) -> int:
    """Convert seconds into the whole milliseconds that Redis takes, at least one."""
    return max(1, round(seconds * 1000))


# ---- Owner ids: what a lock's key contains -------------------------------------------------------


IDS: Final = 32
"""Number of owner ids for which random bytes are read at once."""
ID_DIGITS: Final = 32
"""Length of the random part of an owner id of this library."""
SHOWN_CHARACTERS: Final = 8
"""Maximum number of characters shown of an id that another library wrote."""
_RESTS: Final = "#rests:"
"""Beginning of the value of a key that rests: its owner has released it (docs/decisions/0036)."""


class OwnerIds:
    """Makes the owner ids of one manager."""

    __slots__ = ("_digits", "_label", "_suffix", "entropy")

    def __init__(self, label: str | None) -> None:
        self.entropy: Callable[[int], bytes] = os.urandom
        self._label = label
        self.forked()

    def forked(self) -> None:
        """In a forked child: forget the random numbers that were read; renew the label."""
        self._digits: list[str] = []
        """Random parts of the next ids."""
        default = f"{socket.gethostname()}:{os.getpid()}"
        self._suffix = f":{default if self._label is None else self._label}"

    def new(self) -> str:
        """Return a new id: 128 random bits, and the manager's label for people to read."""
        digits = self._digits
        if not digits:  # reading the bytes of many ids at once takes much less time
            text = self.entropy(16 * IDS).hex()
            digits += [text[at : at + ID_DIGITS] for at in range(0, len(text), ID_DIGITS)]
        return digits.pop() + self._suffix

    def new_token(self) -> str:
        """Return 64 random bits, by which one change of a shared state is recognized."""
        return self.entropy(8).hex()


def is_owner_id(owner: str | None) -> bool:
    """Return whether an owner id has the form of this library's ids."""
    return owner is not None and owner[ID_DIGITS : ID_DIGITS + 1] == ":"


def digest(owner: str | None) -> str | None:
    """Return the `holder_id` of an owner; None if another library made it."""
    owner = last_owner(owner or "")
    return holder_id(owner) if is_owner_id(owner) else None


def label(owner: str | None) -> str | None:
    """Return what people may see of an owner id: its label, or the beginning of a foreign id.

    With the whole id anyone could release the lock. The text is untrusted.
    """
    if owner is None:
        return None
    owner = last_owner(owner)
    digits, colon, text = owner.partition(":")
    if colon and len(digits) == ID_DIGITS:
        return text
    return owner if len(owner) <= SHOWN_CHARACTERS else f"{owner[:SHOWN_CHARACTERS]}…"


def rests(value: str | None) -> bool:
    return value is not None and value.startswith(_RESTS)


def last_owner(value: str) -> str:
    """Return the owner in the value of a lock; of one that rests, the owner that released it."""
    return value.removeprefix(_RESTS)


# ---- Replies by name: a reply of any other shape is a Failure of its node, like no answer --------
# The scripts' headers have the forms. On the hot path replies get no names: a batch compares whole
# ones, and `plain`, with `as_batch` and `take_errors` of link.py, only looks for the same forms.


LONGEST_MESSAGE: Final = 200
"""Maximum number of characters of a message, unless it is a leader's value."""
CUT: Final = Failure("no answer before the caller's timeout", code="CUT")
TOO_LATE: Final = Failure("the request reached it too late")
RELEASED: Final = (GRANTED, b"", 0)
"""The reply to a release by its owner, while nobody waits."""
INTEGERS: Final = {int}
"""The types of the numbers in a reply to a batch."""
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
        case [1, int(fence), bytes(first), int()] if fence in FENCES:
            return Granted(fence, first)
        case [-1, int()]:
            return TOO_LATE
        case [0, int(left), bytes(holder), int(number), int(rank), 0 | 1 as free, *more, int()]:
            slots = tuple(one for one in more if type(one) is bytes)
            woken = [one for one in more if type(one) is list]
            if len(more) == len(slots) + len(woken) < 2:
                told = _tickets(woken[0]) if woken else ()
                place = number, rank, free == 1
                return Refused(_seconds(left), _text(holder), *place, slots, told)
    raise ValueError


def plain(reply: Any, releases: int, acquires: int) -> list[int] | None:
    """Return a number per name if the node did everything and nobody waits; otherwise None."""
    match reply:
        case [1, fence, b"", _] if acquires == 1 and not releases:
            return [fence] if type(fence) is int and fence in FENCES else None
        case [1, b"" | [], _] if releases == 1 and not acquires:
            return [GRANTED]
        case [0, numbers, _] if type(numbers) is list and len(numbers) == releases + acquires > 1:
            pass
        case _:
            return None
    sound = set(map(type, numbers)) == INTEGERS and min(numbers) > 0
    return numbers if sound and max(numbers) in FENCES else None


def replies_of(reply: Any, releases: int, acquires: int) -> Sequence[Any]:
    """Return for each name what the node would have replied to its own command."""
    names = releases + acquires
    if type(reply) is Failure or names == 1:
        return [reply] * names
    match reply:
        case [0 | 1, list(found), int(clock)] if len(found) == names:
            return [_reply_of(one, clock, release=n < releases) for n, one in enumerate(found)]
    return [UNREADABLE] * names


def _reply_of(one: Any, clock: int, *, release: bool) -> Any:
    if type(one) is int:
        return RELEASED if release else (GRANTED, one, b"", clock)
    return one


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
        case [bytes(digits), int()] if len(digits) == size:
            return [digit == GRANTED_DIGIT for digit in digits]
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


class Vote:
    """The nodes that failed in one request, and what follows; a subclass counts the replies."""

    AIM: ClassVar[str]
    """What too few answers don't allow, for messages."""
    NEVER: ClassVar[str] = ""
    """What never succeeds while permanent failures rule out a quorum, for messages."""

    def __init__(self, name: str, nodes: Multiplexer) -> None:
        self.name: str = name
        """The name that the nodes are asked about."""
        self.failures: dict[int, Failure] = {}
        self._nodes = nodes.nodes
        self._quorum = nodes.quorum

    @property
    def cut(self) -> bool:
        """Whether the caller's timeout ended before some node had given any answer."""
        return any(failure.code == CUT.code for failure in self.failures.values())

    @property
    def outage(self) -> bool:
        """Whether too few nodes answered to be sure that rivals are the reason."""
        return len(self._nodes) - len(self.failures) < self._quorum

    @property
    def hopeless(self) -> bool:
        """Whether permanent failures rule out a quorum."""
        never = sum(failure.permanent for failure in self.failures.values())
        return len(self._nodes) - never < self._quorum

    @property
    def barred(self) -> float:
        """Seconds until the guards let enough nodes for a quorum vote; 0 if they do now."""
        known = [failure.votes_from for failure in self.failures.values()]
        return barred(len(self._nodes), self._quorum, known, _clock.now())

    def causes(self) -> dict[str, str]:
        """Return the cause of each failure by the node's address."""
        return {self._nodes[i].address: self.failures[i].cause for i in sorted(self.failures)}

    def _unanswered(self, index: int, keys: Sequence[str]) -> Failure:
        # The node's last answer says more than that it has not answered yet.
        node = self._nodes[index]
        lack = node.last_error(keys)
        if lack is not None and not lack.permanent:
            return lack
        hint = too_far(node.round_trip or 0.0, node.settings.node_timeout)
        return replace(CUT, cause=CUT.cause + hint)
