"""Events, latches and barriers seen from outside: state that nodes keep and nobody holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple


class Said(NamedTuple):
    """What one node says of a register; texts come from outside, never print them raw."""

    node: str
    number: int = 0
    """Of the change that it took last; the highest one counts."""
    value: str | None = None
    remaining: float | None = None
    """Seconds until it forgets it."""
    now: int = 0
    """Its clock, in µs."""
    error: str | None = None

    @classmethod
    def of(cls, node: str, reply: Any) -> Said:
        """From the reply of register.lua to `inspect`."""
        _, number, value, pttl, now = reply
        text = value.decode("utf-8", "replace") if value else None
        return cls(node, number, text, pttl / 1000 if pttl >= 0 else None, now)


@dataclass(frozen=True, slots=True)
class SharedState:
    """What all nodes say of one."""

    name: str
    kind: str
    """"event", "latch" or "barrier"."""
    nodes: tuple[Said, ...]
    quorum: int

    @property
    def last(self) -> Said:
        """Who knows of the last change; another one may be under way."""
        return max(self.nodes, key=lambda said: said.number)

    @property
    def support(self) -> int:
        """How many nodes know of it."""
        return sum(said.number == self.last.number for said in self.nodes)

    @property
    def agreed(self) -> bool:
        """Whether a quorum does."""
        return self.support >= self.quorum

    @property
    def state(self) -> dict[str, Any] | None:
        """What it means; None where something else has written it."""
        said = self.last
        if self.kind == "event":
            return {"set": said.value == "set"} if said.value in ("set", "clear") else None
        try:
            found = json.loads(said.value or "null")
        except ValueError:
            return None
        match self.kind, found:
            case "latch", [int(count), dict(done)] if _counts(done):
                return {"count": count, "remaining": max(0, count - sum(done.values()))}
            case "barrier", [int(parties), int(number), dict(here), list()] if _counts(here):
                waiting = sum(until > said.now for until in here.values())
                return {"parties": parties, "waiting": waiting, "round": number}
        return None

    @property
    def summary(self) -> str:
        """The same in words."""
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
        """As plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "remaining": self.last.remaining,
            "agreed": self.agreed,
            "quorum": self.quorum,
            "nodes": [
                {
                    "node": one.node,
                    "value": one.value,
                    "remaining": one.remaining,
                    "error": one.error,
                }
                for one in self.nodes
            ],
        }


def _counts(found: dict[str, Any]) -> bool:
    return all(type(number) is int for number in found.values())
