"""The Lease through which one task holds a lock.

Each lease ends once: it is released, handed over (see grant.py) or lost. The replies to its release
may show that it was lost before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Never, Self
from weakref import ReferenceType

from .. import _clock, _settings
from .._nodes.wire import Failure
from .._process import of_one_process
from .._rules import validity
from ..errors import ConfigurationError, LeaseLostError, QuorumUnavailableError
from ..events import NO_LONGER, UNNOTICED, Lost
from . import refusals
from .engine import Engine
from .grant import FOREVER, SPARE_FENCES, Grant, Interruption, reserve_ahead
from .inspection import Lookout, ask_all
from .outbox import Release
from .renewal import QUARANTINED
from .spec import LONGEST_MESSAGE, LeaseOptions, Vote, done, from_json, label, stored

NOT_DETACHED: Final = "the lease on {!r} can't be detached: only those of lock and fair_lock can"
VERSION: Final = 1
LONGEST: Final = 8192
"""Maximum number of bytes of a detached ticket."""


@of_one_process
class Lease(_settings.Answering):
    """One holding of a lock by one task: `acquire` returns it and `async with` enters it.

    Use the lease as a context manager or call `release`. Leaving the context releases it. If the
    lease was lost in the meantime and the body raised nothing itself, leaving raises
    LeaseLostError. With `interrupt` (the default) a loss also ends a running body: what the body
    awaits is cancelled, and the `async with` turns that cancellation into LeaseLostError.
    """

    __slots__ = (
        "__weakref__",
        "_acquired_at",
        "_body",
        "_engine",
        "_grant",
        "_lost",
        "_options",
        "_outcome",
        "fence",
        "name",
        "owner",
        "part",
    )

    def __init__(
        self, engine: Engine, grant: Grant, fence: int, options: LeaseOptions, now: float
    ) -> None:
        self.name: str = grant.spec.name
        """The name that is locked."""
        self.part: str = grant.spec.part
        """The part of the name that is held: a semaphore's slot, "read" or "write"; else ""."""
        self.owner: str = grant.owner
        """The random id stored in Redis, with the label of this process."""
        self.fence: int = fence
        """Fencing token; rises with every lease on this name. A store must reject lower ones."""
        self._acquired_at: float = now
        self._engine = engine
        self._grant: Grant | None = grant
        """What the nodes granted; None once this lease was released."""
        self._options = options
        self._body: Interruption | None = None
        self._lost: str | None = None
        """Why the lease was lost, if only the replies to its release showed that."""
        self._outcome: bool | None = None
        """What `release` returns; None until it was called."""
        if grant.leases:  # a reentrant hold
            grant.joined_by(ReferenceType(self, engine.on_drop))
            return
        engine.counts.acquired += 1
        grant.handed_to(ReferenceType(self, engine.on_drop), fence, options, now)
        queue = grant.queue
        if queue is not None and queue.waiters and len(grant.fences) < SPARE_FENCES:
            reserve_ahead(engine, grant)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _settings.enter_async

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        grant = self._grant  # read once: another thread may ask, too
        return self._options.ttl if grant is None else grant.ttl

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the lease is not entered."""
        if self._body is not None:
            return self._body.task
        grant = self._grant
        return grant.bodies[0].task if grant is not None and grant.bodies else None

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""
        grant = self._grant
        return grant is not None and _clock.now() < grant.valid_until

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""
        grant = self._grant
        return self._lost if grant is None else grant.lost_reason

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once it has ended."""
        grant = self._grant
        return 0.0 if grant is None else max(0.0, grant.valid_until - _clock.now())

    async def wait_lost(self) -> None:
        """Wait until the lease has ended: lost or, with `lost_reason` None, released.

        Returns at the latest when the lease ends by our clock, without asking the nodes. A loss
        doesn't interrupt this call, unless a block of the same task is entered. Cancelling it
        changes nothing. While it waits it keeps the lease, which is therefore renewed.
        """
        await one_ends([self])

    async def extend(self, ttl: float | None = None, **unknown: Never) -> None:
        """Renew the lease now for `ttl` seconds (default: its present ttl), and keep that ttl.

        The range of `ttl` is that of `lock(ttl=)`; other values raise ConfigurationError, and so
        does a ttl with which the lease would end earlier than it does now: release it instead. With
        `max_hold`, this doesn't move the end past `max_hold` seconds after the acquire. Raises
        LeaseLostError if the lease is no longer held. Raises QuorumUnavailableError if too few
        nodes answered: the lease then ends when it would have. If this call is cancelled, the
        nodes may or may not have extended.
        """
        if unknown:
            raise _settings.unknown(unknown)
        if ttl is not None:
            settings = self._engine.settings
            timeout, longest = settings.node_timeout, settings.max_ttl
            ttl = _settings.ttl(ttl, node_timeout=timeout, max_ttl=longest)
        grant = live(self)
        before = grant.ttl
        if ttl is not None:
            present = max(grant.valid_until, grant.extends_until)
            sooner = validity.valid_until(_clock.now(), ttl) < present
            if ttl < before and sooner:
                raise ConfigurationError(
                    f"extend(ttl={ttl:g}) would end the lease on {self.name!r} earlier than it "
                    "ends now: release it instead, or wait"
                )
            grant.wants(ttl)
        failures = await self._engine.extend_now(grant)
        if not self.held:
            raise loss_error(self)
        if failures is not None:
            if grant.ttl == ttl and self.remaining() <= before:  # no other call has got it
                grant.wants(before)
            nodes = self._engine.multiplexer.nodes
            raise QuorumUnavailableError(
                f"too few nodes answered to extend {self.name!r}",
                name=self.name,
                nodes={nodes[i].address: failure.cause for i, failure in failures.items()},
            )

    async def check(self) -> bool:
        """Return whether the nodes still keep the lease for us, without renewing it.

        `held` answers from our own clock; this asks the nodes, for at most one node timeout. True
        means that a quorum kept the lease at a moment of this call. If too few nodes keep it for a
        quorum, the lease is lost at once: this returns False, and `lost_reason` says why. For a
        lease that has ended this returns False without a request. Raises QuorumUnavailableError if
        too few nodes answered: that changes nothing, and the lease is held until its deadline. The
        answer is of the past when it arrives: only a store that checks the fence is safe.
        """
        check_loop(self)
        engine, grant = self._engine, self._grant
        if grant is None or not self.held:
            return False
        check = Check(engine, grant)
        engine.multiplexer.broadcast(grant.spec.check(grant.owner), check)
        if await check.decided:
            return self.held
        if not check.gone:
            raise refusals.outage(check)
        if grant.alarm:  # it was not released in the meantime
            engine.mark_lost(grant, NO_LONGER)
        return False

    async def detach(self) -> bytes:
        """Hand the lease out of this process: return a detached ticket, which `resume` takes.

        The ticket is ASCII text of at most 8192 bytes. Keep it secret: it lets anyone who reaches
        the nodes keep or release the lease. The lease is renewed once more, and counts as released
        here. If nobody resumes it, the nodes end it and its `at_least` after the ttl, or what
        `max_hold` leaves. Raises ConfigurationError unless `lock` or `fair_lock` made the lease,
        and what `extend` raises. After an error or a cancellation the lease is held as before.
        """
        grant = live(self)
        ticket = Detached.ticket_of(grant)
        await self.extend()
        grant.keep_here(at_least=FOREVER)  # the name rests: until the nodes' key of the lease ends
        let_go(self)
        return ticket

    async def publish(self, text: str) -> bool:
        """Publish a message for people, such as "reindexing 40 %"; return whether it is stored now.

        Inspections, `top`, the dashboard and `holder_message` of a timeout's error show it. It
        replaces the one before; "" takes that back. Each renewal sends it again, also if this
        returned False: too few nodes answered in one node timeout. It ends with the lease, at the
        latest one ttl after the last renewal. Raises LeaseLostError if the lease has ended,
        ConfigurationError for over 200 characters or a reader's lease. Cancelling doesn't stop it.
        """
        if not isinstance(text, str) or len(text) > LONGEST_MESSAGE:
            raise ConfigurationError(f"a message is a str of at most {LONGEST_MESSAGE} characters")
        return await send_message(self, text or None).decided

    def wanted(self) -> Coroutine[Any, Any, str | None]:
        """Wait until somebody asks for the lease (`LockManager.ask_back`); return that one's label.

        Returns None once the lease has ended. The holder decides what to do. A request counts for
        `max_ttl` seconds, in which each call returns at once. It arrives within a round trip or
        two; nodes that can't push are asked about four times a second. The label is untrusted text.
        Cancelling this leaves nothing behind. Raises ConfigurationError in another event loop.
        """
        return wanted([self])

    def on_wanted(self, callback: Callable[[Lease], object]) -> None:
        """Call `callback` with this lease, in the event loop, when somebody asks for the lease.

        The call comes once, unless the lease ends before or is dropped. An exception of it goes to
        the exception handler of the loop, which logs it.
        """
        _settings.callback(callback)
        check_loop(self)
        asked, reference = self.wanted(), ReferenceType(self)  # which don't keep the lease

        async def tell() -> None:
            if await asked is not None and (lease := reference()) is not None:
                callback(lease)

        self._engine.background.spawn(tell(), f"asynclock: a callback of {self.name}")

    async def release(self) -> bool:
        """Release the lock. Return whether it was held until now; if not, the loss is reported.

        A second call sends nothing, and returns the same at once, as far as that is known yet.
        Normally returns when a quorum has confirmed, or after one node timeout. If a task of this
        process waits for the lock, the lock is handed over without asking a node, unless this
        process has had it for 0.1 s (or, while others wait, for its turn). If other processes wait
        and this process may take the lock again within its turn, this returns True without waiting
        for the nodes. A loss that their replies show later sets `lost_reason` and is logged.
        Leaving `async with` waits for the replies, unless the block has called this.
        The request is queued for all nodes before the first await, so cancelling this call doesn't
        stop the release. Raises ConfigurationError in another event loop than the manager's.
        """
        release = let_go(self, hold=True)
        if release is not None and not release.kept:
            await release.done()
        return bool(self._outcome)

    def _was_lost(self, reason: str) -> None:
        # The replies to the release show it.
        self._outcome, self._lost = False, reason
        held = _clock.now() - self._acquired_at
        self._engine.report_loss(Lost(self.name, self.owner, self.fence, reason, held))

    def _ending(self) -> asyncio.Future[None]:
        """Return the shared future that is done once the lease has ended; don't cancel it."""
        check_loop(self)
        grant = self._grant
        if grant is None or not grant.alarm:
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return grant.ends()

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts.

        Use this when a body is entered in one task and continues in another, as fixtures and exit
        stacks may do. Raises LeaseLostError if the lease has ended, RuntimeError if it is not
        entered, ConfigurationError in another event loop than the manager's.
        """
        if self._body is None:
            raise RuntimeError("this lease is not entered")
        live(self)
        self._body.move()

    async def __aenter__(self) -> Lease:
        return enter(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        body, self._body = self._body, None
        interrupted = body is not None and body.leave(kind)
        if kind is GeneratorExit:
            self._engine.soon(partial(let_go, self))  # a coroutine may be closed in any thread
        else:
            release = let_go(self, hold=True)
            if release is not None:
                await release.done()
        unheld = kind is None and not self._outcome
        if (unheld or interrupted) and self.lost_reason is not None:
            raise loss_error(self) from error
        return (interrupted and kind is not GeneratorExit) or None  # after `step_down`


# ---- What primitives do with a lease, and users don't --------------------------------------------


def enter(lease: Lease) -> Lease:
    """Begin the body, as `async with` does.

    Raises LeaseLostError if the lease has ended, RuntimeError if it was entered already.
    """
    grant = lease._grant
    if grant is None or not grant.alarm or _clock.now() >= grant.valid_until:
        notice_end(lease)
        raise loss_error(lease)
    if lease._body is not None:
        raise RuntimeError("this lease has been entered already")
    body = Interruption()
    if body.task.get_loop() is not lease._engine.multiplexer.loop:
        check_loop(lease)  # a loss could not end a body there
    lease._body = body
    grant.guard(body)
    return lease


def let_go(lease: Lease, *, hold: bool = False) -> Release | None:
    """Release now, without waiting, and return the release.

    Returns None if the lease had ended, was handed over or is one of several. With `hold` the
    caller held the lease until now; otherwise a call that has failed, and maybe in another event
    loop, gives it back.
    """
    engine, grant = lease._engine, lease._grant
    if lease._outcome is not None:
        return None
    if grant is None or not grant.alarm:
        lease._outcome = False
        return None
    if hold and asyncio.get_running_loop() is not engine.multiplexer.loop:
        check_loop(lease)
    now = _clock.now()
    lease._outcome = held = now < grant.valid_until
    if held and len(grant.leases) > 1:
        grant.left_by(lease)
        lease._grant = None
        return None
    release = engine.end_lease(grant, now, lease._was_lost)
    if hold and held and engine.paces:
        engine.paces.held(grant.spec.pace_key, now - grant.held_since)
    if grant.lost_reason is None:  # otherwise it says why
        lease._grant = None
    return release


def give_back(lease: Lease) -> None:
    """Release the lease that a call got before it failed; call this in its `except`."""
    lease._engine.clean_up(partial(let_go, lease))


async def release_all(leases: Sequence[Lease]) -> bool:
    """Release all leases, the last one first; return whether all were held until now.

    All requests are sent before this waits, so a cancellation only ends the wait for the replies.
    """
    releases = [let_go(lease, hold=True) for lease in reversed(leases)]
    for release in releases:
        if release is not None and not release.certain():  # they nearly always travel together
            await release.done()
    return all(lease._outcome for lease in leases)


def grant_of(lease: Lease) -> Grant | None:
    """Return what the nodes granted; None once the lease was released."""
    return lease._grant


def live(lease: Lease) -> Grant:
    """Return the grant of a lease that is held. Raises LeaseLostError if it has ended."""
    check_loop(lease)
    if lease._grant is None or not lease.held:
        raise loss_error(lease)
    return lease._grant


def loss_error(lease: Lease, reason: str | None = None) -> LeaseLostError:
    """Return the error for code that uses a lease that is no longer held."""
    ended = "expired" if lease._outcome is None else "it was released or detached"
    reason = reason or lease.lost_reason or ended
    text = f"the lease on {lease.name!r} (fence {lease.fence}) is no longer held: {reason}"
    more: dict[str, Any] = {"owner": lease.owner, "fence": lease.fence}
    return LeaseLostError(text, name=lease.name, reason=reason, **more)


def check_loop(lease: Lease) -> None:
    """Raise ConfigurationError in another event loop than the manager's."""
    lease._engine.multiplexer.check_loop()


