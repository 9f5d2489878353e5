"""How people and programs see a lease: its title, its support among the nodes, its oddities."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .._engine.inspection import MOST_WAITERS, Inspection, NodeView, Waiter
from .._engine.spec import rests

_LABEL = re.compile(r"(?P<host>.+?):(?P<pid>\d+)(?::(?P<task>.*))?", re.DOTALL)


@lru_cache(maxsize=1000)  # thousands of locks may have the same few holders
def origin(label: str | None) -> Mapping[str, Any]:
    """Return host, process id and task of a label that the library made; else None for each."""
    match = _LABEL.fullmatch(label or "")
    if match is None:
        return {"host": None, "pid": None, "task": None}
    return {"host": match["host"], "pid": int(match["pid"]), "task": match["task"]}


def seconds(value: float | None) -> str:
    """Return a duration for people, such as "9.0 s", "4m 10s" or "2d 3h"; "" for None."""
    if value is None:
        return ""
    whole = int(value)
    for size, unit, part, name in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // part}{name}"
    return f"{value:.1f} s"


def title(found: Inspection) -> str:
    """Return the name; for anything but a plain lock with kind and part."""
    if found.kind == "lock":
        return found.name
    return f"{found.name} [{' '.join(filter(None, (found.kind, found.part)))}]"


MANY = MOST_WAITERS // 2
"""From this number on, more may wait: dead ones may be among those that a node was asked for."""


def number(waiting: Sequence[Waiter]) -> str:
    """Return how many wait, in words."""
    return f"{len(waiting)}{' or more' * (len(waiting) >= MANY)}"


def queued(waiting: Sequence[Waiter]) -> str:
    """Return how many wait, as a note; "" if nobody does."""
    return f"{number(waiting)} waiting" if waiting else ""


def queue_as_json(waiting: Sequence[Waiter]) -> list[dict[str, Any]]:
    """Return those who wait, first one first, as docs/json.md describes them."""
    return [
        {
            "ticket": one.ticket,
            "label": one.label,
            **origin(one.label),
            "since": one.since,
            "woken": one.woken,
        }
        for one in waiting
    ]


class Agreement(NamedTuple):
    """How far the nodes agree on one lease; counted once, because a list may have thousands."""

    size: int
    """Number of nodes."""
    leading: NodeView | None
    """A view of the owner that most nodes name."""
    agreeing: int
    """Number of nodes that name that owner."""
    held: bool
    """Whether these nodes are a quorum."""
    owners: int
    """Number of different owners that nodes name: more than one is a real disagreement."""
    silent: int
    """Number of nodes that did not answer."""
    missing: int
    """Number of nodes that answered "free" while others name an owner."""
    undecided: bool
    """Whether the silent nodes could make up a quorum."""
    endless: bool
    """Whether a node keeps the lock without a ttl."""

    @classmethod
    def of(cls, found: Inspection) -> Agreement:
        """Count the views of all nodes."""
        size, quorum = len(found.nodes), found.quorum
        first = found.nodes[0]
        for view in found.nodes:
            if view.owner != first.owner or view.remaining is None:
                break
        else:  # nearly all leases
            return cls(size, first, size, True, 1, 0, 0, False, False)
        naming = [view for view in found.nodes if view.owner is not None]
        owners = [view.owner for view in naming]
        different = len(set(owners))
        leading = naming[0] if naming else None
        if different > 1:
            leading = max(naming, key=lambda view: owners.count(view.owner))
        agreeing = owners.count(leading.owner) if leading else 0
        silent = sum([view.error is not None for view in found.nodes])
        return cls(
            size,
            leading,
            agreeing,
            agreeing >= quorum,
            different,
            silent,
            size - silent - len(owners) if owners else 0,
            agreeing < quorum <= agreeing + silent,
            None in [view.remaining for view in naming],
        )

    @property
    def support(self) -> str:
        """How many of the nodes hold the lease for its owner, such as "2/3"."""
        return f"{self.agreeing if self.held else 0}/{self.size}"

    @property
    def note(self) -> str:
        """What is unusual about the lease."""
        unknown = f"unknown: {self.size - self.silent} of {self.size} nodes answered"
        missing = f"not on {self.missing} of {self.size} nodes"
        at_rest = "rests" * rests(self.leading.owner if self.leading else None)
        notes = [at_rest, unknown * self.undecided, self.odd, missing * bool(self.missing)]
        return ", ".join(filter(None, notes))

    @property
    def odd(self) -> str:
        """What is wrong about the lease, whatever nodes are silent or were away."""
        notes = []
        if self.owners and not self.held and not self.undecided:
            notes.append("no quorum")
        if self.owners > 1:
            notes.append("nodes disagree")
        if self.endless:
            notes.append("a key without ttl")
        return ", ".join(notes)


def as_json(found: Inspection) -> dict[str, Any]:
    """Return a lease as docs/json.md describes it."""
    agreement = Agreement.of(found)
    view = agreement.leading if agreement.held else None
    holder = view.holder if view else None
    return {
        "name": found.name,
        "kind": found.kind,
        "part": found.part or None,
        "held": agreement.held,
        "rests": found.rests,
        "owner": view.owner if view else None,
        "holder": holder,
        **origin(holder),
        "message": found.message,
        "since": found.since if agreement.held else None,
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
