"""Reports node by node who has a name and who waits for it. For people, never for decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import fmod, inf
from typing import Any, Final

from .._nodes.wire import Command, Failure, Gather, Script
from .._rules import pacing
from .._rules.quorum import majority
from .attempt import WOKEN, Ticket
from .context import Context
from .spec import LockSpec, holder, is_owner_id, label, places, published, rests, values

SCRIPT = Script.load(__package__, "waiters.lua")
LATER: Final = 4e15
"""The number of a reader that waits, less its milliseconds since 1970 (_primitives/phases.lua)."""
CLOCKS: Final = range(10**15, 2**53)
"""Numbers that come from a node's clock, in µs since 1970: others began at 1 or were made up."""
MILLISECONDS: Final = range(10**12, 10**15)
"""Numbers of the waiters of a read-write lock, in ms since 1970."""
MOST_WAITERS: Final = 1000
"""Maximum number of waiters that are read of one queue: at most about a millisecond of a server."""
NAMED: Final = 3
"""Maximum number of waiters that the error of a timeout names."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """One place in the queue of a name. Its texts are untrusted: never print them raw.

    Tasks of one process that wait for the same name have one place together; the tasks of a fair
    lock, and readers, have one each.
    """

    ticket: str
    """The id of the place: the owner id with which the waiter asked first."""
    woken: bool
    """Whether a node has told the waiter that its turn has come."""

    since: float | None = None
    """When it began to wait, in seconds since 1970 by the clocks of the nodes; None if they can't
    tell, as for a reader that goes next."""
    shared: bool = False
    """Whether it waits to read, together with others."""
    slots: int = 1
    """Number of permits that it knows of a semaphore, at most 64; 1 for a whole name."""

    @property
    def label(self) -> str | None:
        """The waiter's label, for people to read, as `holder` is the owner's."""
        return label(self.ticket)


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one node reports about a name. Its texts are untrusted: never print them raw."""

    node: str
    owner: str | None
    """The id of the owner; None without an owner or without an answer."""
    remaining: float | None
    """Seconds until the node frees the name by itself; None without an owner or without a ttl."""
    fence: int
    """The highest fence that the node has given out; 0 if it remembers none."""
    error: str | None = None
    """Why the node gave no answer; None if it did."""
    value: str | None = None
    """The stored value of an event, latch or barrier, which has no owner."""

    shared: bool = False
    """Whether several owners have the same fence counter, as readers do."""
    raw_message: bytes | None = None
    """The message as the node stores it; `Inspection.message` reads it, if it is the owner's."""

    @property
    def holder(self) -> str | None:
        """The owner's label, for people to read; None without an owner."""
        return label(self.owner)

    @property
    def since(self) -> float | None:
        """When the owner got the lock, by this node's fence counter; see `Inspection.since`."""
        if self.shared or self.fence not in CLOCKS or not is_owner_id(self.owner):
            return None
        return self.fence / 1_000_000