def notice_end(lease: Lease) -> None:
    """Count the lease as lost if it has ended and nothing has noticed that yet."""
    if lease._grant is not None and not lease.held:
        lease._engine.mark_lost(lease._grant, UNNOTICED)


def step_down(lease: Lease) -> None:
    """End the body as a loss does, but while the lease is held: leaving raises no error."""
    if lease._body is not None:
        lease._body.interrupt()


def send_message(lease: Lease, text: str | None) -> Check:
    """Send a message, now and with each renewal; None takes it back. Return the vote on it."""
    grant, engine = live(lease), lease._engine
    if not grant.spec.own_keys:
        raise ConfigurationError("readers share a name, so none of them can publish a message")
    engine.messages.pop(grant, None)
    if text is not None:
        message = lease.fence, next(engine.renewals.numbers), lease.owner, text
        engine.messages[grant] = json.dumps(message).encode()
    check = Check(engine, grant)
    engine.publish(grant, check)
    return check


async def one_ends(leases: Sequence[Lease]) -> None:
    """Wait until one of the leases has ended, without keeping any of them."""
    if all(grant is not None and grant.alarm for grant in map(grant_of, leases)):
        endings = [lease._ending() for lease in leases]
        del leases
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)


async def wanted(leases: Sequence[Lease]) -> str | None:
    if not leases:
        return None
    engine = leases[0]._engine
    grants = [lease._grant for lease in leases if lease._grant is not None]
    endings = [lease._ending() for lease in leases]
    del leases  # the program may drop them while this waits
    looks = [grant.spec.read_beside(grant.owner) for grant in grants]
    lookout = Lookout(engine, tuple(key for look in looks for key in look.keys))
    for ending in endings:
        ending.add_done_callback(lookout.watch.wake)
    by: list[bytes] = []
    try:
        while not any(ending.done() for ending in endings):
            if by:
                for grant in grants:  # the next lease of this process wasn't asked for
                    grant.keep_here()
                return label(by[0].decode("utf-8", "replace"))
            armed, quorum = lookout.begin(), engine.multiplexer.quorum
            for look in looks:
                by += stored((await ask_all(engine, look, enough=quorum, arm=armed)).values())
            if not by:
                await lookout.wait(grants[0].ttl)
        return None
    finally:
        for ending in endings:
            ending.remove_done_callback(lookout.watch.wake)
        lookout.close()


