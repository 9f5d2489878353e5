"""Events, latches and barriers seen from outside: state that nodes keep and no owner holds."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from .._primitives.register import State, StateView
from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SharedState:
    """What all nodes keep of one state."""

    name: str
    part: State
    nodes: tuple[StateView, ...]
    quorum: int

    @property
    def kind(self) -> str:
        """The kind of primitive: "event", "latch" or "barrier"."""
        return self.part.suffix

    @property
    def last(self) -> StateView:
        """The view with the last known change; another change may be under way."""
        return max(self.nodes, key=lambda view: view.number)

    @property
    def support(self) -> int:
        """Number of nodes that know the last change."""
        return sum(view.number == self.last.number for view in self.nodes)

    @property
    def agreed(self) -> bool:
        """Whether a quorum knows the last change."""
        return self.support >= self.quorum

    @property
    def state(self) -> dict[str, Any] | None:
        """The state as JSON; None if something other than this library wrote the value."""
        return self._described[0]

    @property
    def summary(self) -> str:
        """The state in words."""
        words = self._described[1]
        return words if self.agreed else f"{words}, no quorum"

    @property
    def _described(self) -> tuple[dict[str, Any] | None, str]:
        view = self.last
        with contextlib.suppress(ConfigurationError):
            if view.value is not None:
                return self.part.describe(view.value, view.now)
        return None, "written by something else"

    def as_json(self) -> dict[str, Any]:
        """Return the state as docs/json.md describes it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "remaining": self.last.remaining,
            "agreed": self.agreed,
            "quorum": self.quorum,
            "nodes": [
                {key: getattr(view, key) for key in ("node", "value", "remaining", "error")}
                for view in self.nodes
            ],
        }