@dataclass(frozen=True, slots=True)
class Inspection:
    """What all nodes report about a name."""

    name: str
    nodes: tuple[NodeView, ...]
    quorum: int
    kind: str = "lock"
    """The kind of primitive: "lock", "semaphore", "rwlock", …"""
    part: str = ""
    """The part of the name that this is about, such as a slot; "" for the name as a whole."""
    parts: tuple[Inspection, ...] = ()
    """One inspection per part if there are several: a semaphore's slots, or writer and readers."""
    waiting: tuple[Waiter, ...] = ()
    """The waiters of all processes in their order, at most 1,000 of each queue; each part has those
    of its name. Only nodes that answered count (see `nodes`), so in an outage fewer may be known.
    Empty also if the nodes' users may not read the queue."""

    @property
    def owner(self) -> str | None:
        """The id of the owner that a quorum of nodes names; None if there is none."""
        owners = [view.owner for view in self.nodes if view.owner is not None]
        most = max(owners, key=owners.count, default=None)
        return most if most is not None and owners.count(most) >= self.quorum else None

    @property
    def holder(self) -> str | None:
        """The owner's label, for people to read; None without an owner."""
        return label(self.owner)

    @property
    def rests(self) -> bool:
        """Whether the name rests for `remaining` seconds; no lease has this `owner` then."""
        return rests(self.owner)

    @property
    def fence(self) -> int:
        """The highest number that a quorum has reached: the fence, or the end of its block.

        A single node may be ahead: it granted an acquire that the others had already decided.
        """
        highest = sorted((view.fence for view in self.nodes), reverse=True)
        return highest[self.quorum - 1] if len(highest) >= self.quorum else 0

    @property
    def remaining(self) -> float | None:
        """Seconds until no quorum keeps the lock, without renewal; None if there is no owner."""
        owner = self.owner
        left = [v.remaining for v in self.nodes if v.owner == owner and v.remaining is not None]
        kept = sorted(left, reverse=True)
        return kept[self.quorum - 1] if owner is not None and len(kept) >= self.quorum else None

    @property
    def since(self) -> float | None:
        """When the owner got the lock, in seconds since 1970 by the clocks of the nodes.

        A fence begins at the nodes' time of the acquire, so this costs an acquire nothing. It is
        later by some milliseconds if the lock was handed over inside the owner's process, and
        wrong by as much as the nodes' clocks were set back. None for a reader, because readers
        share a counter, for an owner that this library didn't make, and without an owner.
        """
        owner = self.owner
        if owner is None:
            return None
        found = [v.since for v in self.nodes if v.owner == owner and v.since is not None]
        return min(found, default=None)

    @property
    def message(self) -> str | None:
        """What the owner publishes (`Lease.publish`); None for nothing. Never print it raw."""
        found = published((view.raw_message for view in self.nodes), self.owner)
        return (found and found[1]) or None

    @property
    def agreed(self) -> bool:
        """Whether all nodes that answered name the same owner, or none."""
        return len({view.owner for view in self.nodes if view.error is None}) <= 1


async def inspect(
    context: Context,
    spec: LockSpec,
    kind: str = "lock",
    queues: Sequence[Command] | None = None,
    *,
    arm: bool = False,
) -> Inspection:
    """Ask every node about one name; takes at most one node timeout.

    `queues` are the questions for the waiters, by default that for the queue of `spec`. With `arm`,
    the nodes also push later changes of the owner and of its message.
    """
    if queues is None:
        queues = (question(spec.queue),) if spec.queue else ()
    nodes, quorum = context.multiplexer.nodes, context.multiplexer.quorum
    replies, told, waiting = await asyncio.gather(
        ask_all(context, spec.inspect(), arm=arm),
        ask_all(context, spec.read_beside(), arm=arm),
        _waiters(context, queues),
    )
    views = tuple(_view(node.address, replies[i], told[i]) for i, node in enumerate(nodes))
    return Inspection(spec.name, views, quorum, kind, spec.part, waiting=waiting)


async def inspect_parts(
    context: Context, kind: str, specs: Sequence[LockSpec], queues: Sequence[Command] = ()
) -> Inspection:
    """Ask every node about all parts of a name at the same time.

    `queues` are the questions for the queues that all parts share; without them each has its own.
    """
    own = () if queues else None
    asked = (inspect(context, spec, kind, own) for spec in specs)
    parts, waiting = await asyncio.gather(asyncio.gather(*asked), _waiters(context, queues))
    if queues:
        parts = [replace(part, waiting=waiting) for part in parts]
    return whole(specs[0].name, kind, parts)


def whole(name: str, kind: str, parts: Sequence[Inspection]) -> Inspection:
    """Combine the inspections of all parts: the whole has no owner and the highest fence."""
    views = []
    for same in zip(*(part.nodes for part in parts), strict=True):
        errors = [view.error for view in same if view.error is not None]
        fence = max(view.fence for view in same)
        views.append(NodeView(same[0].node, None, None, fence, errors[0] if errors else None))
    waiting = tuple(dict.fromkeys(waiter for part in parts for waiter in part.waiting))
    return Inspection(
        name, tuple(views), parts[0].quorum, kind, parts=tuple(parts), waiting=waiting
    )


