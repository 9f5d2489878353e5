"""What the nodes have replied to an attempt so far, and why it is lost if it is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from .._nodes.multiplexer import Multiplexer
from .._nodes.replies import Failure
from .._rules.pacing import free_in
from .._rules.quorum import Ballot
from .said import Refused
from .spec import LockSpec
from .vote import Vote


class Tally(Vote):
    """The replies to one attempt: grants in the ballot, and the refusals with all they tell."""

    __slots__ = (
        "_open",
        "_rank",
        "_refusers",
        "_told",
        "_wakeups",
        "ballot",
        "refusals",
        "reserved",
        "slot_votes",
        "spec",
    )
    AIM: ClassVar[str] = "decide on"
    NEVER: ClassVar[str] = "be locked"

    def __init__(self, spec: LockSpec, nodes: Multiplexer) -> None:
        self.spec: LockSpec = spec
        self.failures: dict[int, Failure] = {}
        self.refusals: list[tuple[float | None, str]] = []
        """For each refusing node: the seconds that the holder has left, or None, and its owner."""
        self.reserved: list[str] = []
        """For each node where the name is free: the ticket that goes first there."""
        self.slot_votes: tuple[bytes, ...] = ()
        """What refusing nodes reported about the other slots of the name."""
        self.ballot: Ballot = Ballot(len(nodes.nodes), nodes.quorum)
        self._nodes = nodes.nodes
        self._quorum = nodes.quorum
        self._wakeups = nodes.wakeups
        self._told: dict[int, int] = {}
        """For each node where our ticket waits: its number there."""
        self._rank = 0
        # Sets of nodes, one bit per node:
        self._open = 0
        self._refusers = 0

    def _failed(self, index: int, failure: Failure) -> None:
        self.failures[index] = failure
        self.ballot.abstain()

    def _refused(self, index: int, said: Refused) -> None:
        self.refusals.append((said.left, said.holder))
        if said.number:
            self._rank = min(said.rank, self._rank) if self._told else said.rank
            self._told[index] = said.number
        if said.free:
            self.reserved.append(said.holder)
            self._wake(index, said.holder.encode())
        for ticket in said.woken:
            self._wake(index, ticket)
        self.slot_votes += said.slots
        self._refusers |= 1 << index
        self.ballot.refuse()

    @property
    def missing(self) -> int:
        """How many nodes must still grant or refuse for a quorum of such replies.

        Then each quorum has a node that did, and all owners that have the name can be known.
        """
        ballot = self.ballot
        return ballot.quorum - len(ballot.claims) - ballot.refused

    @property
    def incomplete(self) -> bool:
        """Whether too few nodes have granted or refused so far, and others may still do so.

        Where just a quorum of the nodes is up, the first refusal loses the vote. The attempt waits
        for the other replies all the same: a ticket needs a quorum's numbers, and fewer refusals
        do not show that somebody has the name.
        """
        return 0 < self.missing <= self._open.bit_count()

    def queued(self, index: int) -> bool:
        """Whether node `index` refused this attempt and keeps its ticket."""
        return index in self._told

    def _wake(self, index: int, ticket: bytes) -> None:
        # The node woke this waiter. It may be ours: servers send no push for our own changes.
        key = self.spec.ticket_key(ticket.decode("utf-8", "replace"))
        self._wakeups.wake(key, index)

    @property
    def name(self) -> str:
        """The name that is to be locked."""
        return self.spec.name

    @property
    def split(self) -> bool:
        """Whether rivals kept each other from a quorum, so that no owner has one.

        Always False for holders that share the name, such as readers: they compete only with
        writers, so an extra back-off would only slow them down.
        """
        spec = self.spec
        if spec.queue_key is None and (spec.phased or not spec.queue):
            return False
        return len(self.ballot.claims) > 0 and not self.held

    @property
    def held(self) -> bool:
        """Whether one owner has a quorum, as far as the nodes have said."""
        owners = self.owners
        return max(map(owners.count, owners), default=0) >= self.ballot.quorum

    @property
    def owners(self) -> list[str]:
        """For each node that refused because the name is taken: the owner that it named."""
        owners = [owner for _, owner in self.refusals]
        for ticket in self.reserved:
            owners.remove(ticket)
        return owners

    @property
    def remaining(self) -> float | None:
        """Seconds until enough refusing nodes are free to win, if nobody renews."""
        needed = self.ballot.quorum - len(self.ballot.claims) - self._open.bit_count()
        return free_in([left for left, _ in self.refusals], max(1, needed))

    @property
    def holder(self) -> str | None:
        """The owner that most refusing nodes named; None if no node refused."""
        owners = [owner for _, owner in self.refusals]
        return max(owners, key=owners.count) if owners else None

    @abstractmethod
    def on_raise_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` to the write-back of the fence."""

    def votes(self) -> dict[str, str]:
        """Return the vote of each node so far, by address: see `events.Voted`."""
        found = {}
        for index, node in enumerate(self._nodes):
            if index in self.ballot.claims:
                found[node.address] = "granted"
            elif self._refusers >> index & 1:
                found[node.address] = "refused"
            else:
                found[node.address] = "failed" if index in self.failures else "open"
        return found


class RaiseReplies:
    """Passes the replies to a write-back on to its attempt."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Tally) -> None:
        self._attempt = attempt

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        self._attempt.on_raise_reply(index, reply)
