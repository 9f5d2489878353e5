"""`connect`: checks its arguments, builds what a manager needs, and makes the manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Never

from . import _settings
from ._background import Background
from ._engine.context import EngineSettings
from ._engine.engine import Engine
from ._nodes.deployment import NodeAddress, make_nodes, naming, own_keys
from ._nodes.multiplexer import Multiplexer
from ._nodes.node import NodeSettings
from ._nodes.replicated.acks import Acks
from ._primitives.kinds import SCRIPTS
from ._primitives.settings import Defaults
from ._rules import validity
from ._settings import RestartGuard
from .events import Observer, Observers
from .manager import LockManager


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
            10), for which the guards wait.
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
    checked = Defaults.checked(ttl, max_ttl, node_timeout, prefix)
    keys_begin, batch = naming(nodes, prefix)
    defaults = replace(checked, prefix=keys_begin)
    longest = defaults.max_ttl
    replicas, listeners = Acks.of(acks, durable), Observers(observers, keys_begin)
    guard = _settings.restart_guard(restart_guard)
    record_key, witness_key = own_keys(nodes, prefix)
    settings = NodeSettings(
        node_timeout=defaults.node_timeout,
        max_ttl=longest,
        restart_guard=bool(guard),
        guard_first=len(nodes) > 1,
        clock_guard=bool(clock_guard),
        disks_kept=guard == "disk",
        record_key=record_key if set_guard else "",
        witness_key=witness_key,
    )
    engine_settings = EngineSettings(
        defaults.node_timeout,
        longest,
        validity.checked_retention(fence_retention, longest),
        _settings.seconds(turn, "turn", zero=True),
        _settings.ticket_ttl(ticket_ttl, defaults.node_timeout),
        _settings.label(label),
    )

    def make_engine() -> Engine:
        made = make_nodes(nodes, settings, SCRIPTS, listeners, acks=replicas, prefix=prefix)
        background = Background()
        multiplexer = Multiplexer(made, background, strict=strict, batch=batch, label=label)
        return Engine(multiplexer, background, engine_settings, listeners)

    return LockManager(make_engine, defaults, listeners)
