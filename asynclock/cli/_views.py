"""What people and programs see of a holding."""

from __future__ import annotations

import re
from typing import Any

from .._engine.inspection import Inspection, NodeView

_LABEL = re.compile(r"(?P<host>.+?):(?P<pid>\d+)(?::(?P<task>.*))?", re.DOTALL)


def origin(label: str | None) -> dict[str, Any]:
    """Host, process id and task in a label that the library made; None where it is another."""
    match = _LABEL.fullmatch(label or "")
    if match is None:
        return {"host": None, "pid": None, "task": None}
    return {"host": match["host"], "pid": int(match["pid"]), "task": match["task"]}


def seconds(value: float | None) -> str:
    """A time for a table."""
    return "" if value is None else f"{value:.1f} s"


def title(found: Inspection) -> str:
    """Its name, with kind and part where it is no plain lock."""
    if found.kind == "lock":
        return found.name
    return f"{found.name} [{' '.join(filter(None, (found.kind, found.part)))}]"


def support(found: Inspection) -> str:
    """How many nodes keep it for its owner, of how many."""
    owner = found.owner
    kept = sum(view.owner is not None and view.owner == owner for view in found.nodes)
    return f"{kept}/{len(found.nodes)}"


def note(found: Inspection) -> str:
    """What is unusual about it."""
    notes = []
    if found.owner is None and any(view.owner for view in found.nodes):
        notes.append("no quorum")
    if not found.agreed:
        notes.append("nodes disagree")
    if any(view.owner is not None and view.remaining is None for view in found.nodes):
        notes.append("a key without ttl")
    return ", ".join(notes)


def leading(found: Inspection) -> NodeView | None:
    """The view of the owner with the most nodes."""
    owners = [view.owner for view in found.nodes if view.owner is not None]
    most = max(owners, key=owners.count, default=None)
    return next((view for view in found.nodes if view.owner == most and most is not None), None)


def as_json(found: Inspection) -> dict[str, Any]:
    """One holding as plain data."""
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
