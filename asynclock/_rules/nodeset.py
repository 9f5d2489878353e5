"""The record of a fleet's set of nodes, which the nodes keep, and the steps that change it.

Rules of this file:
- A step leads to a set that differs by one node (`apart`). While it is open, both sets may be used:
  majorities of the two share a node, so clients of both sets exclude each other.
- A step is closed before the next one begins: clients of one of its two sets are refused, and all
  of their leases end. tests/model/nodeset.hpp shows two holders for each shortcut.
- Nodes are named by what the record calls them. Clients may reach a node by another address.
Reasons: docs/decisions/0025.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ..errors import ConfigurationError

FEWEST: Final = 3
"""Minimum number of nodes of a set that steps can change; no client may use two nodes."""
SETTLED: Final = "settled"
"""Phase: all clients use the same nodes."""
OPEN: Final = "open"
"""Phase: clients use the nodes, or the other set of the step."""
CLOSING: Final = "closing"
"""Phase: clients of the other set are refused; leases that they won before may still be held."""

Names = tuple[str, ...]


class Copy(NamedTuple):
    """One node's copy of the record."""

    number: int = 0
    """The number of the change that the node accepted last; 0 without a record."""
    text: str = ""
    name: str = ""
    """What the record calls this node; "" if the node was not told."""


NOTHING: Final = Copy()


@dataclass(frozen=True, slots=True)
class NodeSet:
    """The record: which sets of nodes clients may use."""

    epoch: int
    """Rises with each change of what clients may use. While it is 0, nobody is refused."""
    nodes: Names
    other: Names = ()
    """The other set of a step that is open or closing."""
    phase: str = SETTLED

    @classmethod
    def parse(cls, text: str) -> NodeSet | None:
        """Return the record in a text from a node; None if it is none."""
        try:
            found = json.loads(text)
            nodes, other = (tuple(map(str, found[key])) for key in ("nodes", "other"))
            return cls(int(found["epoch"]), nodes, other, str(found["phase"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def text(self) -> str:
        """Return the record as the nodes keep it."""
        return json.dumps(
            {"epoch": self.epoch, "nodes": self.nodes, "other": self.other, "phase": self.phase}
        )

    @property
    def usable(self) -> tuple[Names, ...]:
        """The sets that clients may use now."""
        return (self.nodes, self.other) if self.phase == OPEN else (self.nodes,)

    def allows(self, names: Sequence[str | None]) -> bool:
        """Return whether a client may use these nodes; None stands for a node not met yet."""
        met = [name for name in names if name is not None]
        return len(set(met)) == len(met) and any(
            len(one) == len(names) and set(met) <= set(one) for one in self.usable
        )

    # steps

    def known_to(self, ours: Names) -> NodeSet:
        """Return the record. Raises ConfigurationError unless an operator's nodes are in it."""
        if set(ours) not in (set(self.nodes), set(self.other)):
            raise ConfigurationError(
                f"the nodes given are {shown(ours)}; the record (epoch {self.epoch}) has "
                + " and ".join(map(shown, filter(None, (self.nodes, self.other))))
            )
        return self

    def enforced(self) -> NodeSet:
        """Return the record with which clients that differ are refused."""
        return self if self.epoch else replace(self, epoch=1)

    def adding(self, name: str) -> NodeSet:
        """Open the step that adds a node. Raises ConfigurationError."""
        return self.begin((*(one for one in self.nodes if one != name), name))

    def removing(self, name: str) -> NodeSet:
        """Open the step that removes a node. Raises ConfigurationError."""
        if name not in self.nodes:
            raise ConfigurationError(f"{name} is not one of {shown(self.nodes)}")
        return self.begin(tuple(one for one in self.nodes if one != name))

    def removes(self, name: str) -> bool:
        """Return whether a step is under way that removes the node, or the reverse of it."""
        return self.phase != SETTLED and name in set(self.nodes) ^ set(self.other)

    def begin(self, target: Names) -> NodeSet:
        """Open the step to `target`. A step that is open already stays as it is.

        A step that is closing opens again. Raises ConfigurationError.
        """
        under_way = self.phase != SETTLED and set(target) == set(self.other)
        if self.phase == OPEN and under_way:
            return self
        if self.phase != SETTLED and not under_way:
            raise ConfigurationError(
                f"another step is {self.phase}, between {shown(self.nodes)} and "
                f"{shown(self.other)}: finish it or take it back first"
            )
        check_step(self.nodes, target)
        return NodeSet(self.epoch + 1, self.nodes, target, OPEN)

    def finish(self) -> NodeSet:
        """Refuse clients of the old set. Raises ConfigurationError without a step."""
        if self.phase == CLOSING:
            return self
        self._need_step()
        return NodeSet(self.epoch + 1, self.other, self.nodes, CLOSING)

    def back(self) -> NodeSet:
        """Refuse clients of the new set. Raises ConfigurationError if no step is open."""
        self._need_step()
        if self.phase == CLOSING:
            raise ConfigurationError(
                f"the step is closing already: finish it, or begin the step to {shown(self.other)}"
            )
        return replace(self, epoch=self.epoch + 1, phase=CLOSING)

    def settle(self) -> NodeSet:
        """End a step whose other set can have no lease any more."""
        return NodeSet(self.epoch, self.nodes)

    def _need_step(self) -> None:
        if self.phase == SETTLED:
            raise ConfigurationError(f"no step is open: the set is {shown(self.nodes)}")


def check_step(nodes: Names, target: Names) -> None:
    """Raise ConfigurationError unless a step may lead from `nodes` to `target`."""
    if len(set(target)) < len(target) or not apart(nodes, target):
        raise ConfigurationError(
            f"a step adds or removes one node: {shown(nodes)} and {shown(target)} differ by more"
            if set(nodes) != set(target)
            else f"the set is {shown(nodes)} already"
        )
    if min(len(nodes), len(target)) < FEWEST:
        raise ConfigurationError(
            f"a set that changes has at least {FEWEST} nodes, and {shown(target)} or "
            f"{shown(nodes)} has fewer: stop all clients, wait one max_ttl, start with the new set"
        )


def apart(nodes: Names, target: Names) -> bool:
    """Return whether the sets differ by exactly one node, which one of them has more."""
    return len(set(nodes) ^ set(target)) == 1


def shown(names: Sequence[str | None]) -> str:
    """Return a set of nodes as text for people."""
    return "{" + ", ".join(name or "?" for name in names) + "}"
