"""Checks of one server: memory, disk, replicas, clock, load."""

from __future__ import annotations

from .._rules.trust import RATE
from ._findings import FULL, Found, cli, error, note, warning
from ._probe import Probe, Terms

OFFSET = 1.0
"""Seconds that a clock may be off before somebody should look after it."""
FLOOR_AHEAD = 60.0
"""As in prelude.lua: a floor further ahead of a node's clock is ignored there."""


def _keep(server: Probe) -> str:
    always, on = "CONFIG SET appendfsync always", "CONFIG SET appendonly yes"
    return f"{cli(server, always)}; {cli(server, on)}"


def memory(server: Probe, _: Terms) -> Found:
    """No lock may be thrown away, and none refused, because memory is short."""
    facts, limit = server.facts, server.number("maxmemory")
    if facts.evicts:
        make = error if limit else warning
        yield make(
            server,
            "evicts",
            f"its maxmemory-policy is {facts.maxmemory_policy}",
            "Lock keys have a ttl: when memory is short the server throws them away, and two "
            "holders have the same lock.",
            cli(server, "CONFIG SET maxmemory-policy noeviction"),
        )
    used = server.number("used_memory")
    if limit and used > FULL * limit:
        yield warning(
            server,
            "memory",
            f"{used / limit:.0%} of its maxmemory are in use",
            "Once it is full it refuses to grant (noeviction) or throws locks away.",
            cli(server, f"CONFIG SET maxmemory {2 * limit}"),
        )


def persistence(server: Probe, terms: Terms) -> Found:
    """What a crash forgets."""
    if not server.info or server.facts.durable:
        return
    make = note if terms.nodes > 1 else warning
    guarded = (
        "A restarted node does not vote for one max_ttl, so this costs availability, not safety."
        if terms.nodes > 1
        else "Whoever connects for the first time after a restart can't know that locks are gone."
    )
    if server.info.get("aof_enabled") != "1":
        yield make(
            server,
            "no-persistence",
            "it keeps no append-only file: a restart forgets all locks and fence counters",
            guarded,
            _keep(server),
        )
    elif "appendfsync" in server.config:
        yield make(
            server,
            "fsync",
            f"appendfsync is {server.config['appendfsync']}: a crash of the machine forgets the "
            "locks of the last second or more",
            guarded,
            cli(server, "CONFIG SET appendfsync always"),
        )


def disk(server: Probe, _: Terms) -> Found:
    """Persistence that is on but does not work."""
    for key, what in (
        ("aof_last_write_status", "it can't write its append-only file"),
        ("aof_last_bgrewrite_status", "its last rewrite of the append-only file failed"),
        ("rdb_last_bgsave_status", "its last snapshot failed"),
    ):
        if server.info.get(key) == "err":
            yield warning(
                server,
                "disk",
                what,
                "A server that can't save refuses writes sooner or later (MISCONF).",
                "look at its log and its disk; then: " + cli(server, "BGSAVE"),
            )


def writes(server: Probe, _: Terms) -> Found:
    """Writes that the server refuses for a reason of its own."""
    failure = server.refused.get("SET")
    if failure is None or failure.code in ("NOPERM", "READONLY", "MOVED", ""):
        return
    mends = {
        "OOM": cli(server, "CONFIG SET maxmemory 0") + "  (or more memory)",
        "MISCONF": "free its disk; then: " + cli(server, "BGSAVE"),
        "NOREPLICAS": cli(server, "CONFIG SET min-replicas-to-write 0") + "  (or mend replicas)",
        "LOADING": "wait until it has loaded its data",
    }
    yield error(
        server,
        "refuses-writes",
        f"it refuses writes: {failure.cause}",
        "It can't grant anything.",
        mends.get(failure.code, "look at its log"),
    )


def restart(server: Probe, _: Terms) -> Found:
    """The restart guard, by the engine's own rule."""
    if server.waits > 0:
        yield note(
            server,
            "young",
            f"it does not vote for another {server.waits:.0f} s: it {server.waits_because}",
            "It may have forgotten what it granted before; after one max_ttl that is over.",
            "wait; or keep grants over restarts: " + _keep(server),
        )


