"""`asynclock doctor`: finds what is wrong with the nodes, why it matters, and what fixes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from .._nodes.endpoint import Endpoint, Seeds, redacted
from .._nodes.replicated import Service
from .._nodes.replicated.acks import Acks
from .._nodes.wire import Failure, reader
from .._settings import name, seconds
from . import _app
from ._output import clean, console, print_json, print_table
from ._settings import Settings, load, repeated
from .checks import Call, Finding, Found, Severity, examine, finding
from .probe import Probe, Purpose, probe, replies_of, use_everything

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    watch: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, max=60, help="Time to watch clocks.")
    ] = 1.0,
    max_ttl: _app.MaxTtlOption = None,
    node: _app.NodeOption = None,
    config: _app.ConfigOption = None,
    prefix: _app.PrefixOption = None,
    node_timeout: _app.NodeTimeoutOption = None,
) -> int:
    """Examine the nodes: what is wrong, why it matters and what fixes it.

    Checks reachability, TLS, version, role, duplicates, memory, persistence, rights, replicas,
    Sentinels, clocks and speed, takes a lock on each node and uses every other primitive once, on
    names of its own, which it deletes. The library's own rules decide whether a node votes.

    The exit status is 0 if all is well or there are only notes, 1 with warnings, 2 with errors.

    Examples:

        asynclock doctor --node redis://a --node redis://b --node redis://c
        ASYNCLOCK_NODES=redis://a,redis://b,redis://c asynclock doctor --json
    """
    settings = load(node, config, prefix, node_timeout, max_ttl)
    again = repeated(node, config, prefix, max_ttl)
    servers, findings = asyncio.run(_examine(settings, watch, again))
    if json:
        print_json(_as_json(servers, findings))
    else:
        _print(servers, findings)
    return int(max((each.severity for each in findings), default=Severity.NOTE))


async def _examine(
    settings: Settings, watch: float, again: str
) -> tuple[list[Probe], list[Finding]]:
    options = settings.options
    if settings.prefix:
        name(settings.prefix, "prefix")
    purpose = Purpose(
        nodes=len(settings.nodes),
        max_ttl=seconds(settings.max_ttl, "max_ttl"),
        node_timeout=seconds(options.get("node_timeout", 0.25), "node_timeout"),
        prefix=settings.prefix,
        acks=Acks.of(options.get("acks", 0), options.get("durable", False)),
        watch=watch,
        disks_kept=options.get("restart_guard") == "disk",
        options=again,
    )
    groups = await asyncio.gather(*(resolve(url) for url in settings.nodes))
    looks = [[probe(endpoint, url, purpose) for endpoint, url in one.servers] for one in groups]
    found = await asyncio.gather(*(asyncio.gather(*group) for group in looks))
    await asyncio.gather(*map(_try, repeat(settings), settings.nodes, found, repeat(purpose)))
    findings = [each for group in groups for each in group.findings]
    servers = [server for group in found for server in group]
    return servers, findings + examine(found, purpose)


async def _try(settings: Settings, url: str, servers: Sequence[Probe], purpose: Purpose) -> None:
    """Take locks on a node, unless the findings already say why that can't work."""
    known = [each for each in examine([servers], purpose) if each.node]
    if servers and all(each.severity < Severity.ERROR for each in known):
        servers[0].unusable = await use_everything(settings, url)


def _print(servers: Sequence[Probe], findings: Sequence[Finding]) -> None:
    titles = (
        *("node", "version", "role", "up for", "round trip"),
        *("clock", "keeps", "counters", "epoch", "vote"),
    )
    print_table(titles, [_row(server) for server in servers])
    out = console()
    for each in findings:
        _print_finding(out, each)
    count = Counter(each.severity for each in findings)
    words = [
        f"{count[one]} {one.name.lower()}{'s' * (count[one] > 1)}"
        for one in reversed(Severity)
        if count[one]
    ]
    out.print()
    out.print(", ".join(words) if words else Text("all is well", "bold green"))


def _row(server: Probe) -> tuple[str, ...]:
    facts, trip = server.facts, server.round_trip
    if server.down is not None:
        return (server.address, *[""] * 8, "none: " + server.down.cause)
    offset = "" if server.offset is None else f"{server.offset * 1000:+.0f} ms"
    vote = f"in {server.waits:.0f} s" if server.waits > 0 else "now"
    if facts.role not in (None, "master"):
        vote = f"none: a {facts.role}"
    keeps = "all" if facts.durable else server.config.get("appendfsync", "?")
    return (
        server.address,
        facts.version or "?",
        facts.role or "?",
        "?" if facts.uptime is None else f"{facts.uptime:.0f} s",
        "" if trip is None else f"{trip * 1000:.1f} ms",
        offset,
        keeps if server.info.get("aof_enabled") == "1" else "nothing" if server.info else "?",
        "?" if server.counters is None else server.counters.shown,
        "" if server.epoch is None else str(server.epoch),
        vote,
    )


