"""The checks of `asynclock doctor`: of each server by itself, and of the set that they make up.

The texts of what can be wrong are in findings.toml, by code.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from importlib.resources import files
from typing import Any

from .._nodes.fleet import FLEET
from .._nodes.handshake import NO_USE, OLDEST
from .._nodes.wire import UNREADABLE, Failure, is_sentinel, major_minor
from .._rules.nodeset import NOTHING, OPEN, SETTLED, NodeSet, shown
from .._rules.quorum import majority
from .._rules.validity import RATE
from ..fleet import clients_of
from .probe import SECOND, Probe, Purpose

TEXTS: dict[str, dict[str, str]] = tomllib.loads(
    (files(__package__) / "findings.toml").read_text("utf-8")
)

ELSEWHERE = {
    ("CONFIG", "SET"): "set {name} to {value} where the server is configured: in the parameter "
    "group or the console of a managed service, or in the file of a server of your own",
    ("ACL", "SETUSER"): "give the user {name} the rights {value} where users are kept: in the "
    "user group or the console of a managed service, or in the ACL file of a server of your own",
}
"""First words of a command -> what to do instead on a server that shows no settings."""


class Severity(IntEnum):
    """How bad a finding is; the worst one is the program's exit status."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to fix."""

    code: str
    severity: Severity
    node: str | None
    """Address of the node; None if the finding is about all of them."""
    what: str
    why: str
    fix: str


Found = Iterator[Finding]


class Call:
    """Formats `{call:CONFIG SET …}` in a text as a command line."""

    def __init__(self, make: Callable[[str], str]) -> None:
        self._make = make

    def __format__(self, words: str) -> str:
        return self._make(words)


def finding(
    text: str,
    *,
    node: str | None = None,
    code: str | None = None,
    severity: Severity | None = None,
    configurable: bool = True,
    **facts: Any,
) -> Finding:
    """Return the finding with this text of findings.toml; `code` and `severity` as there."""
    row = TEXTS[text]
    fixed = "fix" if configurable or "managed" not in row else "managed"
    texts = (row["what"], row.get("why", TEXTS["unreachable"]["why"]), row[fixed])
    what, why, fix = (one.format(node=node, **facts) for one in texts)
    level = Severity[row.get("severity", "error").upper()] if severity is None else severity
    return Finding(code or text, level, node, what, why, fix)


def about(server: Probe, text: str, **facts: Any) -> Finding:
    """Return a finding about one server."""
    return finding(
        text,
        node=server.address,
        configurable=server.configurable,
        server=server,
        call=Call(partial(call, server)),
        set=Call(partial(set_for_good, server)),
        **facts,
    )


def call(server: Probe, words: str) -> str:
    """Return a redis-cli call to this server; the password is left to REDISCLI_AUTH."""
    endpoint = server.endpoint
    if endpoint.path:
        return f"redis-cli -s {endpoint.path} {words}"
    tls = " --tls" if server.url.startswith("rediss") else ""
    return f"redis-cli -h {endpoint.host} -p {endpoint.port}{tls} {words}"


def set_for_good(server: Probe, words: str) -> str:
    """Return what changes a setting for good: a redis-cli call, or words if none can do it."""
    if not server.configurable:
        kind, verb, name, value = words.split(maxsplit=3)
        return ELSEWHERE[kind, verb].format(name=name, value=value)
    now = call(server, words)
    if words.startswith("ACL ") and server.config.get("aclfile"):
        return f"{now}; {call(server, 'ACL SAVE')}"
    if server.info.get("config_file") or not server.info:
        return f"{now}; {call(server, 'CONFIG REWRITE')}"
    return f"{now}  (and in what it is started with: it has no file for CONFIG REWRITE)"


# ---- One server: its reachability, its kind, and the rights of its users -------------------------


