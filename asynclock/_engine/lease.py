"""The Lease through which one task holds a lock.

A lease has one grant, or several: one for each permit of a semaphore, or on a Cluster one for each
name. A grant has one lease, or several: the holds on a reentrant lock. Each lease ends once: it
is released, handed over (see grant.py) or lost. The replies to its release may show that it was
lost before.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Never, Self, TypeVar
from weakref import ReferenceType

from .. import _clock, _settings
from .._nodes.wire import Failure
from .._process import of_one_process
from .._rules import validity
from ..errors import ConfigurationError, LeaseLostError, QuorumUnavailableError
from ..events import NO_LONGER, UNNOTICED, Lost
from . import refusals
from .engine import Engine
from .grant import FOREVER, Grant, Interruption
from .inspection import Lookout, ask_all
from .outbox import Release
from .renewal import QUARANTINED
from .spec import LONGEST_MESSAGE, LeaseOptions, Vote, done, from_json, label, stored

NOT_DETACHED: Final = "the lease on {!r} can't be detached: only those of lock and fair_lock can"
L = TypeVar("L", bound="Lease")
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
        "_body",
        "_engine",
        "_grants",
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
        self._engine = engine
        self._grants: tuple[tuple[Grant, int], ...] = ((grant, fence),)
        """The grants, each with the fence that this lease got. A grant that has no lease or another
        fence isn't this one's any more."""
        self._body: Interruption | None = None
        self._outcome: bool | None = None
        """What `release` returns; None until this lease was released."""
        reference = ReferenceType(self, engine.on_drop)
        if grant.leases:  # a reentrant hold
            grant.joined_by(reference)
        else:
            grant.handed_to(reference, fence, options, now)

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _settings.enter_async

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        part = f" part={self.part!r}" if self.part else ""
        return f"<Lease {self.name!r}{part} fence={self.fence} {state}>"

    @property
    def ttl(self) -> float:
        """Seconds the lease lives without renewal."""
        return min((grant.ttl for grant, _ in self._grants), default=0.0)

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the lease is not entered."""
        return None if self._body is None else self._body.task

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment by our own clock, without asking the nodes."""
        return self.remaining() > 0

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None if it was not."""
        ours = (grant.lost_reason for grant, fence in self._grants if grant.fence == fence)
        return next((reason for reason in ours if reason is not None), None)

    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed again; 0 once it has ended."""
        if len(grants := grants_of(self)) < len(self._grants):
            return 0.0
        return max(0.0, min((one.valid_until for one in grants), default=0.0) - _clock.now())

    async def wait_lost(self) -> None:
        """Wait until the lease has ended: lost or, with `lost_reason` None, released.

        Returns at the latest when the lease ends by our clock, without asking the nodes. A loss
        doesn't interrupt this call, unless a block of the same task is entered. Cancelling it
        changes nothing. While it waits it keeps the lease, which is therefore renewed.
        """
        await ended(self)

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
        engine, grants = self._engine, live(self)
        before = [grant.ttl for grant in grants]
        if ttl is not None:
            until = validity.valid_until(_clock.now(), ttl)
            if any(
                ttl < grant.ttl and until < max(grant.valid_until, grant.extends_until)
                for grant in grants
            ):
                raise ConfigurationError(
                    f"extend(ttl={ttl:g}) would end the lease on {self.name!r} earlier than it "
                    "ends now: release it instead, or wait"
                )
            for grant in grants:
                grant.wants(ttl)
        extensions = [engine.extend_now(grant) for grant in grants]
        answers = [await extension for extension in extensions]
        if not self.held:
            raise loss_error(self)
        failures: dict[int, Failure] = {}
        for grant, usual, answer in zip(grants, before, answers, strict=True):
            if answer is not None:
                failures |= answer
                if grant.ttl == ttl and grant.valid_until - _clock.now() <= usual:
                    grant.wants(usual)  # unless another call has extended it meanwhile
        if failures:
            nodes = engine.multiplexer.nodes
            causes = {nodes[i].address: failure.cause for i, failure in failures.items()}
            text = f"too few nodes answered to extend {self.name!r}: {refusals.listed(causes)}"
            raise QuorumUnavailableError(text, name=self.name, nodes=causes)

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
        if not self.held:
            return False
        engine, checks = self._engine, [Check(self._engine, grant) for grant in grants_of(self)]
        for check in checks:
            engine.multiplexer.broadcast(check.grant.spec.check(check.grant.owner), check)
        kept = [await check.decided for check in checks]
        for check in checks:
            if check.gone and check.grant.alarm:  # it was not released in the meantime
                engine.lose(check.grant, NO_LONGER)
        unknown = [check for check in checks if not (check.decided.result() or check.gone)]
        if unknown and self.held:
            raise refusals.outage(unknown[0])
        return all(kept) and self.held

    async def detach(self) -> bytes:
        """Hand the lease out of this process: return a detached ticket, which `resume` takes.

        The ticket is ASCII text of at most 8192 bytes. Keep it secret: it lets anyone who reaches
        the nodes keep or release the lease. The lease is renewed once more, and counts as released
        here. If nobody resumes it, the nodes end it and its `at_least` after the ttl, or what
        `max_hold` leaves. Raises ConfigurationError unless `lock` or `fair_lock` made the lease,
        and what `extend` raises. After an error or a cancellation the lease is held as before.
        """
        (grant,) = live(self)
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
        checks = send_message(self, text or None)
        return all([await check.decided for check in checks])

    def wanted(self) -> Coroutine[Any, Any, str | None]:
        """Wait until somebody asks for the lease (`LockManager.ask_back`); return that one's label.

        Returns None once the lease has ended. The holder decides what to do. A request counts for
        `max_ttl` seconds, in which each call returns at once. It arrives within a round trip or
        two; nodes that can't push are asked about four times a second. The label is untrusted text.
        Cancelling this leaves nothing behind. Raises ConfigurationError in another event loop.
        """
        return wanted(self)

    def on_wanted(self, callback: Callable[[Lease], object]) -> None:
        """Call `callback` with this lease, in the event loop, when somebody asks for the lease.

        The call comes once, unless the lease ends before or is dropped. An exception of it goes to
        the exception handler of the loop, which logs it.
        """
        _settings.callback(callback)
        check_loop(self)
        asked, again = self.wanted(), self._weakly()  # which don't keep the lease

        async def tell() -> None:
            if await asked is not None and (lease := again()) is not None:
                callback(lease)

        self._engine.background.spawn(tell(), f"asynclock: a callback of {self.name}")

    def _weakly(self) -> Callable[[], Lease | None]:
        return ReferenceType(self)

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
        for release in let_go(self, hold=True):
            if not release.kept:
                await release.done()
        return bool(self._outcome)

    def _was_lost(self, grant: Grant, reason: str) -> None:
        # The replies to the release show it.
        self._outcome = False
        grant.refuted(reason)
        held = _clock.now() - grant.held_since
        self._engine.report_loss(Lost(grant.spec.name, grant.owner, grant.fence, reason, held))

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts.

        Use this when a body is entered in one task and continues in another, as fixtures and exit
        stacks may do. Raises LeaseLostError if the lease has ended, RuntimeError if it is not
        entered, ConfigurationError in another event loop than the manager's.
        """
        if self._body is None:
            raise RuntimeError(f"the lease on {self.name!r} is not entered: use `async with` first")
        live(self)
        self._body.move()

    async def __aenter__(self) -> Self:
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
            for release in let_go(self, hold=True):
                await release.done()
        unheld = kind is None and not self._outcome
        if (unheld or interrupted) and self.lost_reason is not None:
            raise loss_error(self) from error
        return (interrupted and kind is not GeneratorExit) or None  # after `step_down`


