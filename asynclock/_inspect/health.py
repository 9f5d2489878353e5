"""What the health of the nodes means for locks, in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .._engine.engine import NodeHealth
from .._rules.quorum import majority


@dataclass(frozen=True, slots=True)
class Trouble:
    """Some nodes have no vote."""

    level: str
    """"red": nothing can be locked. "amber": locks work, with fewer nodes to lose."""
    text: str


def trouble(nodes: Sequence[NodeHealth]) -> Trouble | None:
    """Describe the effect of the nodes without a vote; None if every node votes."""
    lost = Counter(node.state for node in nodes if node.state != "up")
    if not lost:
        return None
    up, quorum = len(nodes) - lost.total(), majority(len(nodes))
    states = ", ".join(f"{count} {state}" for state, count in sorted(lost.items()))
    begin = f"{lost.total()} of {len(nodes)} nodes without a vote ({states})"
    if up < quorum:
        return Trouble("red", f"{begin}: nothing can be locked, and no lease can be renewed")
    spare = up - quorum
    rest = f"{spare} more may fail" if spare else "if one more fails, nothing can be locked"
    return Trouble("amber", f"{begin}: locks work; {rest}")
