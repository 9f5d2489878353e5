"""The vote of all nodes on one request for one name, and the caller's ticket.

Requests travel in batches (outbox.py). Most are decided with theirs, because all nodes reply alike.
One whose nodes differ or refuse, and one that was withdrawn or is observed, needs an Attempt, which
counts reply by reply. The verdict resolves one future at the first moment it is certain. Requests
without a reply by then are not cancelled: their replies no longer change the verdict. They still
wake waiters and show where a ticket must be removed, unless the caller's time was over: such a
reply is ignored, because a release has followed the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import _clock
from .._nodes.multiplexer import Multiplexer, quarantined
from .._nodes.wakeup import Wakeups
from .._nodes.wire import FAILED, Failure, Take, Word
from .._rules import pacing, validity
from .._rules.pacing import free_in
from .._rules.quorum import Ballot, Verdict
from .._rules.seeking import Seen
from .context import Context
from .spec import (
    Granted,
    LockSpec,
    Refused,
    Vote,
    acquired,
    ms,
    raised,
    released,
    rests,
)

VOTE_OPEN, VOTE_WON = Verdict.OPEN, Verdict.WON
STAYING = -1
"""The number of a ticket that has none yet and waits even if another slot is free."""
WOKEN = b"go"
"""Value of the key of a ticket to which a node has left the name."""


class Attempt(Vote):
    """A vote on one request: grants in the ballot, and the refusals with all they tell."""

    AIM: ClassVar[str] = "decide on"
    NEVER: ClassVar[str] = "be locked"

    def __init__(
        self,
        context: Context,
        spec: LockSpec,
        owner: str,
        ttl: float,
        place: tuple[Word, ...],
        ticket: Ticket | None,
        started: float,
        verdict: asyncio.Future[None],
    ) -> None:
        super().__init__(spec.name, context.multiplexer)
        self.spec: LockSpec = spec
        self.owner: str = owner
        self.ticket: Ticket | None = ticket
        self.started: float = started
        self.valid_until: float = validity.valid_until(started, ttl)
        self.won: bool = False
        """Whether the lease was won, and in time."""
        self.others: bool = False
        """Whether a node that granted knows of others who wait."""
        self.refused: dict[int, Refused] = {}
        """The reply of each node that refused."""
        self.ballot: Ballot = Ballot(len(self._nodes), self._quorum)
        self._context = context
        self._ttl = ttl
        self._place = place
        self._verdict = verdict
        # Sets of nodes, one bit per node: without a reply; and those that were told a fence and
        # have not replied.
        self._open = self._raising = 0
        self._asked: list[int] = []

    # sending

    def sent(self, asked: list[int], absent: dict[int, Failure], claims: dict[int, int]) -> None:
        """Note which nodes a batch has asked, why it has not asked the others, and the grants."""
        self._asked = [*asked]
        for index, lack in absent.items():
            self._failed(index, lack)
        self._open = sum(1 << index for index in asked if index not in claims)
        for index, fence in claims.items():
            self.ballot.granted(index, fence)
        if self.ticket is not None:
            self.ticket.asked.update(asked)

    def _write_back(self) -> None:
        context = self._context
        context.totals.write_backs += 1
        command = self.spec.write_back(self.owner, self.ballot.fence, context.retention)
        sink = Take(self._on_raise_reply)
        for index in self.ballot.take_behind():
            self._raising |= 1 << index
            self._nodes[index].ask(command, sink, index)

    def _take_back(self, indices: Iterable[int]) -> None:
        # The vote is won. Remove our ticket where it still waits: it would keep others out there.
        ticket, granted = self._kept_ticket(), self.ballot.claims
        if ticket is None:
            return
        answered = (index for index in indices if not self._open >> index & 1)
        still = [index for index in answered if index in ticket.asked and index not in granted]
        leave(self._context.multiplexer, ticket, still)

    def _kept_ticket(self) -> Ticket | None:
        """Return the ticket that nodes which refuse the request keep of its caller, if any."""
        if self.ticket is not None or not self._place:
            return self.ticket
        ttl = self._context.settings.ticket_ttl
        return Ticket(self.spec, self.owner, self.started, ttl, set(self._asked))

    def leave_queue(self) -> None:
        """Remove the ticket that refusing nodes may keep; the caller removes one of its own."""
        ticket = self._kept_ticket()
        if self.ticket is None and ticket is not None:
            leave(self._context.multiplexer, ticket, self._asked)

    def abandon(self, ticket: Ticket | None = None, *, again: bool = False) -> None:
        """Send a release to each node that may have granted; `ticket` keeps its place there.

        again: whether the call asks again; it must not wake itself.
        """
        maybe = [index for index in self._asked if index not in self.refused]
        if maybe:
            nodes, until = self._context.multiplexer, _clock.now() + self._ttl
            more = (FAILED,) if ticket is None else ticket.place()
            command = self.spec.release(self.owner, self.started, until, more)
            command.wakes = () if again else self.spec.watched
            ours = None if ticket is None else ticket.key
            nodes.deliver(command, WakesNext(nodes.wakeups, self.spec, ours), maybe)

    # replies

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` to the acquire."""
        bit, node, parsed = 1 << index, self._nodes[index], acquired(reply)
        if not self._open & bit:
            return  # it was counted as failed before; a release was sent after the request
        ballot = self.ballot
        if type(parsed) is Granted:
            if not node.trust.counts(self.started):
                self._failed(index, quarantined(node))
            else:
                if self.spec.queue and parsed.first:
                    self.others = True
                    if self.spec.choose_slot:  # a lock with one slot is taken now, so wake nobody
                        self._wake(index, parsed.first)
                ballot.granted(index, parsed.fence)
                if ballot.behind:
                    self._write_back()
        elif type(parsed) is Refused:
            self._refused(index, parsed)
        else:
            self._failed(index, parsed)
        self._open ^= bit
        if ballot.verdict is VOTE_WON:
            self._decide()
            if index not in ballot.claims:
                self._take_back((index,))
        elif ballot.verdict is not VOTE_OPEN and not self.incomplete:
            self._decide()

    def _refused(self, index: int, parsed: Refused) -> None:
        self.refused[index] = parsed
        if parsed.free:
            self._wake(index, parsed.holder.encode())
        for ticket in parsed.woken:
            self._wake(index, ticket)
        self.ballot.refuse()

    def _failed(self, index: int, failure: Failure) -> None:
        self.failures[index] = failure
        self.ballot.abstain()

    def _wake(self, index: int, ticket: bytes) -> None:
        # The node woke this waiter. It may be ours: servers send no push for our own changes.
        key = self.spec.ticket_key(ticket.decode("utf-8", "replace"))
        self._context.multiplexer.wakeups.wake(key, index)

    def _on_raise_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` to the write-back of the fence."""
        ballot, bit = self.ballot, 1 << index
        if not self._raising & bit:
            return  # it was counted as failed before
        parsed = raised(reply)
        if type(parsed) is Failure:
            self._failed(index, parsed)
        elif not parsed.done:
            ballot.refuse()
        elif not self._nodes[index].trust.counts(self.started):
            self._failed(index, quarantined(self._nodes[index]))
        else:
            ballot.raised(index)
        self._raising ^= bit
        if ballot.verdict is not VOTE_OPEN:
            self._decide()

    def expire(self) -> None:
        """Count all nodes that have not replied as failed: the caller's time is over."""
        for index in self._asked:
            known = self._unanswered(index, self.spec.keys)
            self.on_reply(index, known)
            self._on_raise_reply(index, known)

    # the verdict

    def _decide(self) -> None:
        if not self._verdict.done():
            self._verdict.set_result(None)

    def conclude(self) -> bool:
        """Return whether the lease was won in time, once the verdict is certain, and clean up.

        A request that won removes its ticket where it still waits. One that lost keeps a ticket,
        and releases the name on each node that has not refused.
        """
        context = self._context
        if not self.outage:
            context.no_quorum_since = 0.0
        elif not self.cut and not context.no_quorum_since:
            context.no_quorum_since = self.started
        if self.ballot.verdict is VOTE_WON and _clock.now() < self.valid_until:
            if self.refused or self.failures:
                self._take_back(context.multiplexer.everyone)
            self.won = True
            return True
        first, self.ticket = self.ticket is None, self._kept_ticket()
        if self.ticket is not None:
            # A node that granted the name ahead of waiters gave us no number: ask for one.
            untold = first and len(self._place) > 1 and bool(self.ballot.claims)
            enough = self.missing <= 0 and not untold
            told = [one for one in self.refused.values() if one.number]
            self.ticket.settle(told, enough=enough)
            self.ticket.unsettled |= untold
        self._remember()
        self.abandon(self.ticket, again=not self.cut)
        return False

    def _remember(self) -> None:
        """Note that others have the name until now, and what the refusals tell about that."""
        if not self.refused:
            return
        now, spec, ticket = _clock.now(), self.spec, self.ticket
        known = self._context.paces.of(spec.pace_key)
        if spec.queue and spec.permits == 1 and not spec.phased:
            known.seen(self.holder, now - pacing.age(self.remaining, self._ttl), now)
        else:
            known.seen_many(now)
        if ticket is not None:
            known.ranked(ticket.id, ticket.rank, now)

    def retry_after(self) -> float:
        """Return the seconds after which another try makes sense; till now others have the name."""
        self._remember()
        if self.remaining and rests(self.holder):
            return self.remaining
        known, random = self._context.paces.of(self.spec.pace_key), self._context.random()
        ahead = 0 if self.ticket is None else self.ticket.rank
        return known.pause(ahead, random, permits=self.spec.permits, remaining=self.remaining)

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

        Where just a quorum is up, the first refusal loses the vote. The attempt waits all the same:
        a ticket needs a quorum's numbers, and fewer refusals do not show that somebody has the
        name.
        """
        return 0 < self.missing <= self._open.bit_count()

    def queued(self, index: int) -> bool:
        """Whether node `index` refused this attempt and keeps its ticket."""
        return index in self.refused and self.refused[index].number != 0

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
        """Whether one owner has a quorum, as far as the nodes have replied."""
        owners = self.owners
        return max(map(owners.count, owners), default=0) >= self.ballot.quorum

    @property
    def owners(self) -> list[str]:
        """For each node that refused because the name is taken: the owner that it named."""
        return [one.holder for one in self.refused.values() if not one.free]

    @property
    def slot_votes(self) -> tuple[bytes, ...]:
        """What refusing nodes reported about the other slots of the name."""
        return tuple(slot for one in self.refused.values() for slot in one.slots)

    @property
    def remaining(self) -> float | None:
        """Seconds until enough refusing nodes are free to win, if nobody renews."""
        needed = self.ballot.quorum - len(self.ballot.claims) - self._open.bit_count()
        return free_in([one.left for one in self.refused.values()], max(1, needed))

    @property
    def holder(self) -> str | None:
        """The owner that most refusing nodes named; None if no node refused."""
        named = [one.holder for one in self.refused.values()]
        return max(named, key=named.count, default=None)

    def seen(self, *, slot: bool = False, unsettled: bool = False) -> Seen:
        """Return what this attempt has shown, if it was not won; for the arguments see `Seen`."""
        now = _clock.now()
        return Seen(
            started=self.started,
            outage=self.outage,
            cut=self.cut,
            hopeless=self.hopeless,
            barred=self.barred,
            discarded=any(0 < one.votes_from <= now for one in self.failures.values()),
            owners=self.owners,
            granted=bool(self.ballot.claims),
            reserved=any(one.free for one in self.refused.values()),
            slot=slot,
            unsettled=unsettled,
            remaining=self.remaining,
        )

    def votes(self) -> dict[str, str]:
        """Return the vote of each node so far, by address: see `events.Voted`."""
        found = {}
        for index, node in enumerate(self._nodes):
            if index in self.ballot.claims:
                found[node.address] = "granted"
            elif index in self.refused:
                found[node.address] = "refused"
            else:
                found[node.address] = "failed" if index in self.failures else "open"
        return found


# ---- A waiter's ticket: its place in the queue that the nodes keep for a name --------------------
# Each node orders tickets by number, then by id. The nodes may give out different numbers, so the
# waiter settles on the highest one and tells them (docs/decisions/0024).


@dataclass(slots=True, eq=False, repr=False)
class Ticket:
    """The ticket of one task that waits."""

    spec: LockSpec
    id: str
    """The owner of the task's first attempt."""
    since: float
    """The moment before which no node had it."""
    ttl: float
    """Seconds that the nodes keep it. The waiter asks again within half of that."""
    asked: set[int]
    """The nodes that may have it."""
    number: int = 0
    """The number that the nodes were told; below 1 until enough of them have named one."""
    rank: int = 0
    """Number of waiters before us, on the node with the fewest."""
    unsettled: bool = False
    """Whether a node has another number than ours."""

    def stay(self) -> None:
        """Wait even if another slot is free."""
        self.number = self.number or STAYING

    def words(self) -> tuple[Word, ...]:
        """Return the arguments for an acquire."""
        return ms(self.ttl), self.id, self.number

    def place(self) -> tuple[Word, ...]:
        """Return the arguments for a release that leaves the ticket in the queue."""
        return 0, self.id, ms(self.ttl), self.number

    @property
    def key(self) -> str:
        """The key that changes when the ticket's turn comes."""
        return self.spec.ticket_key(self.id)

    def settle(self, told: list[Refused], *, enough: bool) -> None:
        """Take the numbers that the nodes gave; if `enough`, each quorum has one of them."""
        numbers = [one.number for one in told]
        self.rank = min((one.rank for one in told), default=0)
        if self.number <= 0 and enough and told:
            self.number = max(numbers)
        self.unsettled = any(number != self.number for number in numbers) and self.number > 0


@dataclass(slots=True, eq=False, repr=False)
class WakesNext:
    """Wakes the waiters of this process that a node's reply to our request names.

    The node sends no push for changes by our own connection.
    """

    wakeups: Wakeups
    spec: LockSpec
    ours: str | None = None
    """The key of the sender's own ticket, which goes on waiting: see `Watch.count`."""

    def on_reply(self, index: int, reply: Any) -> None:
        """Wake the waiters whose turn it is."""
        parsed = released(reply)
        if type(parsed) is Failure:
            return
        for ticket in self.spec.woken(parsed):
            if ticket == self.ours:
                self.wakeups.count(ticket, index)
            else:
                self.wakeups.wake(ticket, index)


def leave(nodes: Multiplexer, ticket: Ticket, indices: Iterable[int]) -> None:
    """Remove a ticket from these nodes; sent again like a release, until the ticket has died."""
    spec = ticket.spec
    command = spec.leave(ticket.id).resent(ticket.since, _clock.now() + ticket.ttl)
    nodes.deliver(command, WakesNext(nodes.wakeups, spec), tuple(indices))
