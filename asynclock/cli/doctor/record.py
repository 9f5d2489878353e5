"""Checks of the record of the fleet's set of nodes: who differs from it, and who lags behind."""

from __future__ import annotations

from collections.abc import Sequence

from ..._nodes.set_guard import FLEET
from ..._rules.nodeset import NOTHING, OPEN, SETTLED, NodeSet, shown
from ...fleet import clients_of
from .findings import Call, Found, about, finding
from .probe import Probe, Purpose

CLIENTS_NAMED = 20
"""Maximum number of clients that a finding names."""


def record(groups: Sequence[Sequence[Probe]], purpose: Purpose) -> Found:
    """All nodes keep the same record, and all clients use the nodes in it."""
    ours = Call(lambda words: f"asynclock {words} {purpose.options}".rstrip())
    servers = [server for group in groups for server in group if server.down is None]
    newest = max((server.kept for server in servers), default=NOTHING)
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
        if server.kept.number < newest.number:
            kept = NodeSet.parse(server.kept.text)
            what = "no record" if kept is None else f"epoch {kept.epoch} of the record"
            yield about(server, "set-lags", what=what, epoch=known.epoch)
    yield from _clients(known, servers)


def _name(group: Sequence[Probe]) -> str | None:
    """Return what the record calls a node; None if it could not be asked."""
    met = next((server for server in group if server.down is None), None)
    return None if met is None else met.kept.name or met.address


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