NEEDED = ("EVALSHA", "EVAL", "SET", "GET", "DEL", "PEXPIRE", "PTTL", "TIME")
OPTIONAL = {
    "INFO": "Restarts, roles, memory and replicas can't be seen, not even by doctor: the node "
    "counts as restarted at each connection, so a reconnect takes its vote for one max_ttl. Any "
    "fault of it stays unknown.",
    "CONFIG GET": "Whether grants survive a crash can't be seen: after each restart the node "
    "grants nothing new for one max_ttl.",
    "SCRIPT LOAD": "Scripts are sent whole where their hash would be enough.",
    "SCAN": "`asynclock inspect --all` and `top` find nothing.",
    "WAIT": "Acknowledgements of replicas (acks) can't be counted.",
    "WAITAOF": "Whether a grant is on disk (durable) can't be asked.",
}
"""For each command that locks can do without: what is missing then."""
HELPFUL = frozenset({"SCAN"})
"""Commands for operators; the documented minimal user may not use them."""
TRACKING = ("HELLO", "CLIENT TRACKING", "CLIENT CACHING")
_HASH_TAG = re.compile(r"\{[^}]+\}")
TOO_MANY = "max number of clients"


def unreachable(server: Probe, failure: Failure) -> Found:
    """The node does not answer, or says that it is something else."""
    if server.tls is not None:
        yield about(server, server.tls)
    elif TOO_MANY in failure.cause:
        yield _no_connection_left(server)
    elif failure.code in ("WRONGPASS", "NOAUTH", "NOPERM"):
        yield about(server, "login", cause=failure.cause)
    elif "does not speak" in failure.cause or "nobody asked" in failure.cause:
        yield about(server, "not-redis")
    elif failure.code == NO_USE:
        yield about(server, "no-use", cause=failure.cause)
    elif "6.2" in failure.cause:
        yield about(server, "version", version="older than 6.0")
    else:
        yield about(server, "unreachable", cause=failure.cause)


def kind(server: Probe, purpose: Purpose) -> Found:
    """The node is one plain server of a supported version, a primary, and names its process.

    It may be one of a Cluster only if all keys lie in one slot of its own.
    """
    info, facts = server.info, server.facts
    version = info.get("redis_version", "")
    numbers = major_minor(version)
    if numbers and numbers < OLDEST:
        yield about(server, "version", version=version)
    if is_sentinel(info):
        yield about(server, "sentinel")
    elif facts.role not in (None, "master"):
        primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        yield about(server, "replica", primary=primary)
    alone = "+cluster" not in server.url and not _HASH_TAG.search(purpose.prefix)
    if info.get("cluster_enabled") == "1" and alone:
        yield about(server, "cluster")
    if facts.run_id and server.other_run_id and facts.run_id != server.other_run_id:
        yield about(server, "proxy")
    if info and facts.run_id is None:
        yield about(server, "no-run-id")


def rights(server: Probe, purpose: Purpose) -> Found:
    """Commands that the server refuses to our user, or to every user."""
    refused = dict(server.refused)
    if not purpose.acks:
        refused.pop("WAIT", None)
    if "HELLO" in refused:  # a proxy that doesn't know TIME may pass on a script that uses it
        refused.pop("TIME", None)
    yield from _denied(server, refused)
    for command, failure in sorted(refused.items()):
        if failure is UNREADABLE:
            yield about(server, "odd-reply", command=command)
        unknown = "unknown command" in failure.cause.lower() or command == "CONFIG GET"
        if failure.code == "ERR" and unknown and command not in TRACKING:
            yield about(
                server,
                "renamed",
                severity=Severity.ERROR if command in NEEDED else _severity(command),
                command=command,
                first=command.split()[0],
                why=OPTIONAL.get(command, "The scripts of a lock need it."),
            )


def _denied(server: Probe, refused: Mapping[str, Failure]) -> Found:
    denied = {command: f for command, f in refused.items() if f.code == "NOPERM"}
    needed = sorted(denied.keys() & set(NEEDED))
    if needed:
        rules = [f"+{command.lower()}" for command in needed]
        if any("key" in denied[command].cause for command in needed):
            rules.append("~asynclock:*")
        commands = ", ".join(needed)
        yield about(server, "rights", commands=commands, rules=" ".join(rules))
    for command, why in OPTIONAL.items():
        if command in denied:
            yield about(
                server,
                "rights-optional",
                code=f"rights-{command.lower().replace(' ', '-')}",
                severity=_severity(command),
                command=command,
                rule=command.lower().replace(" ", "|"),
                why=why,
            )


