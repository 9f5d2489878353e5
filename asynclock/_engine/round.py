"""One round of renewals: a request to all nodes for a batch of leases, decided lease by lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .._nodes.replies import Failure
from .grant import Grant
from .said import extended

QUARANTINED = Failure("it is quarantined, and this lease was won without it")
CUT_SHORT = Failure("it may still execute a request that lets the lease end sooner")
Done = Callable[[dict[int, Failure] | None], None]
"""Called with None when a quorum has extended all leases, otherwise with the failures by node."""


class Renewer(Protocol):
    """Takes what a round decides."""

    @property
    def quorum(self) -> int:
        """Number of nodes that must extend."""

    @property
    def stood_still(self) -> float:
        """Seconds that our clock has stood still so far."""

    def counts(self, index: int, sent: float, voters: Sequence[int]) -> bool:
        """Return whether node `index`, asked at `sent`, may count for a lease won with `voters`."""

    def granted(
        self, grant: Grant, sent: float, number: int, ttl: float, stood_still: float
    ) -> None:
        """Count an extension by a quorum: request `number`, sent when `stood_still` was that."""

    def answered(self, index: int, error: Failure | None) -> None:
        """Note for the health of node `index` that it answered, with this error if not None."""

    def gone(self, grant: Grant) -> None:
        """Mark `grant` as lost: too few nodes still keep it for a quorum."""

    def missing(self, grant: Grant, index: int) -> None:
        """Put the key back on node `index`, which replied that it lacks the key, if it forgot."""

    def undecided(self, grant: Grant) -> None:
        """Repeat the request soon: too few nodes answered."""


class Round:
    """One renewal of a batch, with the votes per grant."""

    __slots__ = (
        "_done",
        "_failures",
        "_grants",
        "_left",
        "_number",
        "_renewals",
        "_sent",
        "_shortened",
        "_size",
        "_stood_still",
        "_ttl",
        "_votes",
    )

    def __init__(
        self,
        renewals: Renewer,
        grants: Sequence[Grant],
        ttl: float,
        size: int,
        sent: float,
        number: int,
        shortened: Sequence[Grant],
        done: Done | None,
    ) -> None:
        self._renewals = renewals
        self._grants = grants
        self._ttl = ttl
        self._size = self._left = size
        self._done = done
        self._sent = sent
        self._number = number
        self._stood_still = renewals.stood_still
        self._shortened = shortened
        self._votes = [[0, 0] for _ in grants]
        self._failures: dict[int, Failure] = {}

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` for the whole batch."""
        said = extended(reply, len(self._grants))
        self._renewals.answered(index, said if type(said) is Failure else None)
        if type(said) is Failure:
            self._failures[index] = said
            for grant in self._shortened:
                grant.may_end_sooner(index, self._ttl)
        else:
            self._count(index, said)
        self._left -= 1
        if not self._left:
            for grant, votes in zip(self._grants, self._votes, strict=True):
                if self._open(votes):
                    self._renewals.undecided(grant)
            self._tell()

    def _open(self, votes: list[int]) -> bool:
        quorum = self._renewals.quorum
        return votes[0] < quorum and votes[1] <= self._size - quorum

    def _count(self, index: int, marks: list[bool]) -> None:
        renewals, quorum = self._renewals, self._renewals.quorum
        settled = 0
        for grant, votes, mark in zip(self._grants, self._votes, marks, strict=True):
            if mark and not renewals.counts(index, self._sent, grant.voters):
                self._failures[index] = QUARANTINED
            elif mark and self._ttl > grant.cut_short.get(index, self._ttl):
                self._failures[index] = CUT_SHORT
            elif mark:
                votes[0] += 1
                if votes[0] == quorum:
                    self._grant(grant)
            else:
                votes[1] += 1
                if votes[1] == self._size - quorum + 1:
                    renewals.gone(grant)
                elif grant.alarm:
                    renewals.missing(grant, index)
            settled += not self._open(votes)
        if settled == len(self._grants):
            self._tell()

    def _grant(self, grant: Grant) -> None:
        self._renewals.granted(grant, self._sent, self._number, self._ttl, self._stood_still)

    def _tell(self) -> None:
        if self._done is not None:
            granted = all(votes[0] >= self._renewals.quorum for votes in self._votes)
            self._done(None if granted else self._failures)
            self._done = None
