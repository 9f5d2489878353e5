"""Turns the answers of N nodes into one verdict and the fence that goes with it.

Rules of this file:
- A node answers once: granted (with the fence it gave out), refused, or unknown. Unknown never
  counts as one of the other two: the node may hold our key.
- A lease with fence v is won as soon as a quorum of grants claims the same v. If the quorum
  disagrees, the largest claim is written back to the nodes below it (`behind`), and the lease is
  won with that claim once a quorum claims it. Taking the maximum alone would repeat fences.
- The verdict comes at the first moment it is certain. After the last answer it is never open;
  tests/rules/ proves that by enumeration.
Protocol and its model: docs/fencing.md, tests/model/.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Verdict(enum.Enum):
    """What the answers so far mean."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority(size: int) -> int:
    """Return the smallest number of nodes such that any two sets of that size share a node."""
    return size // 2 + 1


class Ballot:
    """Counts the answers of `size` nodes to one attempt and keeps the verdict."""

    def __init__(self, size: int, quorum: int) -> None:
        self.quorum: int = quorum
        self.open: int = size
        """Number of nodes that have not yet answered an acquire or a write-back."""
        self.claims: dict[int, int] = {}
        """The fence that each granting node claims."""
        self.refused: int = 0
        self.unknown: int = 0
        self.fence: int = 0
        """The fence that was agreed or is being written back; 0 before either."""
        self.verdict: Verdict = Verdict.OPEN
        self._support = 0
        """Number of claims for `fence`."""
        self.behind: Sequence[int] = ()
        """The nodes to which `fence` must now be written back; `take_behind` empties this."""

    def granted(self, node: int, fence: int) -> None:
        """Count that `node` granted the lock to our owner and gave out `fence`."""
        self.open -= 1
        self.claims[node] = fence
        if fence == self.fence:
            self._support += 1
        elif self.fence:
            if fence < self.fence:
                self._write_back((node,))
        elif len(self.claims) >= self.quorum:
            self._agree()
        self._conclude()

    def raised(self, node: int) -> None:
        """Count that `node` accepted the fence that was written back."""
        self.open -= 1
        self.claims[node] = self.fence
        self._support += 1
        self._conclude()

    def refuse(self) -> None:
        """Count a node that keeps the name for another owner, or that refused a write-back."""
        self.open -= 1
        self.refused += 1
        self._conclude()

    def abstain(self) -> None:
        """Count a node that gave no usable answer."""
        self.open -= 1
        self.unknown += 1
        self._conclude()

    def take_behind(self) -> Sequence[int]:
        """Empty `behind` and return the nodes that were in it."""
        nodes, self.behind = self.behind, ()
        return nodes

    def _agree(self) -> None:
        self.fence = max(self.claims.values())
        behind = tuple(node for node, claim in self.claims.items() if claim < self.fence)
        self._write_back(behind)
        self._support = len(self.claims)

    def _write_back(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            del self.claims[node]
            self.open += 1
        self.behind = (*self.behind, *nodes)

    def _conclude(self) -> None:
        if self._support >= self.quorum:
            self.verdict = Verdict.WON
        elif (self._support if self.fence else len(self.claims)) + self.open < self.quorum:
            self.verdict = Verdict.LOST


# ---- Which answers count when nodes are asked for a value that some of them may have forgotten ---
# The answer of a node that holds a value always counts. The answer "nothing" counts if the node has
# kept its memory for longer than values are kept, or since before the newest value on another node
# was written: the writer of that value had asked a majority. Any other node may have lost the
# value, until a change writes it there again.


SLACK = 1_000_000
"""Maximum harmless difference between the clocks of two nodes, in microseconds."""


def surely_empty(since: float, newest: int) -> bool:
    """Return whether a node that has forgotten nothing since `since` would know the newest value.

    Both are in microseconds. `newest` is the number of the newest value that other nodes hold: the
    time of its writing, or a little more.
    """
    return since + SLACK <= newest


def countable(size: int, *, sure: int, unsure: int, missing: int) -> int:
    """Return how many of the answers so far count towards a majority of `size` nodes.

    `unsure` nodes may have forgotten a value. They count only when no more answers can come: if
    every node has answered, or if no answer is sure, as in a deployment that was just started.
    """
    if not missing and (sure + unsure == size or not sure):
        return sure + unsure
    return sure
