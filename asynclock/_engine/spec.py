"""Describes to the engine how a primitive is locked, and builds its commands.

A primitive has no loop and no connection. It names keys and a script that understands the
operations listed in lock.lua. The engine does everything else, in the same way for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .._keys import MESSAGE, derived
from .._nodes.wire import RELEASE, Command, Script, Word

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
    form: tuple[Script, int] | None = field(init=False)
    """What the names in one command have in common: their script, and how many keys each has. None
    for a lock whose acquires and releases go to a node alone."""
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
        batched = self.script.batches and not self.exempt
        self.form = (self.script, len(self.all_keys)) if batched else None

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

    def restore(
        self, owner: str, ttl: float, fence: int, not_after: int, retention: int
    ) -> Command:
        """Build an acquire that puts an owner's key back, with a fence of at least `fence`.

        Its ticket stands for no waiter, so the tickets of others don't keep the owner out.
        """
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
        """Build a release (`op`: or REST); `more` are the script's further arguments (lock.lua).

        It is resent until `retry_until` to nodes that were asked after `asked_since`.
        """
        keys = self.release_keys
        return Command.release(self.script, keys, owner, asked_since, retry_until, more, op)

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

    def check(self, owner: str) -> Command:
        """Build the command that asks whether `owner` has the name."""
        return Command(self.script, self.keys, ("check", owner))

    def inspect(self) -> Command:
        """Build the command that asks for the owner, its remaining time and the fence."""
        return Command(self.script, self.keys, ("inspect",))


def ms(seconds: float) -> int:
    """Convert seconds into the whole milliseconds that Redis takes, at least one."""
    return max(1, round(seconds * 1000))
