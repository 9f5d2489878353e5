"""The options of a lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HandOff = Literal["block", "strict"] | bool


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Options of a lease, validated where the lock is made; times in seconds."""

    ttl: float
    renew: bool = True
    max_hold: float | None = None
    interrupt: bool = True
    handoff: HandOff = True
