"""What the nodes granted to this process, and the tasks of this process that want it.

A grant is one owner's key on the nodes. Inside the process it may pass from one lease to the next:
of the tasks that want one name only the first asks the nodes, and a released grant goes to the next
one if `LocalQueue.hand_on` finds that fair and safe. Each lease gets a fence of its own. By default
many fences are reserved at once and ahead of need, so that a hand-over needs no network;
handoff="strict" reserves one at each hand-over (docs/fencing.md, "Handing a lease over"). Other
modules read a Grant but change it only through its methods.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from weakref import ReferenceType

from .. import _clock
from .._nodes.wire import Failure
from .context import Context
from .spec import LeaseOptions, LockSpec, QueueKey, Vote, raised

ENDED_BY = asyncio.CancelledError, GeneratorExit
"""What an interruption raises in a body. GeneratorExit: in an async generator that is closed,
because its consumer was interrupted while the consumer awaited something else."""
FOREVER = float("inf")
KEEP_TIME = 0.1
"""Seconds that a process may keep a name while it knows of no other process that waits for it. When
they are over, it asks the nodes again, and finds out."""
_NONE = range(0)
BLOCK = 1024
"""Number of fences reserved at once; fences then run ahead of the clock by that many µs at most."""
SPARE_FENCES = BLOCK // 4
"""Number of remaining fences below which the next block is reserved."""


class Interruption:
    """Interrupts one body of an `async with`, which runs in the task that creates this object.

    This works like `asyncio.timeout` without a clock (docs/decisions/0004): it cancels the task
    once, and `uncancel` tells this cancellation from all others (see asyncio.Task.uncancel). An
    anyio scope doesn't work here, because it must be left in the task that entered it.
    """

    __slots__ = ("_before", "_handle", "_interrupted", "ended", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can only be entered inside a task")
        self.task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        self._handle: asyncio.Handle | None = None
        self._interrupted = False
        self.ended: bool = False
        """Whether the body has ended."""

    def move(self) -> None:
        """Note that the body continues in the calling task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can only be held inside a task")
        self.task, self._before = task, task.cancelling()

    def interrupt(self) -> None:
        """Cancel what the body awaits, in the next round of the loop, unless the body has ended."""
        # Not at once: the body itself may be running now, and may end before that. Its end may be
        # what notices the loss.
        if self._handle is None and not self.ended:
            self._handle = asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        self._interrupted = True
        self.task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """Note that the body has ended with `kind`; return whether this interruption ended it."""
        self.ended = True
        if self._handle is None:
            return False
        self._handle.cancel()
        # A coroutine may also be closed in a thread without a loop, which has no current task.
        loop = asyncio._get_running_loop()  # noqa: SLF001 - unlike its public sister it never raises
        here = loop is not None and asyncio.current_task() is self.task
        if not self._interrupted or not here:
            return False
        others = self.task.uncancel() > self._before
        return not others and kind is not None and issubclass(kind, ENDED_BY)