def clock(server: Probe, _: Terms) -> Found:
    """Clocks: expiry runs on the server's, fences are seeded from it."""
    if server.jumped:
        yield error(
            server,
            "clock-jumped",
            f"its clock jumped by {server.jumped:+.3f} s while we looked",
            "Keys expire at the wrong time; the node does not vote for one max_ttl after a jump.",
            "let chrony or ntpd slew the clock, not step it (`chronyc makestep` only at boot)",
        )
    elif abs(server.rate) > RATE:
        yield error(
            server,
            "clock-rate",
            f"its clock runs {server.rate:+.1%} against ours",
            "The margin of a lease covers 1 % between the clocks of client and node.",
            "let chrony or ntpd discipline both clocks: `chronyc tracking`",
        )
    offset = server.offset
    if offset is not None and abs(offset) > OFFSET:
        make = error if abs(offset) > FLOOR_AHEAD else warning
        yield make(
            server,
            "clock-offset",
            f"its clock is {offset:+.1f} s off ours",
            "Fences are seeded from the nodes' clocks: with clocks far apart, acquires need a "
            "second round trip and a forgotten counter is no longer made good.",
            "synchronise the machines: `chronyc tracking`, `timedatectl set-ntp true`",
        )


def replicas(server: Probe, terms: Terms) -> Found:
    """Failover forgets what was not yet replicated."""
    count = server.number("connected_slaves")
    minimum = int(server.config.get("min-replicas-to-write", "0") or 0)
    if minimum > count:
        yield error(
            server,
            "min-replicas",
            f"min-replicas-to-write is {minimum}, connected are {count}",
            "It refuses all writes until the replicas are back.",
            cli(server, f"CONFIG SET min-replicas-to-write {count}") + "  (or mend the replicas)",
        )
    if not count:
        return
    if not terms.acks and terms.nodes == 1:
        yield warning(
            server,
            "replicas-without-acks",
            f"it has {count} replicas, but grants do not wait for them",
            "A failover to a replica that has not seen a grant gives the lock to a second holder.",
            "connect(..., acks=1), or acks = 1 in the TOML file",
        )
    if minimum == 0 and "min-replicas-to-write" in server.config:
        yield warning(
            server,
            "min-replicas-unset",
            "min-replicas-to-write is 0 although it has replicas",
            "A primary that was cut off from its replicas goes on granting beside the new one.",
            cli(server, "CONFIG SET min-replicas-to-write 1"),
        )


def speed(server: Probe, terms: Terms) -> Found:
    """A node that is too slow for its timeout."""
    trip = server.round_trip
    if trip is not None and trip > terms.node_timeout / 4:
        make = error if trip > terms.node_timeout else warning
        yield make(
            server,
            "slow",
            f"a round trip takes {trip * 1000:.0f} ms; node_timeout is {terms.node_timeout:g} s",
            "Answers that come late do not count; an acquire may need two round trips.",
            f"connect(..., node_timeout={max(0.25, 8 * trip):.2g}), or a node that is nearer",
        )


def connections(server: Probe, _: Terms) -> Found:
    """Room for clients, and connections that are left alone."""
    most = int(server.config.get("maxclients", "0") or 0)
    clients = server.number("connected_clients")
    if most and clients > FULL * most:
        yield warning(
            server,
            "maxclients",
            f"{clients} of {most} connections are in use",
            "When there are no more, whoever reconnects loses its locks.",
            cli(server, f"CONFIG SET maxclients {2 * most}"),
        )
    if server.config.get("timeout", "0") not in ("", "0"):
        yield warning(
            server,
            "idle-timeout",
            f"it closes connections that were idle for {server.config['timeout']} s",
            "Waiters lose their wake-ups with the connection, and each reconnect costs time.",
            cli(server, "CONFIG SET timeout 0"),
        )
