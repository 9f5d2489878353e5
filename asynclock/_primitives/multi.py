"""Several leases at once: how to get all or none of them, to hold them as one, and `multi_lock`."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from functools import lru_cache, partial
from itertools import cycle
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self

from .. import _settings
from .._engine.acquire import Acquire, AcquireContext
from .._engine.engine import Engine
from .._engine.grant import Grant, Interruption
from .._engine.inspection import Inspection, inspect_parts
from .._engine.lease import (
    NOT_DETACHED,
    Lease,
    check_loop,
    give_back,
    grant_of,
    let_go,
    loss_error,
    notice_end,
    one_ends,
    release_all,
    wanted,
)
from .._engine.spec import LeaseOptions, LockSpec
from .._keys import HASH_TAG, lock_key
from .._nodes.wire import Script
from .._process import of_one_process
from ..errors import (
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)
from .base import BATCH, OTHER, PRELUDE, Acquirable, Kind, use
from .lock import MUTEX, spec

HELD = attrgetter("held")


Calls = Sequence[Callable[[], Acquire]]


class Try(Acquire):
    """A call that doesn't wait and reports no failure: its caller tries another way then."""

    __slots__ = ()

    def _report(self, error: AsyncLockError) -> None: ...


class _AllOrNone(list[Lease]):
    """The leases that a block gets; if it fails, they are released, the last one first."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for lease in reversed(self):
                give_back(lease)


async def obtain(calls: Calls) -> list[Lease]:
    """Make one call after the other; a failure or a cancellation gives back what they got.

    The releases are not awaited, because the caller's timeout may have ended.
    """
    with _AllOrNone() as leases:
        for call in calls:
            leases.append(await call())
        return leases


@types.coroutine
def obtain_at_once(calls: Sequence[Try]) -> Generator[Any, Any, list[Lease] | None]:
    """Make calls that don't wait, in this task; return None if one of them gets no lease.

    All send their requests, which travel together, before any waits. If one fails, those behind it
    are closed, and what those before it got is given back.
    """
    begun = [call.__await__() for call in calls]
    try:
        with _AllOrNone() as leases:
            try:
                # Each call waits for its request first (`decide`). No timeout of the call is around
                # that wait, so a cancellation need not be raised in the call: the call is closed.
                requests = [next(steps) for steps in begun]
                for steps, request in zip(begun, requests, strict=True):
                    if request is None or not request.done():  # else the reply came with another's
                        yield request
                    leases.append((yield from steps))
            except BaseException:
                for steps in begun:
                    steps.close()
                raise
            return leases
    except (NotAcquiredError, QuorumUnavailableError):
        return None


async def obtain_behind(gate: Callable[[], AcquireContext[Lease]], calls: Calls) -> list[Lease]:
    """Make the calls as `obtain` does, while the lease of `gate` keeps other callers out.

    If that lease is lost, all begins again.
    """
    while True:
        try:
            with _AllOrNone() as leases:
                async with gate() as turn:
                    try:
                        leases.extend(await obtain(calls))
                    except NotAcquiredError:
                        let_go(turn)  # leaving the block would wait for the replies
                        raise
                return leases
        except LeaseLostError:
            continue  # a call whose timeout has ended raises AcquireTimeoutError then


SCRIPT = Script.load(__package__, *PRELUDE, BATCH, "queue.lua", "multi.lua", "holding.lua")
KIND = Kind(
    "multi_lock", (SCRIPT,), lambda on, name, *how: use(MultiLock(on, (name, name + OTHER), *how))
)
"""The keys are those of mutexes."""

MOST_LOCKED_NAMES = 64
"""Maximum number of names: a server does nothing else while it locks them."""


@of_one_process
class MultiLease(_settings.Answering):
    """The hold on several names, or on several permits of a semaphore: like a `Lease`.

    Instead of `part` there are `fences`, which name each part. One lease covers all names; on
    Cluster each name has its own, and so has each permit. The loss of any lease ends the hold.
    """

    __slots__ = ("_body", "_leases", "_outcome", "_parts", "name")

    def __init__(self, name: str, parts: Sequence[str], leases: Sequence[Lease]) -> None:
        self.name: str = name
        """The name of the semaphore, or all names joined by commas."""
        self._parts = parts
        self._leases = tuple(leases)
        self._body: Interruption | None = None
        self._outcome: bool | None = None
        """What `release` returns; None until this hold has ended."""

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _settings.enter_async

    def __repr__(self) -> str:
        state = "held" if self.held else (self.lost_reason or "released")
        return f"<MultiLease {self.name!r} fence={self.fence} {state}>"

    @property
    def fences(self) -> dict[str, int]:
        """The fence for each name, or for each slot of a semaphore."""
        fences = (lease.fence for lease in self._leases)
        return dict(zip(self._parts, cycle(fences), strict=False))

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The lease on all names; on Cluster one lease per name, of a semaphore one per permit."""
        return self._leases

    @property
    def owner(self) -> str:
        """The random id stored in Redis; for several names on Cluster, that of the first."""
        return self._leases[0].owner

    @property
    def fence(self) -> int:
        """The fencing token to pass to the store; of several fences the highest."""
        return max(lease.fence for lease in self._leases)

    @property
    def ttl(self) -> float:
        """Seconds the hold lives without renewal."""
        return min(lease.ttl for lease in self._leases)

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that a loss interrupts; None while the hold is not entered."""
        return None if self._body is None else self._body.task

    @property
    def held(self) -> bool:
        """Whether this is held at this moment by our own clock, without asking the nodes."""
        return self._outcome is None and all(map(HELD, self._leases))

    @property
    def lost_reason(self) -> str | None:
        """Why a lease was lost (the first of several); None if none was lost."""
        reasons = (lease.lost_reason for lease in self._leases)
        return next((reason for reason in reasons if reason is not None), None)

    def remaining(self) -> float:
        """Return the seconds until the hold ends without renewal; 0 once it has ended."""
        left = (lease.remaining() for lease in self._leases)
        return min(left) if self._outcome is None else 0.0

    async def wait_lost(self) -> None:
        """Wait until a lease has ended; if that was a release, `lost_reason` is None."""
        await one_ends(self._leases)

    async def extend(self, ttl: float | None = None, **unknown: Never) -> None:
        """Renew every lease now, one after the other; see `Lease.extend`."""
        self._check()
        for lease in self._leases:
            await lease.extend(ttl, **unknown)

    async def check(self) -> bool:
        """Return whether the nodes still keep every lease for us; see `Lease.check`."""
        for lease in () if self._outcome is not None else self._leases:
            if not await lease.check():
                return False
        return self.held

    async def detach(self) -> bytes:
        """Raise ConfigurationError: only leases of `lock` and `fair_lock` can be detached."""
        name = self._leases[0].name
        raise ConfigurationError(NOT_DETACHED.format(name), name=name)

    async def publish(self, text: str) -> bool:
        """Publish a message under every lease, one after the other; see `Lease.publish`."""
        self._check()
        return all([await lease.publish(text) for lease in self._leases])

    def wanted(self) -> Coroutine[Any, Any, str | None]:
        """Wait until somebody asks for a name of this hold; see `Lease.wanted`."""
        return wanted(() if self._outcome is not None else self._leases)

    async def release(self) -> bool:
        """End this hold. Return whether it was held until now; a second call returns the same."""
        if self._outcome is None:
            if any(grant.alarm for grant in self._grants()):  # not released, nor known to be lost
                check_loop(self._leases[0])
            self._outcome = self.held
            if not self._outcome:
                self._notice()
            self._outcome = await release_all(self._leases)
        return bool(self._outcome)

    def adopt(self) -> None:
        """Make the calling task the one that a loss interrupts; see `Lease.adopt`."""
        self._check()
        if self._body is None:
            raise RuntimeError("this lease is not entered")
        check_loop(self._leases[0])
        self._body.move()

    def _check(self) -> None:
        if not self.held:
            self._notice()
            ended = next((lease for lease in self._leases if not lease.held), self._leases[0])
            raise loss_error(ended)

    async def __aenter__(self) -> Self:
        try:
            self._check()
        except LeaseLostError:
            await self.release()  # the body doesn't begin, so nothing else would release it
            raise
        if self._body is not None:
            raise RuntimeError("this lease has been entered already")
        body = Interruption()
        if body.task.get_loop() is not self._leases[0]._engine.multiplexer.loop:
            check_loop(self._leases[0])  # a loss could not end a body there
        self._body = body
        for grant in self._grants():
            grant.guard(body)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        body, self._body = self._body, None
        interrupted = body is not None and body.leave(kind)
        if kind is not GeneratorExit:
            await self.release()
        elif self._outcome is None:
            self._outcome = self.held
            for lease in reversed(self._leases):
                lease._engine.soon(partial(let_go, lease))  # a coroutine being closed can't await
        lost = [lease for lease in self._leases if lease.lost_reason is not None]
        if lost and (interrupted or kind is None):
            raise loss_error(lost[-1]) from error

    def _grants(self) -> Iterator[Grant]:
        return filter(None, map(grant_of, self._leases))

    def _notice(self) -> None:
        # A body that blocked the loop may have kept it from noticing that a lease has ended.
        for lease in self._leases:
            notice_end(lease)


@lru_cache(maxsize=1024)
def spec_of_all(prefix: str, names: tuple[str, ...]) -> LockSpec:
    """Return the spec of a lock on all these names at once."""
    keys = [lock_key(prefix, name) for name in names]
    return LockSpec(
        ", ".join(names),
        SCRIPT,
        tuple(one for key in keys for one in MUTEX.keys(key)),
        queue_key=tuple(keys),
        watched=tuple(keys),
    )


@_settings.made_by("connect(...).multi_lock(*names)")
class MultiLock(Acquirable[MultiLease]):
    """Locks all of several names or none; each name is the mutex of `lock(name)`.

    On single, replicated and quorum deployments one script takes all names on a node at once. No
    task waits while it holds some of the names, so there is no deadlock in whatever order others
    take them. There is one lease, and one fence that is above all earlier fences of each name. A
    lock on many busy names competes with the locks on single names and may wait for long: it has no
    place in their queues, and may overtake those who wait there. A timeout is for all names
    together.

    On Cluster the names live on different servers. They are locked one after the other in sorted
    order, which can't deadlock either, and each name has its own lease and fence.
    """

    __slots__ = ("names",)

    def __init__(
        self, engine: Engine, names: Sequence[str], options: LeaseOptions, timeout: float | None
    ) -> None:
        if len(names) == 1 and isinstance(names[0], list | tuple | set | frozenset):
            raise ConfigurationError(
                "each name is an argument of its own: write multi_lock(*names)"
            )
        if not 1 <= len(names) <= MOST_LOCKED_NAMES:
            raise ConfigurationError(
                f"multi_lock takes from 1 to {MOST_LOCKED_NAMES} names, not {len(names)}"
            )
        self.names: tuple[str, ...] = tuple(sorted({_settings.name(name) for name in names}))
        """The names, sorted and without duplicates."""
        whole = spec_of_all(engine.settings.prefix, self.names)
        super().__init__(engine, whole, options, timeout)

    async def _obtain(self, timeout: float | None, once: bool, since: float) -> MultiLease:
        apart = self._engine.settings.prefix.endswith(HASH_TAG)
        calls = [
            partial(Acquire, self._engine, one, self._options, timeout, once, since)
            for one in (self._parts() if apart else (self._spec,))
        ]
        leases = await obtain(calls)
        return MultiLease(self.name, self.names, leases)

    def _parts(self) -> list[LockSpec]:
        return [spec(self._engine.settings.prefix, name) for name in self.names]

    async def inspect(self) -> Inspection:
        """Return which owner has each name, node by node (`parts`)."""
        return await inspect_parts(self._engine, KIND.name, self._parts())
