"""One attempt at one name: a vote of all nodes, and the clean-up when it fails.

Each reply comes straight from its socket to `on_reply`. The verdict resolves one future at the
first moment it is certain. Requests without a reply by then are not cancelled: their replies no
longer change it, but they still wake waiters and show where a ticket must be removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from .. import _clock
from .._nodes.link import LATE_TIMER_FACTOR
from .._nodes.replies import Failure
from .._nodes.script import FAILED, Word
from .._nodes.voting import quarantined
from .._rules import pace, validity
from .._rules.quorum import Verdict
from .context import Context
from .left import Left, leave
from .said import Granted, Refused, acquired, raised
from .spec import LockSpec
from .tally import RaiseReplies, Tally
from .ticket import Ticket
from .vote import TOO_LATE

VOTE_OPEN, VOTE_WON = Verdict.OPEN, Verdict.WON


class Attempt(Tally):
    """A vote on one owner's request; `decide` returns whether it was won."""

    __slots__ = (
        "_asked",
        "_context",
        "_future",
        "_raising",
        "_ttl",
        "_waits",
        "others",
        "owner",
        "started",
        "ticket",
        "valid_until",
        "won",
    )

    def __init__(
        self,
        context: Context,
        spec: LockSpec,
        ttl: float,
        ticket: Ticket | None = None,
        waits: tuple[Word, ...] = (),
        owner: str = "",
        started: float = 0.0,
    ) -> None:
        super().__init__(spec, context.multiplexer)
        self.owner: str = owner or context.new_owner()
        self.others: bool = False
        """Whether a node that granted knows of others who wait."""
        self._context = context
        self._ttl = ttl
        self.ticket: Ticket | None = ticket
        """The caller's place in the queue; None if it has none."""
        self._waits = waits
        self._future: asyncio.Future[None] | None = None
        self._asked: list[int] = []
        self._raising = 0
        """The nodes that were told a fence and have not replied, one bit per node."""
        self.won: bool = False
        """Whether the lease was won, and in time."""
        self.started: float = started or _clock.now()
        self.valid_until: float = validity.valid_until(self.started, ttl)

    def barge(self) -> None:
        """Ask ahead of all waiters, because the turn of this process isn't over."""
        if self._waits:
            self._waits = (*self._waits, self.owner, 0, 1)

    async def decide(self, *, armed: bool, limit: float | None) -> bool:
        """Ask all nodes, wait at most `limit` seconds for the verdict, return whether it was won.

        If the vote is lost or this call is cancelled, a release is sent to every node that may have
        granted before this returns; the replies are not awaited.
        """
        undos = self._context.undos
        undos[self] = self._withdraw
        try:
            self.ask(armed=armed)
            if self.ballot.verdict is not VOTE_OPEN:
                await asyncio.sleep(0)  # an attempt that fails at once must not starve the loop
            elif limit is None:
                self._future = asyncio.get_running_loop().create_future()
                await self._future
            else:
                await self._verdict(limit)
        except BaseException:
            self._context.clean_up(self._withdraw)
            raise
        # If the manager was closed in the meantime, this attempt was withdrawn already.
        return undos.pop(self, None) is not None and self.conclude()

    def _withdraw(self) -> None:
        self._context.undos.pop(self, None)
        self.abandon()
        self.leave_queue()

    def take_over(
        self,
        future: asyncio.Future[None],
        asked: Iterable[int],
        absent: dict[int, Failure],
        claims: dict[int, int],
    ) -> None:
        """Take over a request that a batch sent to the nodes `asked`; `claims`: who has granted."""
        self._future = future
        for index, lack in absent.items():
            self._failed(index, lack)
        self._asked.extend(asked)
        self._open = sum(1 << index for index in self._asked if index not in claims)
        for index, fence in claims.items():
            self.ballot.granted(index, fence)

    def leave_queue(self) -> None:
        """Remove the ticket that refusing nodes may keep; the caller removes one of its own."""
        if self.ticket is None and self._waits:
            leave(self._context.multiplexer, self.spec, self.owner, self.started, self._asked)

    def conclude(self) -> bool:
        """Clean up once the verdict is certain, and return whether the lease was won in time."""
        context = self._context
        if not self.outage:
            context.no_quorum_since = 0.0
        elif not self.cut and not context.no_quorum_since:
            context.no_quorum_since = self.started
        if self.ballot.verdict is VOTE_WON and _clock.now() < self.valid_until:
            if self._refusers or self.failures:
                self._take_back(self._context.multiplexer.everyone)
            self.won = True
            return True
        ballot, first = self.ballot, self.ticket is None
        if self.ticket is None and self._waits:
            self.ticket = Ticket(self.spec, self.owner, self.started)
            self.ticket.asked.update(self._asked)
        if self.ticket is not None:
            # A node that granted the name ahead of waiters gave us no number: ask for one.
            untold = first and len(self._waits) > 1 and bool(ballot.claims)
            enough = self.missing <= 0 and not untold
            self.ticket.settle(list(self._told.values()), self._rank, enough=enough)
            self.ticket.unsettled |= untold
        if self.refusals:
            self._remember()
        self.abandon(self.ticket)
        return False

    def _remember(self) -> None:
        """Note what the refusals tell about how long the name is held."""
        now, spec, ticket = _clock.now(), self.spec, self.ticket
        known = self._context.paces.of(spec.pace_key)
        if spec.queue and spec.permits == 1 and not spec.phased:
            known.seen(self.holder, now - pace.age(self.remaining, self._ttl), now)
        else:
            known.seen_many(now)
        if ticket is not None:
            known.waits(ticket.id, ticket.rank, now)

    def retry_after(self) -> float:
        """Return the seconds after which another try makes sense, for a vote lost to others."""
        known, random = self._context.paces.of(self.spec.pace_key), self._context.random()
        ahead = 0 if self.ticket is None else self.ticket.rank
        return known.pause(ahead, random, permits=self.spec.permits, remaining=self.remaining)

    def ask(self, *, armed: bool) -> None:
        """Send the request to every node that may vote."""
        context, nodes = self._context, self._context.multiplexer
        nodes.flush()
        until = self.started + LATE_TIMER_FACTOR * context.settings.node_timeout
        floor, not_after = nodes.fence_floor(self.started), nodes.not_after(until)
        command = self.spec.acquire(
            self.owner,
            self._ttl,
            floor,
            not_after,
            context.retention,
            self._waits if self.ticket is None else self.ticket.words(),
        )
        if not not_after:  # too few clocks are known: each node reports its own in the handshake
            command.give_up_at = until
        asked = self._asked
        for index, node in enumerate(self._nodes):
            obstacle = node.obstacle(self.started)
            if obstacle is None:
                asked.append(index)
            else:
                self._failed(index, obstacle)
        if self.ballot.verdict is not VOTE_OPEN:
            asked.clear()
            self._conclude()
            return
        if self.ticket is not None:
            self.ticket.asked.update(asked)
        for index in asked:
            self._open |= 1 << index
            self._nodes[index].ask(command, self, index, arm=armed)
        # `undos` has an entry for each loop, and one for each vote.
        if len(context.undos) - len(context.loops) == 1:  # no other vote could share the write
            nodes.write()

    async def _verdict(self, limit: float) -> None:
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(max(0.0, limit), self.expire)
        try:
            await self._future
        finally:
            timer.cancel()

    def expire(self) -> None:
        """Count all nodes that have not replied as failed: the caller's time is over."""
        for index in self._asked:
            known = self._unanswered(index)
            self.on_reply(index, known)
            self.on_raise_reply(index, known)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` to the acquire."""
        bit, node, said = 1 << index, self._nodes[index], acquired(reply)
        answer = said if type(said) is Failure and said is not TOO_LATE else None
        if node.lack is not answer and (answer is None or answer.code):
            node.note(answer)
        if not self._open & bit:
            return  # it was counted as failed before; a release was sent after the request
        ballot = self.ballot
        if type(said) is Granted:
            if self.started < node.trust.votes_from:
                self._failed(index, quarantined(node))
            else:
                if self.spec.queue and said.first:
                    self.others = True
                    if self.spec.choose_slot:  # a lock with one slot is taken now, so wake nobody
                        self._wake(index, said.first)
                ballot.granted(index, said.fence)
                if ballot.behind:
                    self._write_back()
        elif type(said) is Refused:
            self._refused(index, said)
        else:
            self._failed(index, said)
        self._open ^= bit
        if ballot.verdict is VOTE_WON:
            self._conclude()
            if index not in ballot.claims:
                self._take_back((index,))
        elif ballot.verdict is not VOTE_OPEN and not self.incomplete:
            self._conclude()

    def on_raise_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index` to the write-back of the fence."""
        ballot, bit = self.ballot, 1 << index
        if not self._raising & bit:
            return  # it was counted as failed before
        said = raised(reply)
        if type(said) is Failure:
            self._failed(index, said)
        elif not said.done:
            ballot.refuse()
        elif self.started < self._nodes[index].trust.votes_from:
            self._failed(index, quarantined(self._nodes[index]))
        else:
            ballot.raised(index)
        self._raising ^= bit
        if ballot.verdict is not VOTE_OPEN:
            self._conclude()

    def _write_back(self) -> None:
        context = self._context
        context.counts.write_backs += 1
        command = self.spec.write_back(self.owner, self.ballot.fence, context.retention)
        sink = RaiseReplies(self)
        for index in self.ballot.take_behind():
            self._raising |= 1 << index
            self._nodes[index].ask(command, sink, index)

    def _take_back(self, indices: Iterable[int]) -> None:
        # The vote is won. Remove our ticket where it still waits: it would keep others out there.
        ticket, granted = self.ticket, self.ballot.claims
        if ticket is None and not self._waits:
            return
        may_have = self._asked if ticket is None else ticket.asked
        ident, since = self.owner, self.started
        if ticket is not None:
            ident, since = ticket.id, ticket.since
        answered = (index for index in indices if not self._open >> index & 1)
        still = [index for index in answered if index in may_have and index not in granted]
        leave(self._context.multiplexer, self.spec, ident, since, still)

    def _conclude(self) -> None:
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def abandon(self, ticket: Ticket | None = None) -> None:
        """Send a release, after the request, to each node that may have granted.

        `ticket` goes on waiting there, in its old place.
        """
        maybe = [index for index in self._asked if not self._refusers >> index & 1]
        if maybe:
            nodes, until = self._context.multiplexer, _clock.now() + self._ttl
            more = (FAILED,) if ticket is None else ticket.place()
            command = self.spec.release(self.owner, self.started, until, more)
            ours = None if ticket is None else ticket.key
            nodes.deliver(command, Left(nodes.wakeups, self.spec, ours), maybe)