def _severity(command: str) -> Severity:
    return Severity.NOTE if command in HELPFUL else Severity.WARNING


def usable(server: Probe, _: Purpose) -> Found:
    """A lock could be taken, and every other primitive used."""
    for kind, cause in server.unusable.items():
        if kind == "lock":
            yield about(server, "cannot-lock", cause=cause)
        else:
            code = f"cannot-{kind.replace('_', '-')}"
            yield about(server, "cannot-use", code=code, kind=kind, cause=cause)


def tracking(server: Probe, _: Purpose) -> Found:
    """The server wakes waiters by pushes."""
    for command in TRACKING:
        failure = server.refused.get(command)
        if failure is not None and command == "HELLO":
            yield about(server, "resp2", cause=failure.cause)
        elif failure is not None and failure.code == "ERR" and "unknown" in failure.cause.lower():
            yield about(  # no right of a user changes that
                server,
                "renamed",
                code="tracking",
                command=command,
                first=command.split()[0],
                why=TEXTS["tracking"]["why"],
            )
        elif failure is not None:
            yield about(server, "tracking", command=command, cause=failure.cause)


# ---- One server: memory, disk, replicas, clock, load ---------------------------------------------


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
    """No lock is evicted or refused because memory is short, and counters take little of it."""
    facts, limit = server.facts, server.number("maxmemory")
    if facts.evicts:
        severity = Severity.ERROR if limit else Severity.WARNING
        yield about(server, "evicts", severity=severity, policy=facts.maxmemory_policy)
    used = server.number("used_memory")
    if limit and used > FULL * limit:
        yield about(server, "memory", share=used / limit, wanted=2 * limit)
    counters = server.counters
    if counters is not None and (counters.size or 0) > HEAVY:
        yield about(server, "counters")


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
        yield about(server, "young", fix=fix)


def clock(server: Probe, _: Purpose) -> Found:
    """Keys expire by the server's clock, and fences are seeded from it."""
    if server.jumped:
        yield about(server, "clock-jumped")
    elif abs(server.rate) > RATE:
        yield about(server, "clock-rate")
    if (offset := server.offset) is not None and abs(offset) > OFFSET:
        severity = Severity.ERROR if abs(offset) > FLOOR_AHEAD else Severity.WARNING
        yield about(server, "clock-offset", severity=severity)


def replicas(server: Probe, purpose: Purpose) -> Found:
    """A failover forgets what was not yet replicated."""
    count, acks = server.number("connected_slaves"), purpose.acks
    minimum = server.setting("min-replicas-to-write")
    if minimum > count:
        yield about(server, "min-replicas", minimum=minimum, count=count)
    needed = acks.needed(count) if acks else 0
    if needed > count and server.info:
        yield about(server, "too-few-replicas", acks=acks.wanted, needed=needed, count=count)
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
    """There is room for clients, connections stay open, and only the locks' own users have them."""
    most, clients = server.setting("maxclients"), server.number("connected_clients")
    if most and (clients > FULL * most or most - clients < SPARE_CONNECTIONS):
        what = f"{clients} of {most} connections are in use"
        yield about(server, "maxclients", what=what, wanted=max(10_000, 2 * most))
    if seconds := server.setting("timeout"):
        yield about(server, "idle-timeout", seconds=seconds)
    if not server.local and not server.login:
        yield about(server, "open")
    if not server.local and not server.url.startswith("rediss"):
        yield about(server, "plain")
    failure = server.refused.get(SECOND)
    if failure is not None and TOO_MANY in failure.cause:
        yield _no_connection_left(server)


def _no_connection_left(server: Probe) -> Finding:
    what = "it accepts no more connections: maxclients is reached"
    wanted = max(10_000, 2 * server.setting("maxclients"))
    return about(server, "maxclients", severity=Severity.ERROR, what=what, wanted=wanted)


# ---- The record of the fleet's set of nodes ------------------------------------------------------


CLIENTS_NAMED = 20
"""Maximum number of clients that a finding names."""


