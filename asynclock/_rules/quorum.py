"""Answers of N nodes → one verdict, and the fence that goes with it.

Rules of this file:
- A node answers once: granted (with the fence it gave out), refused, or unknown. Unknown is never
  rounded to either: the node may hold our key.
- Hold with fence v as soon as a quorum of grants claim the same v. A quorum that disagrees writes
  the largest claim back to the grants below it (`behind`) and holds with it once a quorum
  claims it: the maximum alone would repeat fences.
- The verdict comes at the first moment it is certain, either way; after the last answer it is
  never open. tests/rules/ proves it by enumeration.
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
    """The smallest number of nodes such that any two such sets share one."""
    return size // 2 + 1


class Ballot:
    """The vote on one attempt over `size` nodes; told answers, it knows the verdict."""

    __slots__ = (
        "_support",
        "behind",
        "claims",
        "fence",
        "open",
        "quorum",
        "refused",
        "unknown",
        "verdict",
    )

    def __init__(self, size: int, quorum: int) -> None:
        self.quorum = quorum
        self.open = size
        """Nodes whose answer (to the acquire or to a raise) is still out."""
        self.claims: dict[int, int] = {}
        """Node → the fence its grant claims."""
        self.refused = 0
        self.unknown = 0
        self.fence = 0
        """The fence that is held, or being written back; 0 while there is neither."""
        self.verdict = Verdict.OPEN
        self._support = 0
        """How many claims are for `fence`."""
        self.behind: Sequence[int] = ()
        """The nodes to which `fence` must now be written back: take them all, each once."""

    def granted(self, node: int, fence: int) -> None:
        """`node` keeps our owner now and gave out `fence`."""
        self.open -= 1
        self.claims[node] = fence
        if fence == self.fence:
            self._support += 1
        elif self.fence:
            if fence < self.fence:
                self._write_back((node,))
        elif len(self.claims) >= self.quorum:
            self._agree(fence)
        if self.verdict is Verdict.OPEN:
            self._conclude()

    def raised(self, node: int) -> None:
        """`node` took the fence that was written back."""
        self.open -= 1
        self.claims[node] = self.fence
        self._support += 1
        self._conclude()

    def refuse(self) -> None:
        """A node holds it for somebody else, or took a raise badly: it is lost for us."""
        self.open -= 1
        self.refused += 1
        self._conclude()

    def abstain(self) -> None:
        """A node gave no answer that counts."""
        self.open -= 1
        self.unknown += 1
        self._conclude()

    def take_behind(self) -> Sequence[int]:
        """Empties `behind`. → what was in it."""
        nodes, self.behind = self.behind, ()
        return nodes

    def _agree(self, fence: int) -> None:
        counted = list(self.claims.values())
        self._support = counted.count(fence)
        if self._support < self.quorum:
            fence = max(counted)
            self._support = counted.count(fence)
            behind = tuple(node for node, claim in self.claims.items() if claim < fence)
            self._write_back(behind)
        self.fence = fence

    def _write_back(self, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            del self.claims[node]
            self.open += 1
        self.behind = (*self.behind, *nodes)

    def _conclude(self) -> None:
        if self.verdict is not Verdict.OPEN:
            return
        if self._support >= self.quorum:
            self.verdict = Verdict.WON
        elif (self._support if self.fence else len(self.claims)) + self.open < self.quorum:
            self.verdict = Verdict.LOST
