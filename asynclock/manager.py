"""The manager: owns nodes and background work, makes locks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Literal, Never

from . import _clock, _settings
from ._background import Background
from ._engine.context import EngineSettings
from ._engine.engine import Engine
from ._engine.inspection import Inspection, inspect
from ._engine.lease import Lease
from ._engine.options import HandOff
from ._inspect.access import NodeAccess
from ._inspect.survey import survey
from ._nodes.acks import Acks
from ._nodes.deployment import NodeAddress, make_nodes, naming, record_key
from ._nodes.multiplexer import Multiplexer
from ._nodes.node import NodeSettings
from ._nodes.record import KEEP, RECORD_KEY
from ._primitives import lock as _lock
from ._primitives.base import Defaults
from ._primitives.catalogue import SCRIPTS, Catalogue
from ._primitives.lock import Lock
from ._primitives.register import Register
from ._reports import NodeHealth, Statistics
from ._rules import retention
from ._settings import RestartGuard
from .errors import QuorumUnavailableError
from .events import Observer, Observers


def connect(
    *nodes: NodeAddress,
    ttl: float = 10.0,
    max_ttl: float | None = None,
    node_timeout: float = 0.25,
    turn: float = 0.005,
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
            10), for which the guards wait.
        node_timeout: seconds in which each node must answer.
        turn: seconds that a process may keep a name, or take it again, while others wait.
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
    """
    return LockManager(
        nodes,
        ttl=ttl,
        max_ttl=max_ttl,
        node_timeout=node_timeout,
        turn=turn,
        fence_retention=fence_retention,
        acks=Acks.of(acks, durable),
        prefix=prefix,
        label=label,
        restart_guard=restart_guard,
        clock_guard=clock_guard,
        set_guard=set_guard,
        strict=strict,
        observers=observers,
    )


