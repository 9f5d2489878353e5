"""Checks of one server: memory, disk, replicas, clock, load."""

from __future__ import annotations

from ..._rules.trust import RATE
from .findings import Found, Severity, about, call, set_for_good
from .probe import Probe, Purpose

FULL = 0.9
"""Share of memory or connections in use from which on a warning is due."""
SPARE_CONNECTIONS = 16
"""Minimum number of connections that should be left on a server."""
OFFSET = 1.0
"""Seconds that a clock may be off without a finding."""
FLOOR_AHEAD = 60.0
"""As in clock.lua: a floor further ahead of a node's clock is ignored there."""
HEAVY = 100_000_000
"""Bytes of fence counters from which on a note is due."""
SAVES = {
    "aof_last_write_status": "it can't write its append-only file",
    "aof_last_bgrewrite_status": "its last rewrite of the append-only file failed",
    "rdb_last_bgsave_status": "its last snapshot failed",
}
"""Field of INFO -> what is wrong if it says "err"."""


def memory(server: Probe, _: Purpose) -> Found:
    """No lock is evicted, and none refused, because memory is short."""
    facts, limit = server.facts, server.number("maxmemory")
    if facts.evicts:
        severity = Severity.ERROR if limit else Severity.WARNING
        yield about(server, "evicts", severity=severity, policy=facts.maxmemory_policy)
    used = server.number("used_memory")
    if limit and used > FULL * limit:
        yield about(server, "memory", share=used / limit, wanted=2 * limit)


def counters(server: Probe, _: Purpose) -> Found:
    """Counters of names that were used once take little memory."""
    found = server.counters
    if found is not None and (found.size or 0) > HEAVY:
        yield about(server, "counters", shown=found.shown)


def persistence(server: Probe, purpose: Purpose) -> Found:
    """A crash loses no grants, or only those that the settings allow."""
    if not server.info or server.facts.durable:
        return
    if purpose.nodes > 1:
        severity = Severity.NOTE
        why = "A restarted node does not vote for one max_ttl: this costs availability, not safety."
    else:
        severity = Severity.WARNING
        why = "A client that first connects after a restart can't know that locks are gone."
    if server.info.get("aof_enabled") != "1":
        yield about(server, "no-persistence", severity=severity, why=why)
    elif setting := server.config.get("appendfsync"):
        yield about(server, "fsync", severity=severity, why=why, setting=setting)


def disk(server: Probe, _: Purpose) -> Found:
    """Persistence is on but does not work."""
    for field, what in SAVES.items():
        if server.info.get(field) == "err":
            yield about(server, "disk", what=what)


def writes(server: Probe, _: Purpose) -> Found:
    """The server refuses writes for a reason of its own."""
    failure = server.refused.get("SET")
    if failure is None or failure.code in ("NOPERM", "READONLY", "MOVED", ""):
        return
    fixes = {
        "OOM": set_for_good(server, "CONFIG SET maxmemory 0") + "  (or more memory)",
        "MISCONF": "free its disk; then: " + call(server, "BGSAVE"),
        "NOREPLICAS": set_for_good(server, "CONFIG SET min-replicas-to-write 0")
        + "  (or repair the replicas)",
        "LOADING": "wait until it has loaded its data",
    }
    fix = fixes.get(failure.code, "look at its log")
    yield about(server, "refuses-writes", cause=failure.cause, fix=fix)


def restart(server: Probe, _: Purpose) -> Found:
    """The restart guard, by the engine's own rule."""
    if server.waits > 0:
        durable = call(server, "CONFIG SET appendfsync always")
        durable += "; " + set_for_good(server, "CONFIG SET appendonly yes")
        fix = f"wait; or keep grants over restarts: {durable}"
        if server.facts.durable:
            fix = 'wait; or connect(..., restart_guard="disk"), if its disk is never lost'
        yield about(server, "young", seconds=server.waits, cause=server.waits_because, fix=fix)


def clock(server: Probe, _: Purpose) -> Found:
    """Keys expire by the server's clock, and fences are seeded from it."""
    if server.jumped:
        yield about(server, "clock-jumped", seconds=server.jumped)
    elif abs(server.rate) > RATE:
        yield about(server, "clock-rate", rate=server.rate)
    offset = abs(server.offset or 0.0)
    if offset > OFFSET:
        severity = Severity.ERROR if offset > FLOOR_AHEAD else Severity.WARNING
        yield about(server, "clock-offset", severity=severity, seconds=server.offset)


def replicas(server: Probe, purpose: Purpose) -> Found:
    """A failover forgets what was not yet replicated."""
    count, acks = server.number("connected_slaves"), purpose.acks
    minimum = server.setting("min-replicas-to-write")
    if minimum > count:
        yield about(server, "min-replicas", minimum=minimum, count=count)
    needed = acks.needed(count) if acks else 0
    if needed > count and server.info:
        at = server.endpoint
        yield about(
            server,
            "too-few-replicas",
            acks=acks.wanted,
            needed=needed,
            count=count,
            host=at.host,
            port=at.port,
        )
    if not count:
        return
    if not acks and purpose.nodes == 1:
        fix = "connect(..., acks=1), or acks = 1 in the TOML file"
        if "WAIT" in server.refused:
            fix = (
                "it refuses WAIT, so no client can wait for them: let the store check fences "
                "(docs/fencing.md)"
            )
        elif count == 1:
            fix = (
                "add a second replica, then connect(..., acks=1): with one replica alone, nothing "
                "could be locked while it is away"
            )
        yield about(server, "replicas-without-acks", count=count, fix=fix)
    if minimum == 0 and "min-replicas-to-write" in server.config:
        fix = set_for_good(server, "CONFIG SET min-replicas-to-write 1")
        if count == 1:
            fix = f"add a second replica first (with one, no writes while it is away), then {fix}"
        yield about(server, "min-replicas-unset", fix=fix)


def speed(server: Probe, purpose: Purpose) -> Found:
    """The node is too slow for its timeout."""
    trip, limit = server.round_trip, purpose.node_timeout
    if trip is not None and trip > limit / 4:
        severity = Severity.ERROR if trip > limit else Severity.WARNING
        wanted = max(0.25, 8 * trip)
        yield about(server, "slow", severity=severity, trip=trip * 1000, limit=limit, wanted=wanted)


def connections(server: Probe, _: Purpose) -> Found:
    """Room for clients, and connections that stay open."""
    most, clients = server.setting("maxclients"), server.number("connected_clients")
    if most and (clients > FULL * most or most - clients < SPARE_CONNECTIONS):
        what = f"{clients} of {most} connections are in use"
        yield about(server, "maxclients", what=what, wanted=max(10_000, 2 * most))
    if seconds := server.setting("timeout"):
        yield about(server, "idle-timeout", seconds=seconds)
