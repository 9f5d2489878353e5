"""What tools need of a manager: its nodes, and how keys begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._nodes.node import Node


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The nodes behind a manager."""

    nodes: Sequence[Node]
    quorum: int
    prefix: str
    """Prefix of every key."""
