"""Decides from jumps of the nodes' clocks by how much sooner leases end.

When all nodes seem to jump, our own clock stood still. When only some nodes jump, their own clocks
moved, and their keys end sooner. In both cases a lease ends when too few nodes keep it for a
quorum. Each jump counts once, in whatever order the nodes report jumps.
"""

from __future__ import annotations

from .trust import JUMP

SAME_MOMENT = 1.0
"""Seconds within which reported jumps may have happened at the same time."""


class StandStill:
    """Keeps by how much each node's clock has jumped ahead without shortening the leases yet."""

    __slots__ = ("_ahead", "_spare", "_told")

    def __init__(self, size: int, quorum: int) -> None:
        self._spare = size - quorum
        self._ahead = [0.0] * size
        """Seconds per node; negative if leases were shortened before this node reported a jump."""
        self._told = [0.0] * size

    def jumped(self, node: int, by: float, now: float) -> float:
        """Count a jump of `node` by `by` seconds; return by how many seconds leases end sooner."""
        ahead, told = self._ahead, self._told
        for other, at in enumerate(told):
            if now - at >= SAME_MOMENT:
                ahead[other] = 0.0
        if by > 0:  # a clock that was set back keeps keys for longer
            ahead[node] += by
            told[node] = now
        sooner = sorted(ahead, reverse=True)[self._spare]
        if sooner <= JUMP:
            return 0.0
        self._ahead = [one - sooner for one in ahead]
        self._told = [now] * len(told)
        return sooner

    def silent(self, node: int) -> list[int]:
        """Return the nodes that reported less than `node`, and should be asked for their time."""
        most = self._ahead[node]
        return [other for other, ahead in enumerate(self._ahead) if ahead < most]