def _print_finding(out: Console, found: Finding) -> None:
    out.print()
    where = f"{found.node}: " if found.node else ""
    out.print(
        Text.assemble(
            (f"{found.severity.name.lower():8}", _STYLES[found.severity]),
            clean(f"{where}{found.what}"),
            (f"  [{found.code}]", "dim"),
        ),
        soft_wrap=not out.is_terminal,
    )
    for word, text in (("why", found.why), ("fix", found.fix)):
        line = Text(f"{word + ':':6}{clean(text)}")
        if out.is_terminal:
            out.print(Padding(line, (0, 0, 0, 8), expand=False))
        else:
            out.print(f"        {line}", soft_wrap=True)


def _as_json(servers: Sequence[Probe], findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "node": server.address,
                "reachable": server.down is None,
                "cause": None if server.down is None else server.down.cause,
                "version": server.facts.version,
                "role": server.facts.role,
                "run_id": server.facts.run_id,
                "uptime": server.facts.uptime,
                "durable": server.facts.durable,
                "tracking": server.facts.tracking,
                "round_trip": server.round_trip,
                "clock_offset": server.offset,
                "clock_rate": server.rate,
                "votes_in": server.waits,
                "counters": None if server.counters is None else server.counters.count,
                "counters_bytes": None if server.counters is None else server.counters.size,
                "epoch": server.epoch,
            }
            for server in servers
        ],
        "findings": [{**asdict(one), "severity": one.severity.name.lower()} for one in findings],
    }


# ---- The servers behind a URL: one, the primary that Sentinels name, a Cluster's primaries -------


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


async def _behind_sentinels(url: str) -> Group:
    service, found = Service.from_url(url), Group()
    questions = (
        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service.name),
        ("SENTINEL", "CKQUORUM", service.name),
    )
    replies = await asyncio.gather(*(replies_of(one, *questions) for one in service.sentinels))
    for sentinel, reply in zip(service.sentinels, replies, strict=True):
        found.findings += _of_sentinel(sentinel, service.name, reply)
    named = [one for one in map(_primary, replies) if not isinstance(one, Failure)]
    count = len(service.sentinels)
    if count < 3:
        shown = redacted(url).strip("'")
        found.findings.append(finding("few-sentinels", url=shown, count=count))
    if len(set(named)) > 1:
        listed = ", ".join(f"{host}:{port}" for host, port in named)
        found.findings.append(finding("sentinels-disagree", named=listed, service=service.name))
    if named:
        primary = max(named, key=named.count)
        found.servers.append((service.data.at(*primary), url))
    return found


@reader
def _primary(replies: list[Any]) -> tuple[str, int]:
    host, port = replies[0]
    return host.decode(), int(port)


def _of_sentinel(sentinel: Endpoint, service: str, reply: list[Any] | Failure) -> Found:
    node = sentinel.address
    call = Call(lambda words: f"redis-cli -h {sentinel.host} -p {sentinel.port} {words}")
    match reply:
        case Failure(cause):
            yield finding("sentinel-down", node=node, call=call, cause=cause)
        case [list(), Failure(cause)]:
            yield finding("sentinel-quorum", node=node, call=call, service=service, cause=cause)
        case _ if isinstance(_primary(reply), Failure):
            yield finding("sentinel-service", node=node, call=call, service=service)


async def _in_cluster(url: str) -> Group:
    seeds, found = Seeds(url, port=6379).endpoints(), Group()
    for seed in seeds:
        match await replies_of(seed, ("CLUSTER", "INFO"), ("CLUSTER", "NODES")):
            case [info, bytes(nodes)] if isinstance(servers := _with_slots(nodes, seed), list):
                if not (isinstance(info, bytes) and b"cluster_state:ok" in info):
                    found.findings.append(finding("cluster-state", node=seed.address))
                found.servers = [(one, url) for one in servers]
                return found
            case [_, bytes()]:
                odd = finding("odd-reply", node=seed.address, command="CLUSTER NODES")
                found.findings.append(odd)
    found.servers = [(seed, url) for seed in seeds]
    return found


@reader
def _with_slots(nodes: bytes, seed: Endpoint) -> list[Endpoint]:
    found = []
    for words in map(str.split, nodes.decode("utf-8", "replace").splitlines()):
        if "fail" not in words[2] and len(words) > 8:  # it has slots, and a replica has none
            host, _, port = words[1].partition("@")[0].rpartition(":")
            found.append(seed.at(host or seed.host, int(port)))
    return found