# ---- What primitives do with a lease, and users don't --------------------------------------------


def take(lease: Lease, grant: Grant, fence: int, options: LeaseOptions, now: float) -> None:
    """Let `lease` have one more grant."""
    lease._grants += ((grant, fence),)
    lease._outcome = None  # what it had so far may have been released through `locks.leases()`
    lease.owner, lease.fence = lease._grants[0][0].owner, max(lease.fence, fence)
    grant.handed_to(ReferenceType(lease, lease._engine.on_drop), fence, options, now)


def enter(lease: L) -> L:
    """Begin the body, as `async with` does.

    Raises LeaseLostError if the lease has ended, RuntimeError if it was entered already.
    """
    now = _clock.now()
    for grant, fence in lease._grants:
        over = now >= grant.valid_until or not grant.leases or grant.fence != fence
        if over or lease._outcome is not None:
            notice_end(lease)
            try:
                raise loss_error(lease)
            finally:
                let_go(lease, hold=True)  # the body doesn't begin, so nothing else would end it
    if lease._body is not None:
        twice = "has been entered already: enter each lease once, or use reentrant_lock"
        raise RuntimeError(f"the lease on {lease.name!r} {twice}")
    body = Interruption()
    if body.task.get_loop() is not lease._engine.multiplexer.loop:
        check_loop(lease)  # a loss could not end a body there
    lease._body = body
    for grant, _ in lease._grants:
        grant.guard(body)
    return lease


def let_go(lease: Lease, *, hold: bool = False) -> list[Release]:
    """Release now, without waiting, and return the releases that were sent.

    No release is sent for a grant that is over, was handed over or has other leases. With `hold`
    the caller held the lease until now; otherwise a call that has failed, and maybe in another
    event loop, gives it back.
    """
    if lease._outcome is not None:
        return []
    engine, now, held = lease._engine, _clock.now(), True
    releases = []
    for grant, fence in lease._grants:
        if not grant.leases or grant.fence != fence:  # it is over, or was handed over
            held = False
            continue
        if hold and asyncio.get_running_loop() is not engine.multiplexer.loop:
            check_loop(lease)
        lease._outcome = True  # it ends once: an observer that is told of its end may release it
        if now >= grant.valid_until:
            held = False
        elif len(grant.leases) > 1:
            grant.left_by(lease)
            continue
        elif hold and engine.paces:
            engine.paces.held(grant.spec.pace_key, now - grant.held_since)
        release = engine.end_lease(grant, now, lease._was_lost)
        if release is not None:
            releases.append(release)
    lease._outcome = held
    return releases


