"""The manager: owns nodes and background work, makes locks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal

from . import _clock, _settings
from ._background import Background
from ._engine.engine import Engine, EngineSettings
from ._engine.inspection import Inspection, inspect
from ._engine.lease import HandOff, Lease
from ._nodes.acks import Acks
from ._nodes.deployment import make_nodes, naming
from ._nodes.multiplexer import Multiplexer
from ._nodes.node import NodeSettings
from ._primitives import lock as _lock
from ._primitives.base import Defaults
from ._primitives.catalogue import SCRIPTS, Catalogue
from ._primitives.lock import Lock
from ._reports import NodeHealth, Statistics
from .errors import ConfigurationError
from .events import Observer, Observers


def connect(
    *nodes: object,
    ttl: float = 10.0,
    max_ttl: float | None = None,
    node_timeout: float = 0.25,
    acks: int | Literal["majority", "all"] = 0,
    durable: bool = False,
    prefix: str = "asynclock:",
    label: str | None = None,
    restart_guard: bool = True,
    clock_guard: bool = True,
    strict: bool = False,
    observers: Sequence[Observer] = (),
) -> LockManager:
    """A manager for locks on `nodes`: URLs, or `redis.asyncio.Redis` clients to read settings from.

    One node, or three and more independent ones (Redlock); a node is a server, a group behind
    Sentinels (`redis+sentinel://s1,s2,s3/service`) or a Cluster (`redis+cluster://h1,h2`). Does no
    I/O: connections open on first use and heal by themselves; `async with` awaits the first ones.

    `ttl`: seconds a lease lives without renewal. `max_ttl`: the longest ttl of the whole fleet
    (default: the larger of `ttl` and 10); guards wait for it. `node_timeout`: seconds each node
    has to answer. `acks`: a grant counts once so many replicas of the node have it too;
    `durable`: and once it is on disk (Redis 7.2). `prefix` comes before all keys. `label` names
    this process to people (default: host:pid). `restart_guard`, `clock_guard`: whether nodes that
    may have forgotten leases, or whose clock jumped, wait before they vote. `strict`: an evicting
    server is an error. `observers` are called with each event. Raises ConfigurationError.
    """
    return LockManager(
        nodes,
        ttl=ttl,
        max_ttl=max_ttl,
        node_timeout=node_timeout,
        acks=Acks.of(acks, durable),
        prefix=prefix,
        label=label,
        restart_guard=restart_guard,
        clock_guard=clock_guard,
        strict=strict,
        observers=observers,
    )


class LockManager(Catalogue):
    """Makes locks on one set of nodes; made by `connect`, ended by `aclose` or `async with`."""

    def __init__(
        self,
        nodes: Sequence[object],
        *,
        ttl: float,
        max_ttl: float | None,
        node_timeout: float,
        acks: Acks,
        prefix: str,
        label: str | None,
        restart_guard: bool,
        clock_guard: bool,
        strict: bool,
        observers: Sequence[Observer],
    ) -> None:
        super().__init__()
        defaults = Defaults.checked(ttl, max_ttl, node_timeout, prefix)
        keys_begin, batch = naming(nodes, prefix)
        self._defaults = replace(defaults, prefix=keys_begin)
        self._observers = Observers(observers)
        settings = NodeSettings(
            node_timeout=self._defaults.node_timeout,
            max_ttl=self._defaults.max_ttl,
            restart_guard=bool(restart_guard),
            guard_first=len(nodes) > 1,
            clock_guard=bool(clock_guard),
        )
        self._background = Background()
        multiplexer = Multiplexer(
            make_nodes(nodes, settings, SCRIPTS, self._observers, acks=acks, prefix=prefix),
            self._background,
            strict=strict,
            batch=batch,
        )
        self._engine = Engine(
            multiplexer,
            self._background,
            EngineSettings(node_timeout, self._defaults.max_ttl, _label(label)),
            self._observers,
        )

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
    ) -> Lock:
        """A mutex on `name`.

        `ttl`: seconds the lease lives without renewal (default: the manager's). `timeout`:
        seconds to wait for it (None: for ever). `renew`: keep it alive while it is held, for at
        most `max_hold` seconds. `interrupt`: end the body of `async with` when the lease is lost.
        `handoff`: whether a task of this process that waits gets the live lease without asking
        the nodes: True (fences from a reserved block), "strict" (one round trip; fences keep
        their order even after a loss nobody noticed), or False. Raises ConfigurationError.
        """
        terms = self._defaults.terms(
            ttl=ttl, renew=renew, max_hold=max_hold, interrupt=interrupt, handoff=handoff
        )
        recipe = _lock.recipe(self._defaults.prefix, _settings.name(name))
        return Lock(self._engine, recipe, terms, timeout)

    async def inspect(self, name: str) -> Inspection:
        """Who holds the mutex `name`, node by node; takes at most one node timeout."""
        return await inspect(
            self._engine, _lock.recipe(self._defaults.prefix, _settings.name(name))
        )

    def nodes(self) -> tuple[NodeHealth, ...]:
        """How each node is; asks nobody."""
        now = _clock.now()
        found = []
        for node in self._engine.multiplexer.nodes:
            facts = node.trust.facts
            found.append(
                NodeHealth(
                    node=node.address,
                    state=node.state(now),
                    cause=node.cause(now),
                    votes_in=max(0.0, node.trust.votes_from - now),
                    round_trip=node.round_trip,
                    version=facts.version if facts else None,
                    role=facts.role if facts else None,
                )
            )
        return tuple(found)

    def leases(self) -> tuple[Lease, ...]:
        """The leases that are held through this manager, oldest first."""
        held = self._engine.renewals.holdings()
        return tuple(holding.lease for holding in held if holding.lease is not None)

    def waiters(self) -> dict[str, int]:
        """How many tasks of this manager wait for each name that others have now."""
        found = Counter(search.name for search in self._engine.refused)
        for line in self._engine.lines.values():
            found[line.name] += len(line)
        return {name: count for name, count in found.items() if count}

    def statistics(self) -> Statistics:
        """What has been done so far; asks nobody."""
        engine, counts = self._engine, self._engine.counts
        return Statistics(
            held=len(self.leases()),
            waiting=engine.searching + sum(map(len, engine.lines.values())),
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
        """Tell `observer` of every event from now on."""
        self._observers.append(observer)

    def unobserve(self, observer: Observer) -> None:
        """Tell `observer` nothing more."""
        if observer in self._observers:
            self._observers.remove(observer)

    async def ready(self) -> None:
        """Wait until each node has been reached, or has failed, or one node timeout has passed.

        Raises ConfigurationError if this set of nodes can never work.
        """
        self._engine.ready()
        until = _clock.now() + self._defaults.node_timeout
        while _clock.now() < until:
            if all(node.state != "connecting" for node in self.nodes()):
                break
            await asyncio.sleep(0.002)
        self._engine.ready()

    async def aclose(self) -> None:
        """Give back what is still held, then end every connection and task; idempotent.

        Whoever still holds a lease loses it; whoever still waits gets ConfigurationError.
        """
        self._engine.close()
        nodes = self._engine.multiplexer.nodes
        await asyncio.gather(*(node.finish() for node in nodes))
        await self._background.aclose()
        # A connection that was being opened is aborted now; its socket closes in the next rounds
        # of the loop, which may be the last ones.
        for _ in range(3):
            await asyncio.sleep(0)

    async def __aenter__(self) -> LockManager:
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


def _label(label: str | None) -> str:
    if label is None:
        return f"{socket.gethostname()}:{os.getpid()}"
    if not isinstance(label, str) or len(label) > 200:
        raise ConfigurationError(f"label must be a str of at most 200 characters, not {label!r}")
    return _settings.name(label, "label") if label else ""
