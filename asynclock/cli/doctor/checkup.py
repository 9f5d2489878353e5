"""All checks: of each server by itself, and of the set that the servers make up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ..._rules.quorum import majority
from . import identity, state
from .findings import Finding, Found, finding
from .probe import Probe, Purpose
from .record import record

CHECKS: tuple[Callable[[Probe, Purpose], Found], ...] = (
    identity.version,
    identity.role,
    identity.cluster,
    identity.proxy,
    identity.process,
    state.memory,
    state.counters,
    state.writes,
    identity.rights,
    identity.tracking,
    state.persistence,
    state.disk,
    state.restart,
    state.clock,
    state.replicas,
    state.speed,
    state.connections,
    identity.access,
    identity.full,
    identity.usable,
)


def examine(groups: Sequence[Sequence[Probe]], purpose: Purpose) -> list[Finding]:
    """Return all findings, the worst first. A node is a group of one server or several."""
    servers = [server for group in groups for server in group]
    found = [*_number(groups), *_duplicates(servers), *_one_machine(servers), *_versions(servers)]
    found += record(groups, purpose)
    for server in servers:
        if server.down is not None:
            found += identity.unreachable(server, server.down)
        else:
            found += [one for check in CHECKS for one in check(server, purpose)]
    return sorted(found, key=lambda one: -one.severity)


def _number(groups: Sequence[Sequence[Probe]]) -> Found:
    count = len(groups)
    reached = sum(any(server.down is None for server in group) for group in groups)
    if count == 2:
        yield finding("two-nodes")
    elif count > 2 and count % 2 == 0:
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
