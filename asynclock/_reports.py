"""What a manager says of itself: how its nodes are, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How one node is, as this manager sees it."""

    node: str
    state: str
    """"up", "connecting", "stalled", "down", "quarantined" (a guard) or "rejected"."""
    cause: str
    """Why it is not up; "" when it is."""
    votes_in: float
    """Seconds until a guard lets it vote again; 0 when it may."""
    round_trip: float | None
    """Smoothed seconds from question to answer; None before the first."""
    version: str | None
    role: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a manager has done since it was made, and what it does now."""

    held: int
    """Leases that are held now."""
    waiting: int
    """Tasks that ask the nodes now, or wait for their turn to."""
    acquired: int
    """Leases that were granted, hand-overs included."""
    released: int
    """Leases that their holders gave back."""
    lost: int
    """Leases that ended against the will of their holders."""
    renewed: int
    """Renewals that reached a quorum."""
    attempts: int
    """Votes that were asked for: several per acquire if others have it."""
    refused: int
    """Attempts after which the caller had to wait, or was told that somebody else has it."""
    split_votes: int
    """Attempts that nobody won, because rivals asked at once."""
    write_backs: int
    """Acquires that needed a second round trip because the nodes' counters disagreed."""
    handovers: int
    """Leases that passed from task to task of this process."""
    wakeups: dict[str, int]
    """Ends of waits by cause: "push" (a server's), "expiry" (the holder's ttl was over), "pacing"
    (time to ask again), "turn" (in the local line)."""
