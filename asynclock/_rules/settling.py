"""Decides when a call that nobody made wait may give up: somebody else must have the name.

Rivals that ask at the same moment may each get some of the nodes, and nobody a quorum. If each of
them gave up, the name would stay free. So a call that was refused takes a ticket and asks again
until it knows that somebody has the name. That is so if a quorum of the nodes names one owner, or
if a node still names an owner for whom it is too late to give the name back: each attempt has an
owner of its own, and gives back what it got as soon as it is lost. A ticket that goes first is no
reason to give up: its waiter may give up for ours at the same moment (tests/model: B17).
"""

from __future__ import annotations

from collections.abc import Sequence

SETTLING = 4.0
"""Maximum number of node timeouts from a call until it gives up, though nobody has the name."""
STEADY = 1.5
"""Number of node timeouts after which an owner that a node still names gives nothing back: its
attempt takes one, and its release less than half of one where latencies are a quarter at most."""


class Owners:
    """The owners that the nodes have named in one refusal after the other."""

    __slots__ = ("_quorum", "_seen", "_steady")

    def __init__(self, quorum: int, node_timeout: float) -> None:
        self._quorum = quorum
        self._steady = STEADY * node_timeout
        self._seen: dict[str, float] = {}
        """When each of the owners was first named."""

    def has_one(self, named: Sequence[str], asked: float, now: float) -> bool:
        """Note a refusal, and return whether one of the owners has the name.

        Args:
            named: for each node that refused because of an owner: that owner.
            asked: when the nodes were asked.
            now: when they have answered.
        """
        return any(
            named.count(owner) >= self._quorum
            or asked - self._seen.setdefault(owner, now) >= self._steady
            for owner in named
        )

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()