def give_back(lease: Lease) -> None:
    """Release the lease that a call got before it failed; call this in its `except`."""
    lease._engine.clean_up(partial(let_go, lease))


def grants_of(lease: Lease) -> list[Grant]:
    """Return the grants that the lease has; none once it was released."""
    if lease._outcome is not None:
        return []
    return [grant for grant, fence in lease._grants if grant.leases and grant.fence == fence]


def live(lease: Lease) -> list[Grant]:
    """Return the grants of a lease that is held. Raises LeaseLostError if it has ended."""
    check_loop(lease)
    if not lease.held:
        raise loss_error(lease)
    return grants_of(lease)


def loss_error(lease: Lease, reason: str | None = None) -> LeaseLostError:
    """Return the error for code that uses a lease that is no longer held."""
    now, pairs = _clock.now(), lease._grants
    ours = grants_of(lease)
    over = [pair for pair in pairs if pair[0] not in ours or now >= pair[0].valid_until]
    lost = [(one, fence) for one, fence in over if one.lost_reason]
    grant, fence = (lost or over or pairs)[0]
    ended = "expired" if grant in ours else "it was released or detached"
    reason = reason or lease.lost_reason or ended
    name, owner = grant.spec.name, grant.owner
    text = f"the lease on {name!r} (fence {fence}) is no longer held: {reason}"
    return LeaseLostError(text, name=name, reason=reason, owner=owner, fence=fence)


def check_loop(lease: Lease) -> None:
    """Raise ConfigurationError in another event loop than the manager's."""
    lease._engine.multiplexer.check_loop()


def notice_end(lease: Lease) -> None:
    """Count the lease as lost if it has ended and nothing has noticed that yet."""
    for grant in grants_of(lease):
        if _clock.now() >= grant.valid_until:
            lease._engine.lose(grant, UNNOTICED)


def step_down(lease: Lease) -> None:
    """End the body as a loss does, but while the lease is held: leaving raises no error."""
    if lease._body is not None:
        lease._body.interrupt()


def send_message(lease: Lease, text: str | None) -> list[Check]:
    """Send a message, now and with each renewal; None takes it back. Return the votes on it."""
    grants, engine, checks = live(lease), lease._engine, []
    if not grants[0].spec.own_keys:
        raise ConfigurationError("readers share a name, so none of them can publish a message")
    for grant in grants:
        engine.messages.pop(grant, None)
        if text is not None:
            message = grant.fence, next(engine.renewals.numbers), grant.owner, text
            engine.messages[grant] = json.dumps(message).encode()
        checks.append(Check(engine, grant))
        engine.publish(grant, checks[-1])
    return checks


def endings(lease: Lease) -> list[asyncio.Future[None]]:
    """Return one future for each grant: the lease ends with the first that is done; [] if it has.

    The futures are shared: don't cancel them.
    """
    grants = grants_of(lease)
    if len(grants) < len(lease._grants):
        return []
    check_loop(lease)
    return [grant.ends() for grant in grants]


async def ended(lease: Lease) -> None:
    """Wait until the lease has ended, without keeping it."""
    futures = endings(lease)
    del lease
    if futures:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def wanted(lease: Lease) -> str | None:
    """Do what `Lease.wanted` says, without keeping the lease."""
    engine, futures, grants = lease._engine, endings(lease), grants_of(lease)
    del lease  # the program may drop it while this waits
    if not futures:
        return None
    looks = [grant.spec.read_beside(grant.owner) for grant in grants]
    lookout = Lookout(engine, tuple(key for look in looks for key in look.keys))
    for ending in futures:
        ending.add_done_callback(lookout.watch.wake)
    by: list[bytes] = []
    try:
        while not any(ending.done() for ending in futures):
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
        for ending in futures:
            ending.remove_done_callback(lookout.watch.wake)
        lookout.close()


class Check(Vote):
    """Asks the nodes that keep a grant; decided once a quorum keeps it or no quorum can."""

    AIM: ClassVar[str] = "check"

    def __init__(self, engine: Engine, grant: Grant) -> None:
        super().__init__(grant.spec.name, engine.multiplexer)
        self._multiplexer = engine.multiplexer
        self.grant: Grant = grant
        self._sent = _clock.now()
        self._missing = len(self._nodes)
        self._lacking = 0
        self.votes: int = 0
        """Number of nodes that keep the grant for us, as far as their votes count."""
        self.decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Its result is whether a quorum keeps the grant."""

    @property
    def gone(self) -> bool:
        """Whether the nodes that lack the key leave no quorum that can have it."""
        return len(self._nodes) - self._lacking < self._quorum

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        parsed = done(reply)
        if type(parsed) is Failure:
            self.failures[index] = parsed
        elif not parsed:
            self._lacking += 1
        elif self._multiplexer.counts(index, self._sent, self.grant.voters):
            self.votes += 1
        else:
            self.failures[index] = QUARANTINED
        self._missing -= 1
        decided = self.votes >= self._quorum or self.gone or not self._missing
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
