"""One round of renewals: a request to all nodes for a batch of leases, decided lease by lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._nodes.replies import Failure
from .._nodes.script import GRANTED_MARK
from .lease import Holding

if TYPE_CHECKING:
    from .renewal import Renewals

QUARANTINED = Failure("it is quarantined, and this lease was won without it")
CUT_SHORT = Failure("it may still execute a request that lets the lease end sooner")
Done = Callable[[dict[int, Failure] | None], None]
"""Called with None when a quorum has extended all leases, otherwise with the failures by node."""


class Round:
    """One renewal of a batch, with the votes per holding."""

    __slots__ = (
        "_done",
        "_failures",
        "_holdings",
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
        renewals: Renewals,
        holdings: Sequence[Holding],
        ttl: float,
        size: int,
        sent: float,
        number: int,
        shortened: Sequence[Holding],
        done: Done | None,
    ) -> None:
        self._renewals = renewals
        self._holdings = holdings
        self._ttl = ttl
        self._size = self._left = size
        self._done = done
        self._sent = sent
        self._number = number
        self._stood_still = renewals.stood_still
        self._shortened = shortened
        self._votes = [[0, 0] for _ in holdings]
        self._failures: dict[int, Failure] = {}

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` for the whole batch."""
        if type(reply) is Failure:
            self._failures[index] = reply
            for holding in self._shortened:
                ttl = min(self._ttl, holding.cut_short.get(index, self._ttl))
                holding.cut_short = {**holding.cut_short, index: ttl}
        else:
            self._count(index, reply[0])
        self._left -= 1
        if not self._left:
            for holding, votes in zip(self._holdings, self._votes, strict=True):
                if self._open(votes):
                    self._renewals.undecided(holding)
            self._tell()

    def _open(self, votes: list[int]) -> bool:
        quorum = self._renewals.quorum
        return votes[0] < quorum and votes[1] <= self._size - quorum

    def _count(self, index: int, marks: bytes) -> None:
        renewals, quorum = self._renewals, self._renewals.quorum
        settled = 0
        for holding, votes, mark in zip(self._holdings, self._votes, marks, strict=True):
            if mark == GRANTED_MARK and not renewals.counts(index, self._sent, holding.voters):
                self._failures[index] = QUARANTINED
            elif mark == GRANTED_MARK and self._ttl > holding.cut_short.get(index, self._ttl):
                self._failures[index] = CUT_SHORT
            elif mark == GRANTED_MARK:
                votes[0] += 1
                if votes[0] == quorum:
                    self._grant(holding)
            else:
                votes[1] += 1
                if votes[1] == self._size - quorum + 1:
                    renewals.gone(holding)
                elif holding.alarm:
                    renewals.restores.missing(holding, index)
            settled += not self._open(votes)
        if settled == len(self._holdings):
            self._tell()

    def _grant(self, holding: Holding) -> None:
        self._renewals.granted(holding, self._sent, self._number, self._ttl, self._stood_still)

    def _tell(self) -> None:
        if self._done is not None:
            granted = all(votes[0] >= self._renewals.quorum for votes in self._votes)
            self._done(None if granted else self._failures)
            self._done = None
