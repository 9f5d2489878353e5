"""The reports of a manager: the health of its nodes, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node, as this manager sees it."""

    node: str
    state: str
    """"up", "connecting", "stalled", "down", "quarantined" (a guard) or "rejected"."""
    cause: str
    """Why the node is not up, or the error that it gave instead of its last vote; otherwise ""."""
    votes_in: float
    """Seconds until the node may vote again; 0 if it may vote now."""
    round_trip: float | None
    """Smoothed seconds from a request to its reply; None before the first reply."""
    version: str | None
    role: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """Present numbers of a manager, and its counts since it was made."""

    held: int
    """Number of leases held now."""
    waiting: int
    """Number of tasks that ask the nodes now or wait in a local queue."""
    acquired: int
    """Number of leases granted, including hand-overs."""
    released: int
    """Number of leases that their holders released."""
    lost: int
    """Number of leases that were lost."""
    renewed: int
    """Number of renewals that reached a quorum."""
    attempts: int
    """Number of votes; an acquire needs several if others have the lock."""
    refused: int
    """Number of attempts that failed because others had the lock."""
    split_votes: int
    """Number of attempts that no one won because rivals asked at the same time."""
    write_backs: int
    """Number of acquires with a second round trip because the nodes' counters disagreed."""
    handovers: int
    """Number of leases handed over between tasks of this process."""
    wakeups: dict[str, int]
    """Number of ended waits by cause: "push" (from a server), "expiry" (the holder's ttl was over),
    "pacing" (time to ask again), "turn" (in the local queue)."""
