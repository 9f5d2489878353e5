"""`asynclock doctor`: checks whether nodes are fit for locks, and says what fixes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..._nodes.replicated.acks import Acks
from .._options import (
    ConfigOption,
    MaxTtlOption,
    NodeOption,
    NodeTimeoutOption,
    PrefixOption,
)
from .._output import console, print_json, print_table
from .._sources import Settings, load, repeated
from .._text import clean
from .checkup import examine
from .findings import Finding, Severity
from .groups import resolve
from .probe import Probe, Purpose, probe
from .trial import use_everything

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    watch: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, max=60, help="Time to watch clocks.")
    ] = 1.0,
    max_ttl: MaxTtlOption = None,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: NodeTimeoutOption = None,
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
    settings = load(node, config, prefix=prefix, node_timeout=node_timeout)
    again = repeated(node, config, prefix, max_ttl)
    servers, findings = asyncio.run(_examine(settings, watch, max_ttl, again))
    if json:
        print_json(_as_json(servers, findings))
    else:
        _print(servers, findings)
    return int(max((finding.severity for finding in findings), default=Severity.NOTE))


async def _examine(
    settings: Settings, watch: float, max_ttl: float | None, again: str
) -> tuple[list[Probe], list[Finding]]:
    options = settings.options
    longest = max_ttl or options.get("max_ttl") or max(options.get("ttl", 10.0), 10.0)
    purpose = Purpose(
        nodes=len(settings.nodes),
        max_ttl=float(longest),
        node_timeout=float(options.get("node_timeout", 0.25)),
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
    findings = [finding for group in groups for finding in group.findings]
    servers = [server for group in found for server in group]
    return servers, findings + examine(found, purpose)


async def _try(settings: Settings, url: str, servers: Sequence[Probe], purpose: Purpose) -> None:
    """Take locks on a node, unless the findings already say why that can't work."""
    known = [finding for finding in examine([servers], purpose) if finding.node]
    if servers and all(finding.severity < Severity.ERROR for finding in known):
        servers[0].unusable = await use_everything(settings, url)


def _print(servers: Sequence[Probe], findings: Sequence[Finding]) -> None:
    titles = (
        "node",
        "version",
        "role",
        "up for",
        "round trip",
        "clock",
        "keeps",
        "counters",
        "epoch",
        "vote",
    )
    print_table(titles, [_row(server) for server in servers])
    out = console()
    for finding in findings:
        _print_finding(out, finding)
    count = Counter(finding.severity for finding in findings)
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


def _print_finding(out: Console, finding: Finding) -> None:
    out.print()
    where = f"{finding.node}: " if finding.node else ""
    out.print(
        Text.assemble(
            (f"{finding.severity.name.lower():8}", _STYLES[finding.severity]),
            clean(f"{where}{finding.what}"),
            (f"  [{finding.code}]", "dim"),
        ),
        soft_wrap=not out.is_terminal,
    )
    for word, text in (("why", finding.why), ("fix", finding.fix)):
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
        "findings": [
            {
                "code": finding.code,
                "severity": finding.severity.name.lower(),
                "node": finding.node or None,
                "what": finding.what,
                "why": finding.why,
                "fix": finding.fix,
            }
            for finding in findings
        ],
    }
