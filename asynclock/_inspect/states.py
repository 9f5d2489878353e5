"""Events, latches and barriers seen from outside: state that nodes keep and no owner holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple


class StateView(NamedTuple):
    """What one node keeps of a state; texts come from outside, never print them raw."""

    node: str
    number: int = 0
    """Number of the last change that the node accepted; the highest one counts."""
    value: str | None = None
    remaining: float | None = None
    """Seconds until the node forgets the state."""
    now: int = 0
    """The node's clock, in µs."""
    error: str | None = None

    @classmethod
    def parse(cls, node: str, reply: Any) -> StateView:
        """Read the reply of register.lua to `inspect`."""
        _, number, value, pttl, now = reply
        text = value.decode("utf-8", "replace") if value else None
        return cls(node, number, text, pttl / 1000 if pttl >= 0 else None, now)


@dataclass(frozen=True, slots=True)
class SharedState:
    """What all nodes keep of one state."""

    name: str
    kind: str
    """"event", "latch" or "barrier"."""
    nodes: tuple[StateView, ...]
    quorum: int

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
        view = self.last
        if self.kind == "event":
            return {"set": view.value == "set"} if view.value in ("set", "clear") else None
        try:
            found = json.loads(view.value or "null")
        except ValueError:
            return None
        match self.kind, found:
            case "latch", [int(count), dict(done)] if _counts(done):
                return {"count": count, "remaining": max(0, count - sum(done.values()))}
            case "barrier", [int(parties), int(number), dict(here), list()] if _counts(here):
                waiting = sum(until > view.now for until in here.values())
                return {"parties": parties, "waiting": waiting, "round": number}
        return None

    @property
    def summary(self) -> str:
        """The state in words."""
        match self.state:
            case {"set": was_set}:
                words = "set" if was_set else "cleared"
            case {"count": count, "remaining": remaining}:
                words = f"{remaining} of {count} to go"
            case {"parties": parties, "waiting": waiting, "round": number}:
                words = f"{waiting} of {parties} wait for round {number + 1}"
            case _:
                words = "written by something else"
        return words if self.agreed else f"{words}, no quorum"

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


def _counts(found: dict[str, Any]) -> bool:
    return all(type(number) is int for number in found.values())
