"""All checks: of each server by itself, and of the set that they make up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from .._rules.quorum import majority
from . import _check_identity as identity
from . import _check_state as state
from ._findings import Finding, Found, Severity
from ._probe import Probe, Terms

CHECKS: tuple[Callable[[Probe, Terms], Found], ...] = (
    identity.version,
    identity.role,
    identity.cluster,
    identity.proxy,
    state.memory,
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
)


def examine(groups: Sequence[Sequence[Probe]], terms: Terms) -> list[Finding]:
    """Everything that was found, the worst first. A node is a group of one server or several."""
    servers = [server for group in groups for server in group]
    found = [*_number(groups), *together(servers)]
    for server in servers:
        if server.down is not None:
            found += identity.reachable(server, terms)
        else:
            found += [finding for check in CHECKS for finding in check(server, terms)]
    return sorted(found, key=lambda finding: -finding.severity)


def together(servers: Sequence[Probe]) -> Iterator[Finding]:
    """What only shows when one looks at all of them."""
    yield from _twice(servers)
    yield from _one_machine(servers)
    versions = {server.info.get("redis_version") for server in servers if server.info}
    if len(versions) > 1:
        yield Finding(
            "versions-differ",
            Severity.NOTE,
            "",
            f"the nodes run different versions: {', '.join(sorted(map(str, versions)))}",
            "Fine during an upgrade; afterwards one more thing that can differ.",
            "upgrade them one at a time, a max_ttl apart",
        )


def _number(groups: Sequence[Sequence[Probe]]) -> Found:
    count = len(groups)
    reached = sum(any(server.down is None for server in group) for group in groups)
    if count == 2:
        yield Finding(
            "two-nodes",
            Severity.ERROR,
            "",
            "there are two nodes",
            "A majority of two is both: if one fails, nothing can be locked. One is better.",
            "name one node, or three, or five",
        )
    elif count > 2 and count % 2 == 0:
        yield Finding(
            "even-number",
            Severity.NOTE,
            "",
            f"there are {count} nodes",
            f"{count} nodes bear the loss of {(count - 1) // 2}, as {count - 1} would.",
            f"name {count - 1} or {count + 1} nodes",
        )
    if count != 2 and reached < majority(count):
        yield Finding(
            "no-quorum",
            Severity.ERROR,
            "",
            f"{reached} of {count} nodes can be reached; a majority is {majority(count)}",
            "Nothing can be locked, and held locks are lost at the end of their ttl.",
            "see the findings on each node",
        )


def _twice(servers: Sequence[Probe]) -> Found:
    seen: dict[str, Probe] = {}
    for server in servers:
        run_id = server.facts.run_id or server.address
        first = seen.setdefault(run_id, server)
        if first is not server:
            yield Finding(
                "duplicate",
                Severity.ERROR,
                server.address,
                f"it is the same server as {first.address}",
                "It would vote twice: a majority of votes is no majority of servers.",
                "name each server once",
            )


def _one_machine(servers: Sequence[Probe]) -> Found:
    hosts = Counter(server.endpoint.host for server in servers if not server.local)
    for host, count in hosts.items():
        if count > 1:
            yield Finding(
                "one-machine",
                Severity.WARNING,
                "",
                f"{count} nodes run on {host}",
                "They fail together, so they are no independent voters.",
                "run each node on a machine of its own",
            )