async def _waiters(context: Context, queues: Sequence[Command]) -> tuple[Waiter, ...]:
    found = await asyncio.gather(*(ask_all(context, queue) for queue in queues))
    return tuple(waiter for replies in found for waiter in in_order(replies.values()))


def before(told: Iterable[Any], ticket: Ticket) -> str:
    """Name the waiters before a ticket, by the replies to `question`; "" if these don't tell."""
    others = [repr(one.label) for one in in_order(told) if one.ticket != ticket.id]
    first = others[: min(ticket.rank, NAMED)]
    more = [f"{ticket.rank - len(first)} more"] if ticket.rank > len(first) else []
    return f", behind {', '.join(first + more)}" if first else ""


async def ask_all(
    context: Context, command: Command, *, enough: int | None = None, arm: bool = False
) -> dict[int, Any]:
    """Send `command` to every node; return each node's reply or Failure by its number.

    Waits for all answers, or for `enough` of them, and at most one node timeout.
    """
    context.ready()
    size = len(context.multiplexer.nodes)
    replies = Gather(size, enough or size)
    context.multiplexer.broadcast(command, replies, arm=arm)
    await replies.complete
    return replies.found


def _view(address: str, reply: Any, told: Any) -> NodeView:
    parsed, messages = holder(reply), values(told)
    if type(parsed) is Failure:
        return NodeView(address, None, None, 0, parsed.cause)
    message = None if isinstance(messages, Failure) else messages[0]
    return NodeView(address, parsed.owner, parsed.left, parsed.fence, raw_message=message)


def question(*keys: str, most: int | None = None) -> Command:
    """Return the command that asks a node for the waiters in a queue; waiters.lua has the keys."""
    return Command(SCRIPT, keys, ("inspect", MOST_WAITERS if most is None else most))


def in_order(replies: Iterable[Any]) -> tuple[Waiter, ...]:
    """Return the waiters that a majority of the nodes that answered keep, first one first."""
    answers = [parsed for parsed in map(places, replies) if type(parsed) is not Failure]
    found: dict[bytes, list[tuple[float, bytes, float]]] = {}
    for queue in answers:
        for one in queue:
            found.setdefault(one.ticket, []).append((one.place, one.value, one.number))
    enough = majority(len(answers))
    kept = [(max(on)[0], ticket, on) for ticket, on in found.items() if len(on) >= enough]
    return tuple(
        Waiter(
            ticket.decode("utf-8", "replace"),
            any(value == WOKEN for _, value, _ in on),
            min(filter(None, (_moment(number) for *_, number in on)), default=None),
            any(number < 0 or number >= LATER for *_, number in on),
            max(int(value) if value.isdigit() else 1 for _, value, _ in on),
        )
        for _, ticket, on in sorted(kept)
    )


def _moment(number: float) -> float | None:
    """Return the node's time at which a ticket got its number, in seconds since 1970."""
    clock = int(fmod(number, LATER))
    if clock in CLOCKS:
        return clock / 1_000_000
    return clock / 1000 if clock in MILLISECONDS else None


# looks that go on


class Lookout:
    """The waits of one task between its looks at some keys; each look begins with `begin`."""

    def __init__(self, context: Context, keys: tuple[str, ...]) -> None:
        self._context = context
        self.watch = context.multiplexer.wakeups.watch(keys)
        self.listening: bool = False
        """Whether the nodes send pushes; then each look arms the next one."""
        self.made: int = 0
        """Number of waits so far."""

    def begin(self) -> bool:
        """Forget earlier pushes and return whether this look is to arm the next one."""
        self.watch.reset()
        self.listening = self._context.multiplexer.tracks()
        return self.listening

    async def wait(self, left: float | None = None, *, most: float = inf) -> None:
        """Wait until it is time for the next look, at most `most` seconds.

        `left` is the number of seconds after which the keys change by themselves (None: unknown).
        """
        random = self._context.random()
        if self.listening:
            pause = pacing.until_expiry(left, random)
        else:
            pause = pacing.without_push(self.made, left, random)
        await self.watch.wait(min(most, pause))
        self.made += 1

    def close(self) -> None:
        """Stop watching."""
        self.watch.close()