@dataclass(slots=True, eq=False)
class Grant:
    """One owner's key on the nodes, which renewal keeps alive, and the leases that have it now."""

    spec: LockSpec
    owner: str
    fence: int
    options: LeaseOptions
    """The options of the present lease."""
    valid_until: float
    voters: tuple[int, ...]
    """The nodes whose grants won the vote."""
    asked_since: float
    """When the nodes were first asked for the lock."""
    queue: LocalQueue | None
    since: float = 0.0
    """When the nodes gave this process the name in the order of all who waited."""
    contended: bool = False
    """Whether other processes waited then."""
    ttl: float = field(init=False)
    """Seconds for which renewals ask; `handed_to` sets this and the next three."""
    held_since: float = field(init=False)
    """When the present lease began."""
    renew_until: float = field(init=False)
    """The latest moment until which renewal keeps this valid; 0 for no renewal."""
    hold_until: float = field(init=False)
    """The latest moment until which `extend` keeps this valid."""
    alarm: float = field(init=False)
    """When renewal checks this next; 0 once the grant is over."""
    extends_until: float = 0.0
    """The latest end in any request to extend this; 0 without one."""
    raised: int = 0
    """The counter's value after a reservation or at a node that took the key back; 0 without."""
    leases: tuple[ReferenceType[Any], ...] = ()
    """Weak references to the present leases, which only users keep: to one, or to all holds of a
    reentrant lock. It is empty between two leases. A dead one is to a lease that was dropped."""
    bodies: tuple[Interruption, ...] = ()
    """The bodies that a loss interrupts."""
    ending: asyncio.Future[None] | None = None
    """Done when the present lease has ended; None until a task waits for that."""
    lost_reason: str | None = None
    fences: range = _NONE
    """The block of fences that is reserved for hand-overs."""
    reserving: asyncio.Future[None] | None = None
    """Done when the request for the next block has ended; None without such a request."""
    restored: dict[int, float] | None = None
    """For each node that forgot the key and took it back: when that was requested."""
    sooner_at: float = FOREVER
    """When a renewal is due before its time, because a node has reported a change of the key, or a
    node that forgot the key may take it back."""

    @property
    def top(self) -> int:
        """The highest value to which we have raised the counter at a quorum."""
        return max(self.fence, self.raised)

    @property
    def lease(self) -> Any:
        """The oldest present lease; None between two leases or if all were dropped."""
        return next(filter(None, (reference() for reference in self.leases)), None)

    def inside(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` runs a body of a lease, so that it would wait for itself."""
        # Most have no body, and `any` would make a generator for nothing.
        return bool(self.bodies) and any(
            body.task is task and not body.ended for body in self.bodies
        )

    # leases

    def handed_to(
        self, lease: ReferenceType[Any], fence: int, options: LeaseOptions, now: float
    ) -> None:
        """Begin a lease with this fence."""
        self.leases = (lease,)
        self.options = options
        self.ttl = options.ttl
        self.fence = fence
        self.held_since = now
        self.hold_until = FOREVER if options.max_hold is None else now + options.max_hold
        self.renew_until = self.hold_until if options.renew else 0.0

    def joined_by(self, lease: ReferenceType[Any]) -> None:
        """Begin one more lease, which shares all with the present ones."""
        self.leases += (lease,)

    def left_by(self, lease: Any) -> None:
        """End one of several leases. If all others were dropped, the grant ends with its ttl."""
        self.leases = tuple(reference for reference in self.leases if reference() is not lease)
        self.bodies = tuple(body for body in self.bodies if not body.ended)
        if self.lease is None:
            self.stop_renewing()

    def guard(self, body: Interruption) -> None:
        """Interrupt `body` if the grant is lost; `body` may need other grants too."""
        self.bodies += (body,)

    def keep_here(self, **options: Any) -> None:
        """Let no waiting task here take the grant over; change these options of the lease, too."""
        self.options = replace(self.options, handoff=False, **options)

    def ends(self) -> asyncio.Future[None]:
        """Return the shared future that is done once the present lease has ended."""
        if self.ending is None:
            self.ending = asyncio.get_running_loop().create_future()
        return self.ending

    def vacated(self) -> None:
        """End the present leases; the next one may take the grant over."""
        self.leases = self.bodies = ()
        if self.ending is not None:
            if not self.ending.done():
                self.ending.set_result(None)
            self.ending = None

    def over(self) -> None:
        """End the grant and its lease: it is neither valid nor renewed any more."""
        self.valid_until = self.alarm = 0.0
        self.vacated()

    def lost(self, reason: str, closer: asyncio.Task[Any] | None = None) -> None:
        """End the grant as lost and interrupt the bodies, but not that of the task `closer`."""
        bodies = self.bodies
        if self.leases:  # otherwise its last lease has passed it on
            self.lost_reason = reason
        self.over()
        for body in bodies if self.options.interrupt else ():
            if body.task is not closer:
                body.interrupt()

    def refuted(self, reason: str) -> None:
        """Note that the lease had been lost before its release."""
        self.lost_reason = reason

    def inherited(self, reason: str) -> None:
        """In a forked child: end the grant as lost, without an event or a cancellation."""
        self.lost_reason = reason
        self.valid_until = self.alarm = 0.0
        self.leases, self.bodies, self.ending = (), (), None

    # renewal

    def check_at(self, at: float) -> None:
        """Set when renewal checks this next."""
        self.alarm = at

    def stop_renewing(self) -> None:
        """Let the grant end with its ttl, because the program has dropped the lease."""
        self.renew_until, self.bodies = 0.0, ()

    def end_sooner(self, by: float) -> None:
        """Shorten the validity, because our clock stood still for `by` seconds."""
        self.valid_until -= by

    def wants(self, ttl: float) -> None:
        """Let later renewals ask for this ttl."""
        self.ttl = ttl

    def asked(self, until: float) -> None:
        """Note a request that may extend this until `until`."""
        self.extends_until = max(self.extends_until, until)

    def extended(self, until: float) -> None:
        """Count an extension by a quorum; the last renewal before `hold_until` ends there."""
        self.valid_until = max(min(until, self.hold_until), self.valid_until)

    def renew_by(self, at: float) -> None:
        """Note that a renewal is due at `at`, although the lease would last longer."""
        self.sooner_at = min(self.sooner_at, at)

    def renewal_sent(self) -> None:
        """Note that the nodes are being asked whether they still have the key."""
        self.sooner_at = FOREVER

    # nodes that forgot the key

    def doubt(self, index: int) -> None:
        """Stop counting node `index` as one whose grant won the vote."""
        self.voters = tuple(voter for voter in self.voters if voter != index)

    def put_back(self, index: int, sent: float, counter: int, *, voted: bool) -> None:
        """Note that node `index` took the key back; `voted`: its grant had won the vote."""
        self.restored = {**(self.restored or {}), index: sent}
        if voted:
            self.voters = (*self.voters, index)
        self.raised = max(self.raised, counter)

    # fences for hand-overs

    def take_fence(self) -> int:
        """Take the first reserved fence."""
        fence = self.fences[0]
        self.fences = self.fences[1:]
        return fence

    def reserve(self, count: int, done: asyncio.Future[None]) -> int:
        """Begin to reserve `count` fences; return the last one. `done` is the request's end."""
        self.raised = self.top + count
        self.reserving = done
        return self.top

    def resumed(self, spec: LockSpec) -> None:
        """Be renewed and released like any other from now on, as a grant of `spec`."""
        self.spec = spec

    def reserved(self, fences: range) -> None:
        """Replace the block of fences."""
        self.fences = fences

    def reservation_ended(self, done: asyncio.Future[None]) -> None:
        """Note the end of a request for fences, unless a newer one is under way."""
        if self.reserving is done:
            self.reserving = None


class Proceed(Enum):
    """The right to ask the nodes."""

    NOW = "now"


Turn = asyncio.Future[Grant | Proceed | None]
"""The wait of one task in a local queue. Its result is a live grant to take over, or the right to
ask the nodes, or None if the wait ended before the task's turn came."""
_NOBODY: OrderedDict[Any, tuple[LeaseOptions, float]] = OrderedDict()
"""An empty queue that all names without waiters share; nothing may be put into it."""


class LocalQueue:
    """The tasks of this process that want one name: some hold, one asks, the rest wait in order."""

    __slots__ = (
        "asking",
        "grants",
        "holder",
        "kept",
        "key",
        "message_replies",
        "name",
        "permits",
        "turn",
        "unanswered",
        "waiters",
    )

    def __init__(self, name: str, key: QueueKey, permits: int, turn: float) -> None:
        self.name: str = name
        self.key: QueueKey = key
        self.permits: int = permits
        """Maximum number of tasks that may hold at once; the same for all with this key."""
        self.turn: float = turn
        """Seconds that this process may keep the name while other processes wait."""
        self.grants: list[Grant] = []
        self.asking: int = 0
        """Number of tasks that are asking the nodes or have just been told to."""
        self.kept: Grant | None = None
        """The grant released last, while this process may take the name again first."""
        self.holder: str | None = None
        """The owner that the task that asks has met last; None without one."""
        self.message_replies: dict[int, Any] | None = None
        """Each node's last reply to `LockSpec.read_beside`, for the error of a timeout."""
        self.unanswered: Vote | None = None
        """The last attempt of the task that asks, if too few nodes voted; None otherwise."""
        self.waiters: OrderedDict[Turn, tuple[LeaseOptions, float]] = _NOBODY
        """For each waiter: its options, and when its call began."""

    @property
    def full(self) -> bool:
        """Whether this process holds all permits of the name."""
        return len(self.grants) >= self.permits

    @property
    def used(self) -> bool:
        """Whether a task holds the name, asks or waits for it, or may take it again first."""
        return bool(self.grants or self.asking or self.waiters or self.kept)

    def join(self, waiter: Turn, options: LeaseOptions, since: float) -> None:
        """Add a waiter whose call began at `since`; the future `waiter` gives it its turn."""
        if self.waiters is _NOBODY:
            self.waiters = OrderedDict()
        self.waiters[waiter] = options, since

    def leave(self, waiter: Turn) -> Grant | Proceed | None:
        """Remove a waiter. Return the turn that it has already got: the caller must pass it on."""
        self.waiters.pop(waiter, None)
        return waiter.result() if waiter.done() and not waiter.cancelled() else None

    def give_up(self, waiter: Turn) -> None:
        """End a waiter's wait without a turn, unless it has just got one."""
        if self.waiters.pop(waiter, None) is not None and not waiter.done():
            waiter.set_result(None)

    def used_up(self, grant: Grant, now: float) -> bool:
        """Whether this process has had the name for so long that others must go first."""
        return now - grant.since >= (self.turn if grant.contended else KEEP_TIME)

    def free(self, grant: Grant) -> None:
        """Note that this process holds `grant` no longer; a second call does nothing."""
        if grant in self.grants:
            self.grants.remove(grant)

    def keep(self, grant: Grant, now: float) -> bool:
        """Reserve the released name until this process's turn ends; return whether it is reserved.

        That is needed only if other processes wait: otherwise nobody else would get the name.
        """
        if not grant.contended or self.permits > 1 or self.used_up(grant, now):
            return False
        self.kept = grant
        return True

    def take_kept(self, now: float) -> float | None:
        """Stop keeping the name. Return when the turn began; None if the turn is over."""
        kept, self.kept = self.kept, None
        return kept.since if kept is not None and now - kept.since < self.turn else None

    def hand_on(self, grant: Grant, given_up: LeaseOptions, now: float) -> bool:
        """Give the grant to the next waiter; return False if nobody may take it over."""
        # `max_hold` limits what one lease may hold, so its grant is not passed on.
        if not given_up.handoff or given_up.max_hold is not None:
            return False
        if now >= grant.valid_until or self.used_up(grant, now):
            return False
        queue = self.waiters
        while queue:
            waiter, entry = queue.popitem(last=False)
            if waiter.done():  # it was cancelled, but its task has not run since
                continue
            options = entry[0]
            if options.ttl == grant.ttl and (options is given_up or alike(options, given_up)):
                waiter.set_result(grant)
                return True
            queue[waiter] = entry
            queue.move_to_end(waiter, last=False)
            return False
        return False

    def let_ask(self) -> bool:
        """Let the next waiter ask the nodes; return False if nobody waits."""
        while self.waiters:
            waiter, _ = self.waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(Proceed.NOW)
                return True
        return False


def alike(options: LeaseOptions, given_up: LeaseOptions) -> bool:
    """Return whether `options` equal `given_up`, which has no max_hold, apart from the ttl.

    The caller compares the ttl with the grant's, which `extend` may have changed.
    """
    return (
        options.handoff == given_up.handoff
        and options.renew == given_up.renew
        and options.max_hold is None
    )


class Reservation:
    """Reserves fences: raises the counter at a quorum and claims all above its previous values."""

    def __init__(self, context: Context, grant: Grant, count: int) -> None:
        self._nodes = nodes = context.multiplexer
        self._sent = _clock.now()
        self._grant = grant
        self._strict = count == 1
        self._previous: list[int] = []
        self._quorum = nodes.quorum
        self._missing = len(nodes.nodes)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._m = grant.reserve(count, self._done)
        command = grant.spec.write_back(grant.owner, self._m, context.retention)
        nodes.broadcast(command, self)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        counts = self._nodes.counts(index, self._sent, self._grant.voters)
        parsed = raised(reply)
        if counts and type(parsed) is not Failure and parsed.done:
            self._previous.append(parsed.counter)
            if len(self._previous) == self._quorum:
                self._claim(max(self._previous))
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _claim(self, highest: int) -> None:
        # Don't start at "our fence + 1": a raise that reached other nodes may have given that fence
        # to another owner (tests/model catches the variant that starts there). In strict mode claim
        # only the last number: lower ones may be older than this hand-over.
        first = self._m if self._strict else highest + 1
        grant = self._grant
        if grant.reserving is self._done and first > max(highest, grant.fence):
            grant.reserved(range(first, self._m + 1))
        self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
        self._grant.reservation_ended(self._done)


def reserve_ahead(context: Context, grant: Grant) -> None:
    """Reserve a block of fences before a hand-over needs them, unless one is being reserved."""
    if grant.options.handoff is True and grant.reserving is None:
        Reservation(context, grant, BLOCK)


def reserve_now(
    context: Context, grant: Grant, options: LeaseOptions
) -> asyncio.Future[None] | None:
    """Reserve a fence for the next lease on `grant`, if needed; return the future to await."""
    if options.handoff == "strict":
        # Fences that are left or being reserved were requested before this hand-over: too old.
        grant.reserved(_NONE)
        Reservation(context, grant, 1)
    elif not grant.fences and grant.reserving is None:
        Reservation(context, grant, BLOCK)
    return None if grant.fences else grant.reserving
