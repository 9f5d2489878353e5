"""How people and programs see a lease: its title, its support among the nodes, its oddities."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .._engine.inspection import Inspection, NodeView

_LABEL = re.compile(r"(?P<host>.+?):(?P<pid>\d+)(?::(?P<task>.*))?", re.DOTALL)


def origin(label: str | None) -> dict[str, Any]:
    """Return host, process id and task of a label that the library made; else None for each."""
    match = _LABEL.fullmatch(label or "")
    if match is None:
        return {"host": None, "pid": None, "task": None}
    return {"host": match["host"], "pid": int(match["pid"]), "task": match["task"]}


def title(found: Inspection) -> str:
    """Return the name; for anything but a plain lock with kind and part."""
    if found.kind == "lock":
        return found.name
    return f"{found.name} [{' '.join(filter(None, (found.kind, found.part)))}]"


def support(found: Inspection) -> str:
    """Return how many of the nodes hold the lease for its owner, such as "2/3"."""
    owner = found.owner
    kept = sum(view.owner is not None and view.owner == owner for view in found.nodes)
    return f"{kept}/{len(found.nodes)}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the nodes agree on one lease."""

    owners: int
    """Number of different owners that nodes name: more than one is a real disagreement."""
    silent: int
    """Number of nodes that did not answer."""
    missing: int
    """Number of nodes that answered "free" while others name an owner."""
    undecided: bool
    """Whether the silent nodes could make up a quorum."""

    @classmethod
    def of(cls, found: Inspection) -> Agreement:
        """Count the views of all nodes."""
        owners = [view.owner for view in found.nodes if view.owner is not None]
        silent = sum(view.error is not None for view in found.nodes)
        most = max((owners.count(one) for one in set(owners)), default=0)
        return cls(
            len(set(owners)),
            silent,
            len(found.nodes) - silent - len(owners) if owners else 0,
            most < found.quorum <= most + silent,
        )


def note(found: Inspection) -> str:
    """Return what is unusual about a lease."""
    agreement, size = Agreement.of(found), len(found.nodes)
    notes = []
    if agreement.undecided:
        notes.append(f"unknown: {size - agreement.silent} of {size} nodes answered")
    elif agreement.owners and found.owner is None:
        notes.append("no quorum")
    if agreement.owners > 1:
        notes.append("nodes disagree")
    if agreement.missing:
        notes.append(f"not on {agreement.missing} of {size} nodes")
    if any(view.owner is not None and view.remaining is None for view in found.nodes):
        notes.append("a key without ttl")
    return ", ".join(notes)


def leading(found: Inspection) -> NodeView | None:
    """Return a view of the owner that most nodes name."""
    owners = [view.owner for view in found.nodes if view.owner is not None]
    most = max(owners, key=owners.count, default=None)
    return next((view for view in found.nodes if view.owner == most and most is not None), None)


def as_json(found: Inspection) -> dict[str, Any]:
    """Return a lease as docs/json.md describes it."""
    agreement = Agreement.of(found)
    return {
        "name": found.name,
        "kind": found.kind,
        "part": found.part or None,
        "held": found.owner is not None,
        "owner": found.owner,
        "holder": found.holder,
        **origin(found.holder),
        "fence": found.fence or None,
        "remaining": found.remaining,
        "agreed": found.agreed,
        "conflict": agreement.owners > 1,
        "silent": agreement.silent,
        "missing": agreement.missing,
        "quorum": found.quorum,
        "nodes": [
            {
                "node": view.node,
                "owner": view.owner,
                "holder": view.holder,
                "remaining": view.remaining,
                "fence": view.fence or None,
                "error": view.error,
            }
            for view in found.nodes
        ],
    }
