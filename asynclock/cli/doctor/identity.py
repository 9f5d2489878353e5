"""Checks of one server: its reachability, its kind, and the rights of its users."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..._nodes.handshake import NO_USE, OLDEST
from ..._nodes.replies import Failure, is_sentinel, major_minor
from .findings import TEXTS, Found, Severity, about
from .probe import SECOND, Probe, Purpose

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
        yield from _no_connection_left(server)
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


def version(server: Probe, _: Purpose) -> Found:
    """The version is supported."""
    found = server.info.get("redis_version", "")
    numbers = major_minor(found)
    if numbers and numbers < OLDEST:
        yield about(server, "version", version=found)


def role(server: Probe, _: Purpose) -> Found:
    """The node is a primary and a plain server."""
    info = server.info
    if is_sentinel(info):
        yield about(server, "sentinel", address=server.address)
    elif server.facts.role not in (None, "master"):
        primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        yield about(server, "replica", primary=primary)


def cluster(server: Probe, purpose: Purpose) -> Found:
    """The node is not a single server of a Cluster, unless all keys lie in one slot of its own."""
    alone = "+cluster" not in server.url and not _HASH_TAG.search(purpose.prefix)
    if server.info.get("cluster_enabled") == "1" and alone:
        yield about(server, "cluster", address=server.address)


def proxy(server: Probe, _: Purpose) -> Found:
    """One address leads to one server."""
    first, second = server.facts.run_id, server.other_run_id
    if first and second and first != second:
        yield about(server, "proxy")


def process(server: Probe, _: Purpose) -> Found:
    """INFO names the server's process."""
    if server.info and server.facts.run_id is None:
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
        yield about(server, "rights", user=server.user, commands=commands, rules=" ".join(rules))
    for command, why in OPTIONAL.items():
        if command in denied:
            yield about(
                server,
                "rights-optional",
                code=f"rights-{command.lower().replace(' ', '-')}",
                severity=_severity(command),
                user=server.user,
                command=command,
                rule=command.lower().replace(" ", "|"),
                why=why,
            )


def _severity(command: str) -> Severity:
    return Severity.NOTE if command in HELPFUL else Severity.WARNING


def full(server: Probe, _: Purpose) -> Found:
    """A second client can connect."""
    failure = server.refused.get(SECOND)
    if failure is not None and TOO_MANY in failure.cause:
        yield from _no_connection_left(server)


def _no_connection_left(server: Probe) -> Found:
    what = "it accepts no more connections: maxclients is reached"
    wanted = max(10_000, 2 * server.setting("maxclients"))
    yield about(server, "maxclients", severity=Severity.ERROR, what=what, wanted=wanted)


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
            yield about(server, "tracking", command=command, cause=failure.cause, user=server.user)


def access(server: Probe, _: Purpose) -> Found:
    """Only the locks' own users may delete locks."""
    if not server.local and not server.login:
        yield about(server, "open")
    if not server.local and not server.url.startswith("rediss"):
        yield about(server, "plain")
