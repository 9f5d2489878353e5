"""What tools need of a manager: its nodes, and how keys begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._engine.engine import Engine
from .._nodes.node import Node


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The nodes behind a manager."""

    engine: Engine
    nodes: Sequence[Node]
    quorum: int
    prefix: str
    """Prefix of every key."""

    @classmethod
    def of(cls, engine: Engine, prefix: str) -> NodeAccess:
        """Return the nodes of `engine`, which connect now if they have not yet.

        Raises ConfigurationError if the engine is closed or its nodes can never work.
        """
        engine.ready()
        return cls(engine, engine.multiplexer.nodes, engine.multiplexer.quorum, prefix)
