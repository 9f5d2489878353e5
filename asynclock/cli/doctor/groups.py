"""The servers behind a URL: one server, the primary that Sentinels name, a Cluster's primaries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._nodes.endpoint import Endpoint, Seeds, redacted
from ..._nodes.handshake import HandshakeError, greet
from ..._nodes.replicated.sentinel import Service
from ..._nodes.replies import Failure
from ..._nodes.script import Command
from .findings import Call, Finding, Found, finding
from .probe import REPLY_TIMEOUT, NullListener


@dataclass
class Group:
    """The servers of one node, and the findings on the way to them."""

    servers: list[tuple[Endpoint, str]] = field(default_factory=list)
    """Each server, with the URL that led to it."""
    findings: list[Finding] = field(default_factory=list)


async def resolve(url: str) -> Group:
    """Find the servers. Raises ConfigurationError if the URL itself is wrong."""
    scheme = url.strip().partition("://")[0]
    if scheme.endswith("+sentinel"):
        return await _behind_sentinels(url)
    if scheme.endswith("+cluster"):
        return await _in_cluster(url)
    return Group([(Endpoint.of(url), url)])


async def _ask(endpoint: Endpoint, *commands: Sequence[str]) -> list[Any] | Failure:
    try:
        link = await greet(endpoint, NullListener(), REPLY_TIMEOUT, REPLY_TIMEOUT)
    except HandshakeError as error:
        return error.failure
    try:
        return list(await asyncio.gather(*(link.ask(Command.plain(*one)) for one in commands)))
    finally:
        link.close("done")


async def _behind_sentinels(url: str) -> Group:
    service, found = Service.from_url(url), Group()
    questions = (
        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service.name),
        ("SENTINEL", "CKQUORUM", service.name),
    )
    replies = await asyncio.gather(*(_ask(one, *questions) for one in service.sentinels))
    named: list[tuple[str, int]] = []
    for sentinel, reply in zip(service.sentinels, replies, strict=True):
        found.findings += _of_sentinel(sentinel, service.name, reply)
        if isinstance(reply, list) and isinstance(reply[0], list):
            host, port = reply[0]
            named.append((host.decode(), int(port)))
    count = len(service.sentinels)
    if count < 3:
        shown = redacted(url).strip("'")
        found.findings.append(finding("few-sentinels", url=shown, count=count))
    if len(set(named)) > 1:
        listed = ", ".join(f"{host}:{port}" for host, port in named)
        found.findings.append(finding("sentinels-disagree", named=listed, service=service.name))
    if named:
        host, port = max(named, key=named.count)
        found.servers.append((service.data.at(host, port), url))
    return found


def _of_sentinel(sentinel: Endpoint, service: str, reply: list[Any] | Failure) -> Found:
    node = sentinel.address
    call = Call(lambda words: f"redis-cli -h {sentinel.host} -p {sentinel.port} {words}")
    if isinstance(reply, Failure):
        yield finding("sentinel-down", node=node, call=call, cause=reply.cause)
    elif not isinstance(reply[0], list):
        yield finding("sentinel-service", node=node, call=call, service=service)
    elif isinstance(reply[1], Failure):
        cause = reply[1].cause
        yield finding("sentinel-quorum", node=node, call=call, service=service, cause=cause)


async def _in_cluster(url: str) -> Group:
    seeds, found = Seeds(url, port=6379).endpoints(), Group()
    for seed in seeds:
        reply = await _ask(seed, ("CLUSTER", "INFO"), ("CLUSTER", "NODES"))
        if isinstance(reply, Failure) or not isinstance(reply[1], bytes):
            continue
        if b"cluster_state:ok" not in reply[0]:
            found.findings.append(finding("cluster-state", node=seed.address, address=seed.address))
        for line in reply[1].decode("utf-8", "replace").splitlines():
            words = line.split()
            if "master" in words[2] and "fail" not in words[2] and len(words) > 8:
                host, _, port = words[1].partition("@")[0].rpartition(":")
                found.servers.append((seed.at(host or seed.host, int(port)), url))
        return found
    found.servers = [(seed, url) for seed in seeds]
    return found
