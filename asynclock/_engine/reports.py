"""What a manager reports without asking the nodes: their health, its waiters, its counts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from .. import _clock
from .engine import Engine


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
    """Number of leases that their holders released, including those that had been lost unseen."""
    lost: int
    """Number of leases that were lost, including those whose loss only their release showed."""
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
    """Number of waits that ended before the call's timeout, by cause: "push" (from a server),
    "expiry" (the holder's ttl was over), "pacing" (time to ask again), "turn" (in the local
    queue)."""


def health(engine: Engine) -> tuple[NodeHealth, ...]:
    """Return the health of each node."""
    now = _clock.now()
    found = []
    for node in engine.multiplexer.nodes:
        facts = node.trust.facts
        found.append(
            NodeHealth(
                node=node.address,
                state=node.state(now),
                cause=node.cause(now),
                votes_in=max(0.0, node.votes_from - now),
                round_trip=node.round_trip,
                version=facts.version if facts else None,
                role=facts.role if facts else None,
            )
        )
    return tuple(found)


def waits(engine: Engine) -> dict[str, list[float]]:
    """Return for each name that is held now how long each task that waits for it has waited."""
    # Another thread may ask: it copies each collection in one step.
    now, found = _clock.now(), defaultdict[str, list[float]](list)
    for loop in list(engine.loops):
        if loop.refused:
            found[loop.name].append(now - loop.since)
    for queue in list(engine.queues.values()):
        for _, since in list(queue.waiters.values()):
            found[queue.name].append(now - since)
    return {name: sorted(each, reverse=True) for name, each in found.items()}


def statistics(engine: Engine, held: int) -> Statistics:
    """Return the counts of a manager that holds `held` leases."""
    counts = engine.counts
    return Statistics(
        held=held,
        waiting=len(engine.loops)
        + engine.asking
        + sum(len(queue.waiters) for queue in engine.queues.values()),
        acquired=counts.acquired,
        released=counts.released,
        lost=counts.lost,
        renewed=counts.renewed,
        attempts=counts.attempts,
        refused=counts.refused,
        split_votes=counts.split_votes,
        write_backs=counts.write_backs,
        handovers=counts.handovers,
        wakeups=dict(counts.wakeups),
    )
