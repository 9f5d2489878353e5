"""The manager: owns nodes and background work, makes locks. `connect` checks and builds it."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, Unpack

from . import _clock, _settings
from ._engine.acquire import Acquire
from ._engine.context import EngineSettings
from ._engine.engine import Engine, NodeHealth, Statistics, health
from ._engine.inspection import Inspection, inspect
from ._engine.lease import Detached, Lease, grants_of
from ._engine.outbox import Ask
from ._engine.spec import HandOff, LeaseOptions, is_owner_id
from ._inspect.survey import held
from ._inspect.takeback import TakeBack
from ._nodes.deployment import NodeAddress, make_nodes, naming
from ._nodes.endpoint import Endpoint, register
from ._nodes.multiplexer import Multiplexer
from ._nodes.node import NodeSettings
from ._nodes.replicated.acks import Acks
from ._primitives.base import Defaults, HoldSettings, LockSettings, MutexSettings, WaitSettings
from ._primitives.kinds import SCRIPTS
from ._primitives.lock import FairLock, Lock, fair_spec, spec
from ._primitives.multi import MultiLock
from ._primitives.readwrite import ReadWriteLock
from ._primitives.reentrant import ReentrantLock
from ._primitives.semaphore import Semaphore
from ._primitives.shared.election import Election
from ._primitives.shared.once import Once
from ._primitives.shared.register import DEFAULT_KEEP
from ._primitives.shared.states import Barrier, Latch, SharedEvent
from ._primitives.synchronized import P, R, synchronized
from ._process import Background
from ._rules import validity
from ._settings import RestartGuard
from .errors import (
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)
from .events import Observer, Observers, Watcher


@_settings.made_by("connect(...)")
class LockManager(_settings.Answering):
    """Makes locks on one set of nodes. `connect` makes it; `aclose` or `async with` closes it.

    Entering a closed manager opens it again, so `async with locks` also works in the next event
    loop. Lock objects from before the close stay closed: make new ones.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], defaults: Defaults, observers: Observers
    ) -> None:
        self._make_engine = make_engine
        """Makes the engine, now and when the manager is entered again after it was closed."""
        self._engine = make_engine()
        self._defaults = defaults
        self._observers = observers
        for observer in observers:
            _settings.callback(observer, "an observer")
            if isinstance(observer, Watcher):
                observer.watch(self)

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        max_hold: float | None = None,
        interrupt: bool = True,
        handoff: HandOff = True,
        at_least: float | None = None,
        **unknown: Never,
    ) -> Lock:
        """Make a mutex on `name`. Raises ConfigurationError.

        Args:
            name: what is locked; all processes that use the same nodes, prefix and name exclude
                each other.
            ttl: seconds that a lease lives without renewal (default: the manager's).
            timeout: seconds to wait for the lock (None: no limit).
            renew: whether the lease is renewed while it is held.
            max_hold: maximum seconds of renewal (None: no limit); a lease keeps its first ttl.
            interrupt: whether a loss interrupts the body of `async with`.
            handoff: how a released lock passes to a waiting task of this process. True or "block":
                without asking the nodes, with a fence from a reserved block, until this process
                has had the lock for 0.1 s (or, while others wait, for its turn). "strict": with one
                round trip; fences keep their order even after an unnoticed loss. False: never.
            at_least: seconds from the acquire for which nobody else gets the name: released
                sooner, it rests. If the holder dies or loses the lease, only its ttl counts. A
                node that restarts without its data forgets a rest, and votes after max_ttl.
            unknown: a setting that does not exist, which raises TypeError.
        """
        if unknown:
            raise _settings.unknown(unknown)
        defaults = self._defaults
        options = defaults.usual
        if not (ttl is max_hold is at_least is None and renew is interrupt is handoff is True):
            options = defaults.options(
                ttl=ttl,
                renew=renew,
                max_hold=max_hold,
                interrupt=interrupt,
                handoff=handoff,
                at_least=at_least,
            )
        what = spec(defaults.settings.prefix, _settings.name(name))
        return Lock(self._engine, what, options, timeout)

    def reentrant_lock(
        self, name: str, *, inherit: bool = False, **settings: Unpack[MutexSettings]
    ) -> ReentrantLock:
        """Make a mutex on `name` that its holder may acquire again. Raises ConfigurationError.

        Args:
            name: what is locked, as in `lock`.
            inherit: whether tasks started while it is held may acquire it too.
            settings: those of `lock`; `at_least` counts from the outermost acquire.
        """
        options, timeout = self._defaults.read(settings, MutexSettings)
        what = spec(self._engine.settings.prefix, _settings.name(name))
        return ReentrantLock(self._engine, what, options, timeout, inherit=inherit)

    def multi_lock(self, *names: str, **settings: Unpack[LockSettings]) -> MultiLock:
        """Make a lock on all of `names` at once; each is the mutex of `lock(name)`.

        Raises ConfigurationError.

        Args:
            names: what is locked; at most 64 names.
            settings: those of `lock` without `at_least`.
        """
        return MultiLock(self._engine, names, *self._defaults.read(settings))

    def synchronized(
        self, template: str, *, lease: str | None = None, **settings: Unpack[MutexSettings]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function: each call holds the mutex that `template` names.

            @locks.synchronized("orders:{order_id}", timeout=2)
            async def ship(order_id: int) -> None: ...

        A call raises the errors of `acquire`; decorating raises ConfigurationError.

        Args:
            template: the name, with `{order_id}`, `{order.id}` and the like for the call's
                arguments, defaults included.
            lease: the name of a keyword-only parameter that gets the lease.
            settings: those of `lock`.
        """
        self._defaults.read(settings, MutexSettings)  # an error now, not at the first call
        return synchronized(partial(self.lock, **settings), template, lease)

    def once(
        self,
        key: str,
        *,
        keep: float = DEFAULT_KEEP,
        lease: str | None = None,
        **settings: Unpack[LockSettings],
    ) -> Once:
        """Make a `Once`: work that is done once per `key`. Raises ConfigurationError.

            @locks.once("invoice:{invoice_id}", keep=86400)
            async def charge(invoice_id: int) -> dict[str, str]: ...

        Args:
            key: names the work and its mutex; for the decorator a template, as in `synchronized`.
            keep: seconds that the result is kept after the run; the same in every process.
            lease: for the decorator: the name of a keyword-only parameter that gets the lease.
            settings: those of `lock` without `at_least`.
        """
        what = spec(self._engine.settings.prefix, _settings.name(key))
        lock = Lock(self._engine, what, *self._defaults.read(settings))
        return Once(lock, keep, lease, partial(self.once, keep=keep, **settings))

    def rwlock(self, name: str, **settings: Unpack[LockSettings]) -> ReadWriteLock:
        """Make a read-write lock on `name`: `.read()` is shared, `.write()` is exclusive.

        Raises ConfigurationError.

        Args:
            name: what is locked.
            settings: those of `lock` without `at_least`; they apply to both sides.
        """
        return ReadWriteLock(self._engine, name, *self._defaults.read(settings))

    def fair_lock(
        self, name: str, *, at_least: float | None = None, **settings: Unpack[WaitSettings]
    ) -> FairLock:
        """Make a mutex on `name` that goes to the longest waiter. Raises ConfigurationError.

        Args:
            name: what is locked, apart from the mutex of `lock`.
            at_least: as in `lock`.
            settings: those of `lock`, without `handoff`.
        """
        what = fair_spec(self._engine.settings.prefix, _settings.name(name))
        return FairLock(self._engine, what, *self._defaults.read(settings, at_least=at_least))

    def election(self, name: str, **settings: Unpack[WaitSettings]) -> Election:
        """Make an election of the leader of `name`. Raises ConfigurationError.

        Args:
            name: what the leader leads.
            settings: those of `fair_lock` without `at_least`; `ttl` limits the leaderless time.
        """
        return Election(self._engine, name, *self._defaults.read(settings))

    def event(self, name: str, *, keep: float = DEFAULT_KEEP) -> SharedEvent:
        """Make an event on `name`: a flag that every process sees. Raises ConfigurationError.

        Args:
            name: the name of the event.
            keep: seconds after the last change at which the nodes forget the event.
        """
        return SharedEvent(self._engine, name, keep)

    def latch(self, name: str, count: int, *, keep: float = DEFAULT_KEEP) -> Latch:
        """Make a latch on `name` that opens after `count` counts. Raises ConfigurationError.

        Args:
            name: the name of the latch.
            count: number of counts that open it, 1 to 1000; the same in every process.
            keep: seconds after the last count at which the nodes forget the latch.
        """
        return Latch(self._engine, name, count, keep)

    def barrier(
        self, name: str, parties: int, *, ttl: float | None = None, keep: float = DEFAULT_KEEP
    ) -> Barrier:
        """Make a barrier on `name` for `parties` at a time. Raises ConfigurationError.

        Args:
            name: the name of the barrier.
            parties: number of parties that pass together, 1 to 256; the same in every process.
            ttl: seconds until a waiting party that crashed stops counting (default: the manager's).
            keep: seconds after the last arrival at which the nodes forget the barrier.
        """
        checked = self._defaults.options(ttl=ttl).ttl
        return Barrier(self._engine, name, parties, checked, keep)

    def semaphore(self, name: str, permits: int, **settings: Unpack[LockSettings]) -> Semaphore:
        """Make a semaphore on `name` with `permits` permits. Raises ConfigurationError.

        Args:
            name: the name of the semaphore.
            permits: maximum number of leases, 1 to 256; the same in every process.
            settings: those of `lock` without `at_least`.
        """
        return Semaphore(self._engine, name, permits, *self._defaults.read(settings))

    async def inspect(self, name: str) -> Inspection:
        """Return which owner has the mutex `name`, node by node; takes at most one node timeout."""
        return await inspect(self._engine, spec(self._engine.settings.prefix, _settings.name(name)))

    async def inspect_all(self) -> AsyncIterator[Inspection]:
        """Find everything that is held on the nodes, by whatever process, sorted by name and part.

            async for lease in locks.inspect_all():
                print(repr(lease.name), repr(lease.holder), lease.since)

        Reads all keys in small pages, which block no server, before it yields the first lease. A
        lease that too few nodes know has no `owner`. Raises QuorumUnavailableError if a lease may
        be missing because nodes did not answer, and ConfigurationError if nodes refuse SCAN.
        """
        for lease in await held(engine_of(self)):
            yield lease

    async def resume(self, ticket: bytes, **settings: Unpack[HoldSettings]) -> Lease:
        """Take over a lease that `Lease.detach` handed out of a process; return it as a new lease.

        At most one of several calls with one ticket gets the lease, with a fence above all before
        it, also if others wait; calls that race over several nodes may all fail. Takes at most one
        node timeout, besides the time to connect. A call that fails or is cancelled gives up what
        it took: the name may be free before the ttl is over. Raises LeaseLostError if the lease has
        ended or another call took it, QuorumUnavailableError if too few nodes answered (try again
        while the ttl lasts), ConfigurationError unless the ticket is of this version and prefix.

        Args:
            ticket: what `detach` returned.
            settings: `ttl`, `renew`, `max_hold` and `interrupt`, as in `lock`. Only the ttl, and
                what was left of `at_least`, are those of the detached lease by default.
        """
        kept, prefix = Detached.read(ticket), self._engine.settings.prefix
        ours = {"ttl": kept.ttl, "at_least": kept.at_least or None}
        options, _ = self._defaults.read(settings, HoldSettings, **ours)
        name, old = _settings.name(kept.name), _settings.name(kept.owner)
        known = {one.keys[0]: one for one in (spec(prefix, name), fair_spec(prefix, name))}
        what = known.get(kept.key)
        if what is None or not is_owner_id(old):
            raise ConfigurationError(f"a damaged ticket, or not of prefix {prefix!r}", name=name)
        # A new owner replaces the old one, node by node, where that still has the name. An attempt
        # that fails deletes what it took: at most one owner ever replaces the old one at a quorum
        # (tests/model: DR1, DX1 to DX4). No local queue: waiting tasks must not keep this out.
        beside = replace(what, queue_key=None, exempt=(old,))
        try:
            lease = await Acquire(self._engine, beside, options, None, once=True)
        except NotAcquiredError:
            reason = "it has ended, or another resume took it"
            text = f"the lease on {name!r} is no longer held: {reason}"
            was = {"name": name, "reason": reason, "owner": old}
            raise LeaseLostError(text, **was, fence=kept.fence) from None
        for grant in grants_of(lease):
            grant.resumed(what)
        return lease

    async def release_held(
        self, name: str, *, owner: str | None = None, force: bool = False
    ) -> bool:
        """Release `name` for its holder, in whatever process; return whether a node did.

        The holder loses the lease, and notices that at once if servers push and it has renewed the
        lease, otherwise at its next renewal. Stores that check fences refuse it once there is a new
        holder. Waiters are woken. If the mutex is free, this takes back what other primitives hold
        under the name. Takes at most two node timeouts for each owner, and one more. If it is
        cancelled or raises QuorumUnavailableError (too few answered), some nodes may have released.

        Args:
            name: what is held.
            owner: the id, or its 32 digits, that an inspection has shown: nobody else loses it.
            force: whether to release it from any owner; instead of `owner`.
        """
        if (owner is None) == (not force) or not isinstance(owner, str | None):
            raise ConfigurationError("pass either the owner (`inspect` shows it) or force=True")
        take = await TakeBack.of(engine_of(self), name)
        return await take.release(owner)

    async def ask_back(self, name: str) -> bool:
        """Ask the holder of `name` to give it back; return whether somebody was asked.

        The lease stays: its holder hears of the request by `Lease.on_wanted`, or as a leader by
        `campaign(on_wanted="resign")`, and decides; others ignore it. All owners are asked, for
        `max_ttl` seconds; no lease that hears of it is handed over in its process. Returns False if
        the name is free or another library has it. Takes at most three node timeouts. If this
        raises QuorumUnavailableError (too few answered) or is cancelled, some may have been asked.

        Args:
            name: what is held, by whatever primitive.
        """
        take = await TakeBack.of(engine_of(self), name)
        return await take.ask()

    def nodes(self) -> tuple[NodeHealth, ...]:
        """Return the health of each node, without asking the nodes."""
        return health(self._engine)

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are held through this manager, oldest first.

        A `MultiLease` is there from its first part on.
        """
        leases = dict.fromkeys(grant.lease for grant in self._engine.renewals.grants())
        return tuple(lease for lease in leases if isinstance(lease, Lease))

    def waiters(self) -> dict[str, int]:
        """Return the number of this manager's tasks that wait for each name that is held now."""
        return {name: len(each) for name, each in self.waits().items()}

    def waits(self) -> dict[str, list[float]]:
        """Return the seconds that each of these tasks has waited so far, by name, longest first."""
        # Another thread may ask: it copies each collection in one step.
        now, found = _clock.now(), defaultdict[str, list[float]](list)
        for wait in list(self._engine.seeking.values()):
            if wait is not None:
                found[wait[0]].append(now - wait[1])
        for queue in list(self._engine.queues.values()):
            for _, since in list(queue.waiters.values()):
                found[queue.name].append(now - since)
        return {name: sorted(each, reverse=True) for name, each in found.items()}

    def statistics(self) -> Statistics:
        """Return the manager's counts, without asking the nodes."""
        engine = self._engine
        held = sum(grant.lease is not None for grant in engine.renewals.grants())
        waiters = sum(len(queue.waiters) for queue in list(engine.queues.values()))
        firsts = sum(isinstance(one, Ask) and one.first for one in list(engine.undos))
        waiting = len(engine.seeking) + firsts + waiters
        return Statistics(held=held, waiting=waiting, **asdict(engine.totals))

    def observe(self, observer: Observer) -> None:
        """Call `observer` with every event from now on."""
        _settings.callback(observer, "an observer")
        self._observers.append(observer)
        if isinstance(observer, Watcher):
            observer.watch(self)

    def unobserve(self, observer: Observer) -> None:
        """Undo one `observe` of `observer`; does nothing if it isn't an observer."""
        if observer in self._observers:
            self._observers.remove(observer)
            if isinstance(observer, Watcher) and observer not in self._observers:
                observer.unwatch(self)

    async def ready(self, *, voting: bool = False, timeout: float | None = None) -> None:
        """Wait until each node is connected or has failed or, with `voting`, until a quorum votes.

        Without `voting` this also returns if no node can be reached.
        Raises ConfigurationError if this set of nodes can never work and, with `voting`,
        QuorumUnavailableError if no quorum votes within the timeout: at once, with `retry_after`,
        if the nodes' guards are known to wait for longer.

        Args:
            voting: whether to wait until locks can be granted.
            timeout: maximum seconds to wait (default: one node timeout; with `voting` the longest
                quarantine plus three seconds).
        """
        limit = _settings.optional_seconds(timeout, "timeout", zero=True)
        engine, nodes, settings = self._engine, self._engine.multiplexer, self._engine.settings
        engine.ready()
        if limit is None:
            longest = validity.longest_outage(settings.max_ttl)
            limit = longest if voting else settings.node_timeout
        until = _clock.now() + limit
        if not voting:
            await nodes.connected(until)
        enough = not voting or await nodes.voting(until)
        engine.ready()
        if not enough:
            causes = nodes.causes()
            listed = "; ".join(f"{node}: {cause}" for node, cause in causes.items())
            raise QuorumUnavailableError(
                f"too few nodes vote: {listed}",
                nodes=causes,
                retry_after=max(1.0, nodes.barred),
            )

    async def aclose(self) -> None:
        """Release all leases, then end every connection and task; a second call does nothing.

        Tasks that still hold a lease lose it; waiting tasks get ConfigurationError. The calling
        task is not interrupted: it learns of a loss when it uses or leaves its lease. This waits at
        most three node timeouts for the nodes to execute the releases. A cancellation takes effect
        after the work is done. In a forked child this does nothing. Raises ConfigurationError in
        another event loop than the one that used the manager.
        """
        await self._engine.aclose()

    def __repr__(self) -> str:
        return f"<LockManager on {', '.join(node.node for node in self.nodes())}>"

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # not set if the arguments were wrong
        if engine is not None and engine.multiplexer.loop is not None and not engine.closed:
            addresses = ", ".join(node.address for node in engine.multiplexer.nodes)
            text = f"the LockManager on {addresses} was dropped without being closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    async def __aenter__(self) -> LockManager:
        if self._engine.closed:
            self._engine = self._make_engine()
        try:
            await self.ready()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _settings.enter_async


def connect(
    *nodes: NodeAddress,
    ttl: float = 10.0,
    max_ttl: float | None = None,
    node_timeout: float = 0.25,
    turn: float = 0.01,
    ticket_ttl: float | None = None,
    fence_retention: float | None = None,
    acks: int | Literal["majority", "all"] = 0,
    durable: bool = False,
    prefix: str = "asynclock:",
    label: str | None = None,
    restart_guard: RestartGuard = True,
    clock_guard: bool = True,
    set_guard: bool = True,
    strict: bool = False,
    observers: Sequence[Observer] = (),
    **unknown: Never,
) -> LockManager:
    """Make a manager for locks on `nodes`: URLs, or `redis.asyncio.Redis` clients (for settings).

    Pass one node, or at least three independent ones (Redlock). A node is a server, a group behind
    Sentinels (`redis+sentinel://s1,s2,s3/service`) or a Cluster (`redis+cluster://h1,h2`). This
    does no I/O: connections open on first use and reconnect by themselves; `async with` waits for
    the first ones. Raises ConfigurationError.

    Args:
        nodes: URLs, or clients that are read for their settings and otherwise left alone.
        ttl: seconds that a lease lives without renewal.
        max_ttl: seconds of the longest ttl in the whole fleet (default: the larger of `ttl` and
            10), for which the guards wait; needed with a ttl above an hour.
        node_timeout: seconds in which each node must answer.
        turn: seconds that a process may keep a name, or take it again, while others wait.
        ticket_ttl: seconds that nodes keep the place of a waiter that doesn't ask again: a waiter
            that crashed delays those behind it for so long (default: the larger of 2 and two
            `node_timeout`, which is also the least).
        fence_retention: seconds that nodes keep the fence counter of an unused name; the same in
            the whole fleet (default: 1060 s and `max_ttl`; docs/tuning.md has the sum).
        acks: number of replicas that must have a grant before it counts.
        durable: whether a grant counts only once it is on disk (Redis 7.2).
        prefix: what all keys begin with.
        label: name of this process for people (default: host:pid).
        restart_guard: whether nodes that may have forgotten leases wait before they vote. "disk"
            promises that no disk of a node is lost or left out: then a node that syncs each write
            to its disk (`appendfsync always`) votes at once.
        clock_guard: whether nodes whose clock jumped wait before they vote.
        set_guard: whether these nodes are compared with the set that the nodes keep a record of
            (`asynclock nodes`); other nodes are a ConfigurationError.
        strict: whether a server that may evict keys is an error.
        observers: functions that are called with each event.
        unknown: a setting that does not exist, which raises TypeError.
    """
    if unknown:
        raise _settings.unknown(unknown)
    if callable(observers):
        raise ConfigurationError(f"observers must be a list: write observers=[{observers!r}]")
    flags = {"clock_guard": clock_guard, "durable": durable, "set_guard": set_guard}
    for what, value in {**flags, "strict": strict}.items():
        _settings.flag(value, what)
    keys_begin, most, record_key, witness_key = naming(nodes, _settings.prefix(prefix))
    timeout = _settings.seconds(node_timeout, "node_timeout")
    longest = _settings.max_ttl(max_ttl, ttl, timeout)
    usual = LeaseOptions(float(ttl))
    replicas, listeners = Acks.of(acks, durable), Observers(observers, keys_begin)
    guard = _settings.restart_guard(restart_guard)
    settings = NodeSettings(
        node_timeout=timeout,
        max_ttl=longest,
        restart_guard=bool(guard),
        guard_first=len(nodes) > 1,
        clock_guard=clock_guard,
        disks_kept=guard == "disk",
        record_key=record_key if set_guard else "",
        witness_key=witness_key,
    )
    engine_settings = EngineSettings(
        timeout,
        longest,
        validity.checked_retention(fence_retention, longest),
        _settings.seconds(turn, "turn", zero=True),
        _settings.ticket_ttl(ticket_ttl, timeout),
        _settings.label(label),
        keys_begin,
    )

    def make_engine() -> Engine:
        made = make_nodes(nodes, settings, SCRIPTS, listeners, acks=replicas, prefix=prefix)
        background = Background()
        multiplexer = Multiplexer(made, background, strict=strict, most_leases=most, label=label)
        return Engine(multiplexer, background, engine_settings, listeners)

    defaults = Defaults(engine_settings, usual, replace(usual, interrupt=False))
    return LockManager(make_engine, defaults, listeners)


def _in_memory(url: str) -> Endpoint:
    """Make the endpoint of a node in memory. Services without one never import those nodes."""
    from .testing import memory

    return memory.endpoint(url)


register("memory://", _in_memory)


def engine_of(locks: LockManager) -> Engine:
    """Return the engine behind `locks`, for the library's own tools; its nodes connect now.

    Raises ConfigurationError if the manager is closed or its nodes can never work.
    """
    locks._engine.ready()
    return locks._engine
