"""What stands behind a URL: a server, the primary that Sentinels name, a cluster's primaries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .._nodes.endpoint import Endpoint, Seeds, redacted
from .._nodes.handshake import HandshakeError, greet
from .._nodes.link import Failure
from .._nodes.script import Command
from .._nodes.sentinel import Service
from ._findings import Finding, Severity
from ._probe import LIMIT, Ear


@dataclass
class Group:
    """The servers to look at, and what was found on the way to them."""

    servers: list[tuple[Endpoint, str]] = field(default_factory=list)
    """Each with the URL that led to it."""
    findings: list[Finding] = field(default_factory=list)


async def resolve(url: str) -> Group:
    """Raises ConfigurationError where the URL itself is wrong."""
    scheme = url.strip().partition("://")[0]
    if scheme.endswith("+sentinel"):
        return await _behind_sentinels(url)
    if scheme.endswith("+cluster"):
        return await _in_cluster(url)
    return Group([(Endpoint.from_url(url), url)])


async def _ask(endpoint: Endpoint, *commands: Sequence[str]) -> list[Any] | Failure:
    try:
        link = await greet(endpoint, Ear(), LIMIT, LIMIT)
    except HandshakeError as error:
        return error.failure
    try:
        return list(await asyncio.gather(*(link.ask(Command.plain(*one)) for one in commands)))
    finally:
        link.close("done")


async def _behind_sentinels(url: str) -> Group:
    service, found = Service.from_url(url), Group()
    name = service.name
    replies = await asyncio.gather(
        *(
            _ask(
                sentinel,
                ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name),
                ("SENTINEL", "CKQUORUM", name),
            )
            for sentinel in service.sentinels
        )
    )
    named: list[tuple[str, int]] = []
    for sentinel, reply in zip(service.sentinels, replies, strict=True):
        found.findings += _of_sentinel(sentinel, name, reply)
        if isinstance(reply, list) and isinstance(reply[0], list):
            host, port = reply[0]
            named.append((host.decode(), int(port)))
    shown = redacted(url).strip("'")
    if len(service.sentinels) < 3:
        found.findings.append(
            Finding(
                "few-sentinels",
                Severity.WARNING,
                "",
                f"{shown} names {len(service.sentinels)} Sentinels",
                "Fewer than three can't agree on a failover when one of them is gone.",
                "run and name three Sentinels, each on a machine of its own",
            )
        )
    if len(set(named)) > 1:
        found.findings.append(
            Finding(
                "sentinels-disagree",
                Severity.ERROR,
                "",
                f"Sentinels name different primaries: {', '.join(f'{h}:{p}' for h, p in named)}",
                "During a failover that is normal for seconds; otherwise two groups share a name.",
                f"redis-cli -p 26379 SENTINEL RESET {name}",
            )
        )
    if named:
        host, port = max(named, key=named.count)
        found.servers.append((service.data.at(host, port), url))
    return found


def _of_sentinel(sentinel: Endpoint, name: str, reply: list[Any] | Failure) -> list[Finding]:
    call = f"redis-cli -h {sentinel.host} -p {sentinel.port}"
    if isinstance(reply, Failure):
        what, why = (
            f"this Sentinel can't be reached: {reply.cause}",
            "A majority of Sentinels must answer before a primary is trusted.",
        )
        return [
            Finding("sentinel-down", Severity.WARNING, sentinel.address, what, why, f"{call} PING")
        ]
    if not isinstance(reply[0], list):
        what, why = f"it does not know the service {name}", "It can't tell where the primary is."
        mend = f"{call} SENTINEL MASTERS"
        return [Finding("sentinel-service", Severity.ERROR, sentinel.address, what, why, mend)]
    if isinstance(reply[1], Failure):
        what = f"it would get no failover through: {reply[1].cause}"
        why = "If the primary fails, nothing can be locked until somebody steps in."
        mend = f"{call} SENTINEL CKQUORUM {name}"
        return [Finding("sentinel-quorum", Severity.WARNING, sentinel.address, what, why, mend)]
    return []


async def _in_cluster(url: str) -> Group:
    seeds, found = Seeds(url, port=6379).endpoints(), Group()
    for seed in seeds:
        reply = await _ask(seed, ("CLUSTER", "INFO"), ("CLUSTER", "NODES"))
        if isinstance(reply, Failure) or not isinstance(reply[1], bytes):
            continue
        if b"cluster_state:ok" not in reply[0]:
            found.findings.append(_broken(seed))
        for line in reply[1].decode("utf-8", "replace").splitlines():
            words = line.split()
            if "master" in words[2] and "fail" not in words[2] and len(words) > 8:
                host, _, port = words[1].partition("@")[0].rpartition(":")
                found.servers.append((seed.at(host or seed.host, int(port)), url))
        return found
    found.servers = [(seed, url) for seed in seeds]
    return found


def _broken(seed: Endpoint) -> Finding:
    return Finding(
        "cluster-state",
        Severity.ERROR,
        seed.address,
        "the cluster is not in order (cluster_state is not ok)",
        "Some slots have no primary: the names in them can't be locked.",
        f"redis-cli --cluster check {seed.address}",
    )