class Check(Vote):
    """Asks the nodes that keep a grant; decided once a quorum keeps it or no quorum can."""

    AIM: ClassVar[str] = "check"

    def __init__(self, engine: Engine, grant: Grant) -> None:
        super().__init__(grant.spec.name, engine.multiplexer)
        self._multiplexer = engine.multiplexer
        self._grant = grant
        self._sent = _clock.now()
        self._left = len(self._nodes)
        self._missing = 0
        self.votes: int = 0
        """Number of nodes that keep the grant for us, as far as their votes count."""
        self.decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Its result is whether a quorum keeps the grant."""

    @property
    def gone(self) -> bool:
        """Whether the nodes that lack the key leave no quorum that can have it."""
        return len(self._nodes) - self._missing < self._quorum

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        parsed = done(reply)
        if type(parsed) is Failure:
            self.failures[index] = parsed
        elif not parsed:
            self._missing += 1
        elif self._multiplexer.counts(index, self._sent, self._grant.voters):
            self.votes += 1
        else:
            self.failures[index] = QUARANTINED
        self._left -= 1
        decided = self.votes >= self._quorum or self.gone or not self._left
        if decided and not self.decided.done():
            self.decided.set_result(self.votes >= self._quorum)


class Detached(NamedTuple):
    """What a detached ticket says: VERSION and these fields, as a list in JSON."""

    name: str
    key: str
    """The lock's own key, which tells a fair lock, and the manager's prefix."""
    owner: str
    fence: int
    ttl: float
    at_least: float

    @classmethod
    def ticket_of(cls, grant: Grant) -> bytes:
        """Return the ticket of a lease. Raises ConfigurationError if it can't have one."""
        spec, left = grant.spec, grant.held_since + grant.options.at_least - _clock.now()
        if spec.part or not spec.queue:  # it isn't a whole name, or is several
            raise ConfigurationError(NOT_DETACHED.format(spec.name), name=spec.name)
        lease = grant.owner, grant.fence, grant.ttl, max(0.0, left)
        text = json.dumps([VERSION, *cls(spec.name, spec.keys[0], *lease)])
        if len(text) > LONGEST:
            long = f"the name is too long for a ticket of {LONGEST} bytes: lock its hash"
            raise ConfigurationError(long, name=spec.name)
        return text.encode()

    @classmethod
    def read(cls, ticket: object) -> Self:
        """Return what `ticket` says. Raises ConfigurationError, which doesn't show the ticket."""
        if not isinstance(ticket, bytes):
            raise ConfigurationError("a ticket must be bytes (of a text, pass ticket.encode())")
        match from_json(ticket) if len(ticket) <= LONGEST else None:
            case [form, str(), str(), str(), int(), float(), float()] as found if form == VERSION:
                return cls(*found[1:])
        raise ConfigurationError("this is no ticket that Lease.detach of this version returned")
