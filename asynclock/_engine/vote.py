"""What all requests to the nodes about one name share: which nodes failed, and what that means."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from .. import _clock
from .._nodes.node import Node
from .._nodes.replies import Failure
from .._nodes.voting import barred

TOO_LATE = Failure("the request reached it too late")
CUT = Failure("no answer before the caller's timeout")


class Vote:
    """The failures of one request; a subclass counts the other replies, and sets the attributes."""

    __slots__ = ("_nodes", "_quorum", "failures")
    AIM: ClassVar[str]
    """What too few answers don't allow, for messages."""
    NEVER: ClassVar[str]
    """What never succeeds while permanent failures rule out a quorum, for messages."""
    _nodes: Sequence[Node]
    _quorum: int
    failures: dict[int, Failure]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that the nodes were asked about."""

    @property
    def cut(self) -> bool:
        """Whether the caller's timeout ended before some node had given any answer."""
        return CUT in self.failures.values()

    @property
    def outage(self) -> bool:
        """Whether too few nodes answered to be sure that rivals are the reason."""
        return len(self._nodes) - len(self.failures) < self._quorum

    @property
    def hopeless(self) -> bool:
        """Whether permanent failures rule out a quorum."""
        never = sum(failure.permanent for failure in self.failures.values())
        return len(self._nodes) - never < self._quorum

    @property
    def barred(self) -> float:
        """Seconds until the guards let enough nodes for a quorum vote; 0 if they do now."""
        known = [failure.votes_from for failure in self.failures.values()]
        return barred(len(self._nodes), self._quorum, known, _clock.now())

    def causes(self) -> dict[str, str]:
        """Return the cause of each failure by the node's address."""
        return {self._nodes[i].address: self.failures[i].cause for i in sorted(self.failures)}

    def _unanswered(self, index: int) -> Failure:
        # The node's last answer says more than that it has not answered yet.
        lack = self._nodes[index].lack
        return CUT if lack is None or lack.permanent else lack