class LockManager(Catalogue):
    """Makes locks on one set of nodes. `connect` makes it; `aclose` or `async with` closes it.

    Entering a closed manager opens it again, so `async with locks` also works in the next event
    loop. Lock objects from before the close stay closed: make new ones.
    """

    def __init__(
        self,
        nodes: Sequence[NodeAddress],
        *,
        ttl: float,
        max_ttl: float | None,
        node_timeout: float,
        turn: float,
        fence_retention: float | None,
        acks: Acks,
        prefix: str,
        label: str | None,
        restart_guard: RestartGuard,
        clock_guard: bool,
        set_guard: bool,
        strict: bool,
        observers: Sequence[Observer],
    ) -> None:
        super().__init__()
        defaults = Defaults.checked(ttl, max_ttl, node_timeout, prefix)
        keys_begin, batch = naming(nodes, prefix)
        self._defaults = replace(defaults, prefix=keys_begin)
        self._observers = Observers(observers)
        guard = _settings.restart_guard(restart_guard)
        settings = NodeSettings(
            node_timeout=self._defaults.node_timeout,
            max_ttl=self._defaults.max_ttl,
            restart_guard=bool(guard),
            guard_first=len(nodes) > 1,
            clock_guard=bool(clock_guard),
            disks_kept=guard == "disk",
            record_key=record_key(nodes, prefix) if set_guard else "",
        )
        longest = self._defaults.max_ttl
        engine_settings = EngineSettings(
            node_timeout,
            longest,
            retention.checked(fence_retention, longest),
            _settings.seconds(turn, "turn", zero=True),
            _settings.label(label),
        )

        def make_engine() -> Engine:
            made = make_nodes(nodes, settings, SCRIPTS, self._observers, acks=acks, prefix=prefix)
            background = Background()
            multiplexer = Multiplexer(made, background, strict=strict, batch=batch, label=label)
            return Engine(multiplexer, background, engine_settings, self._observers)

        self._make_engine = make_engine
        self._engine = make_engine()

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
        **unknown: Never,
    ) -> Lock:
        """Make a mutex on `name`. Raises ConfigurationError.

        Args:
            name: what is locked; all processes that use the same nodes, prefix and name exclude
                each other.
            ttl: seconds that a lease lives without renewal (default: the manager's).
            timeout: seconds to wait for the lock (None: no limit).
            renew: whether the lease is renewed while it is held.
            max_hold: maximum seconds of renewal (None: no limit).
            interrupt: whether a loss interrupts the body of `async with`.
            handoff: how a released lock passes to a waiting task of this process. True or "block":
                without asking the nodes, with a fence from a reserved block. "strict": with one
                round trip; fences keep their order even after an unnoticed loss. False: never.
            unknown: a setting that does not exist, which raises ConfigurationError.
        """
        if unknown:
            raise _settings.unknown(unknown)
        options = self._defaults.options(
            ttl=ttl, renew=renew, max_hold=max_hold, interrupt=interrupt, handoff=handoff
        )
        spec = _lock.spec(self._defaults.prefix, _settings.name(name))
        return Lock(self._engine, spec, options, timeout)

    def _another(self) -> LockManager:
        """Return a manager with the same nodes and settings, and connections of its own."""
        other = copy(self)
        other._nestings = {}
        other._engine = self._make_engine()
        return other

    async def inspect(self, name: str) -> Inspection:
        """Return which owner has the mutex `name`, node by node; takes at most one node timeout."""
        return await inspect(self._engine, _lock.spec(self._defaults.prefix, _settings.name(name)))

    async def inspect_all(self) -> AsyncIterator[Inspection]:
        """Find everything that is held on the nodes, by whatever process, sorted by name and part.

            async for lease in locks.inspect_all():
                print(repr(lease.name), repr(lease.holder), lease.since)

        The keys are read in small pages, so no server is blocked, and all are read before the first
        lease is yielded. A lease that too few nodes know has no `owner`. Raises
        QuorumUnavailableError if so few nodes answered that a lease may be missing.
        """
        access = node_access(self)
        found = await survey(access)
        if found.shortfall(len(access.nodes)):
            causes = "; ".join(f"{node}: {cause}" for node, cause in found.errors.items())
            raise QuorumUnavailableError(
                f"too few nodes answered to list leases: {causes}", nodes=found.errors
            )
        for lease in found.held:
            yield lease

    def nodes(self) -> tuple[NodeHealth, ...]:
        """Return the health of each node, without asking the nodes."""
        now = _clock.now()
        found = []
        for node in self._engine.multiplexer.nodes:
            facts = node.trust.facts
            found.append(
                NodeHealth(
                    node=node.address,
                    state=node.state(now),
                    cause=node.cause(now),
                    votes_in=max(0.0, node.votes_from - now),
                    round_trip=node.round_trip,
                    version=facts.version if facts else None,
                    role=facts.role if facts else None,
                )
            )
        return tuple(found)

    def leases(self) -> tuple[Lease, ...]:
        """Return the leases that are held through this manager, oldest first."""
        leases = (grant.lease for grant in self._engine.renewals.grants())
        return tuple(lease for lease in leases if isinstance(lease, Lease))

    def waiters(self) -> dict[str, int]:
        """Return the number of this manager's tasks that wait for each name that is held now."""
        found = Counter(waiter.name for waiter in self._engine.refused)
        for queue in self._engine.queues.values():
            found[queue.name] += len(queue.waiters)
        return {name: count for name, count in found.items() if count}

    def statistics(self) -> Statistics:
        """Return the manager's counts, without asking the nodes."""
        engine, counts = self._engine, self._engine.counts
        return Statistics(
            held=len(self.leases()),
            waiting=engine.searching + sum(len(queue.waiters) for queue in engine.queues.values()),
            acquired=counts.acquired,
            released=counts.released,
            lost=counts.lost,
            renewed=counts.renewed,
            attempts=counts.attempts,
            refused=counts.refused,
            split_votes=counts.split_votes,
            write_backs=counts.write_backs,
            handovers=counts.handovers,
            wakeups=dict(counts.wakeups),
        )

    def observe(self, observer: Observer) -> None:
        """Call `observer` with every event from now on."""
        self._observers.append(observer)

    def unobserve(self, observer: Observer) -> None:
        """Stop calling `observer`; does nothing if it isn't an observer."""
        if observer in self._observers:
            self._observers.remove(observer)

    async def ready(self, *, voting: bool = False, timeout: float | None = None) -> None:
        """Wait until each node is connected or has failed or, with `voting`, until a quorum votes.

        For start-up and health checks. Raises ConfigurationError if this set of nodes can never
        work and, with `voting`, QuorumUnavailableError if no quorum votes within the timeout: at
        once, with `retry_after`, if the nodes' guards are known to wait for longer.

        Args:
            voting: whether to wait until locks can be granted.
            timeout: maximum seconds to wait (default: one node timeout; with `voting` the longest
                quarantine plus three seconds).
        """
        limit = _settings.optional_seconds(timeout, "timeout", zero=True)
        await self._engine.wait_until_ready(voting=voting, timeout=limit)

    async def aclose(self) -> None:
        """Release all leases, then end every connection and task; a second call does nothing.

        Tasks that still hold a lease lose it; waiting tasks get ConfigurationError. This waits at
        most three node timeouts for the nodes to execute the releases. A cancellation takes effect
        after the work is done. In a forked child this does nothing. Raises ConfigurationError in
        another event loop than the one that used the manager.
        """
        await self._engine.aclose()

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def node_access(locks: LockManager) -> NodeAccess:
    """Return the nodes behind `locks`, which connect now if they have not yet.

    Raises ConfigurationError if the manager is closed or its nodes can never work.
    """
    engine = locks._engine
    engine.ready()
    return NodeAccess(engine.multiplexer.nodes, engine.multiplexer.quorum, locks._defaults.prefix)


def fleet_record(locks: LockManager) -> Register:
    """Return the record of the fleet's set of nodes, for `asynclock.fleet`."""
    return Register(locks._engine, "the set of nodes", locks._defaults.prefix + RECORD_KEY, KEEP)