def record(groups: Sequence[Sequence[Probe]], purpose: Purpose) -> Found:
    """All nodes keep the same record, and all clients use the nodes in it."""
    ours = Call(lambda words: f"asynclock {words} {purpose.options}".rstrip())
    servers = [server for group in groups for server in group if server.down is None]
    newest = max((server.copy for server in servers), default=NOTHING)
    known = NodeSet.parse(newest.text)
    if known is None:
        if len(groups) >= FLEET and servers:
            yield finding("set-unrecorded", asynclock=ours)
        return
    names = [_name(group) for group in groups]
    if not known.allows(names):
        usable = " or ".join(map(shown, known.usable))
        yield finding(
            "set-differs", ours=shown(names), usable=usable, epoch=known.epoch, asynclock=ours
        )
    yield from _step(known, ours)
    for server in servers:
        if server.copy.number < newest.number:
            older = NodeSet.parse(server.copy.text)
            what = "no record" if older is None else f"epoch {older.epoch} of the record"
            yield about(server, "set-lags", what=what, epoch=known.epoch)
    yield from _clients(known, servers)


def _name(group: Sequence[Probe]) -> str | None:
    """Return what the record calls a node; None if it could not be asked."""
    met = next((server for server in group if server.down is None), None)
    return None if met is None else met.copy.name or met.address


def _step(known: NodeSet, ours: Call) -> Found:
    if known.phase != SETTLED:
        does = "leads to" if known.phase == OPEN else "comes from"
        other = shown(known.other)
        yield finding("set-step", phase=known.phase, does=does, other=other, asynclock=ours)


def _clients(known: NodeSet, servers: Sequence[Probe]) -> Found:
    found = clients_of(known, [server.clients for server in servers]) or ()
    behind = sorted(client.label for client in found if client.uses in ("old", "other"))
    if behind:
        labels = ", ".join(behind[:CLIENTS_NAMED]) + ", …" * (len(behind) > CLIENTS_NAMED)
        yield finding("set-clients", count=len(behind), labels=labels)


# ---- All checks ----------------------------------------------------------------------------------


CHECKS: tuple[Callable[[Probe, Purpose], Found], ...] = (
    *(kind, memory, writes, rights, tracking, persistence, disk, restart, clock, replicas),
    *(speed, connections, usable),
)


def examine(groups: Sequence[Sequence[Probe]], purpose: Purpose) -> list[Finding]:
    """Return all findings, the worst first. A node is a group of one server or several."""
    servers = [server for group in groups for server in group]
    found = [*_number(groups), *_duplicates(servers), *_one_machine(servers), *_versions(servers)]
    found += record(groups, purpose)
    for server in servers:
        if server.down is not None:
            found += unreachable(server, server.down)
        else:
            found += [one for check in CHECKS for one in check(server, purpose)]
    return sorted(found, key=lambda one: -one.severity)


def _number(groups: Sequence[Sequence[Probe]]) -> Found:
    count = len(groups)
    reached = sum(any(server.down is None for server in group) for group in groups)
    if count == 2:
        yield finding("two-nodes")
    elif count % 2 == 0:
        spare = (count - 1) // 2
        yield finding("even-number", count=count, spare=spare, fewer=count - 1, more=count + 1)
    if count != 2 and reached < majority(count):
        yield finding("no-quorum", reached=reached, count=count, majority=majority(count))


def _duplicates(servers: Sequence[Probe]) -> Found:
    seen: dict[str, Probe] = {}
    for server in servers:
        first = seen.setdefault(server.facts.run_id or server.address, server)
        if first is not server:
            yield finding("duplicate", node=server.address, first=first.address)


def _one_machine(servers: Sequence[Probe]) -> Found:
    hosts = Counter(server.endpoint.host for server in servers if not server.local)
    for host, count in hosts.items():
        if count > 1:
            yield finding("one-machine", count=count, host=host)


def _versions(servers: Sequence[Probe]) -> Found:
    versions = {str(server.info.get("redis_version")) for server in servers if server.info}
    if len(versions) > 1:
        yield finding("versions-differ", versions=", ".join(sorted(versions)))
