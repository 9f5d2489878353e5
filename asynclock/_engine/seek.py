"""Asks the nodes until they grant: attempts, and the pauses between them.

After a refusal the loop arms a wake-up and looks once more before it waits, so it can't miss a
release: where the nodes keep a queue it looks at its ticket, elsewhere it asks again. Every wait is
bounded by the holder's remaining ttl, by pacing and by the caller's deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import Any

from .. import _clock
from .._nodes.wakeup import Watch
from .._nodes.wire import Command, Failure, Take
from .._rules import pacing, validity
from .._rules.pacing import SETTLING, Owners
from ..errors import AcquireTimeoutError, AsyncLockError
from ..events import Contended, SplitVote, Voted
from . import refusals
from .attempt import WOKEN, Attempt, Ticket, leave
from .context import Context, closed
from .engine import Engine
from .grant import FOREVER, LocalQueue
from .inspection import NAMED, before, question
from .outbox import Ask, decide
from .spec import LockSpec, digest, label, values

MAX_SLOT_HOPS = 5
"""Maximum consecutive hops to another slot before backing off: enough for a semaphore to look at
every slot and then take a free one."""
LONGEST_ATTEMPT = 3
"""Maximum number of node timeouts that an attempt takes: one to connect or to resend a script, one
for the request, and one to write the fence back."""


@dataclass(eq=False, repr=False)
class Seek:
    """Asks the nodes for one task; call `run` once."""

    _engine: Engine
    _spec: LockSpec
    _ttl: float
    _deadline: float | None
    _asked: float
    _once: bool
    _barge: bool
    _queue: LocalQueue
    """Keeps the last attempt if too few nodes voted, also for the tasks that wait there."""
    contended: Attempt | None = None
    """The last attempt that was lost to other holders."""

    def __post_init__(self) -> None:
        engine, settings = self._engine, self._engine.settings
        self._until = FOREVER
        """The latest moment for an answer: the deadline, or a node timeout after the call if that
        is later."""
        if self._deadline is not None:
            self._until = max(self._deadline, self._asked + settings.node_timeout)
        elif self._once:
            self._until = self._asked + settings.node_timeout
        # The first attempt that is refused leaves a ticket. Without a queue, or in a try_acquire,
        # only a split vote makes one.
        self._ticket: Ticket | None = None
        self._owners: Owners = Owners(engine.multiplexer.quorum, settings.node_timeout)
        self._settled = 0
        """Number of attempts with a ticket that neither won nor met a holder."""
        self._waits = engine.waits if self._spec.queue and not self._once else ()
        self._watch: Watch | None = None
        self._ahead: dict[int, Any] = {}
        """Each node's last reply about the waiters before this one."""
        self._hops = 0
        self._pauses: Pauses = Pauses(engine, self._spec, self._deadline, self._until)
        self._outage_since: float | None = None

    async def run(self, first: Attempt | None = None) -> Attempt:
        """Return the attempt that was won, or raise the caller's error.

        `first` is the attempt that a batch has made already, if there was one.
        """
        engine, spec = self._engine, self._spec
        engine.seeking[self] = None
        engine.undos[self] = self.leave
        try:
            while not engine.closed:
                attempt = await self._attempt(spec) if first is None else first
                if engine.observers:
                    engine.observers(Voted(self._spec.name, attempt.votes()))
                if attempt.won:
                    self._ticket = self._queue.unanswered = self._queue.holder = None
                    return attempt
                first, self._ticket = None, attempt.ticket or self._ticket
                if engine.closed:
                    break
                engine.ready()
                if attempt.outage:
                    spec = self._spec
                    self._judge_outage(attempt)
                    await self._pause(attempt)
                    if self._late():
                        raise refusals.outage(attempt)
                else:
                    spec = await self._wait_for_others(attempt)
            raise closed()
        except AcquireTimeoutError as error:
            self._explain(error)
            raise
        finally:
            engine.clean_up(self._end)

    def _explain(self, error: AcquireTimeoutError) -> None:
        """Add to the error how long the timeout was, the place in the queue, and the message."""
        if self._deadline is None or self._deadline <= self._asked:
            return
        timeout, ticket = round(self._deadline - self._asked, 3), self._ticket
        text = f"{error}; the timeout was {timeout:g} s"
        if ticket is not None and self._spec.queue:
            text += f", and the call was number {ticket.rank + 1} in the queue"
            text += before(self._ahead.values(), ticket)
        error.args = (text,)
        refusals.add_message(error, self._engine, self._queue)

    def _end(self) -> None:
        self._engine.seeking.pop(self, None)
        self._engine.undos.pop(self, None)
        self.leave()

    async def _attempt(self, spec: LockSpec) -> Attempt:
        engine, limit = self._engine, self._limit(_clock.now())
        if self._counts_as_dead():
            self._leave_minority()
            ask = Ask(engine, spec, self._ttl, first=False)
        else:
            ask = Ask(engine, spec, self._ttl, self._waits, self._ticket, first=False)
        if self._barge:
            ask.barge()
            self._barge = False
        watch = self._watch
        if watch is not None:
            watch.reset()
        await _decided(ask, limit, armed=watch is not None and not spec.queue)
        attempt = ask.to_attempt()
        attempt.conclude()
        return attempt

    def _counts_as_dead(self) -> bool:
        since = self._engine.no_quorum_since
        return bool(since) and _clock.now() - since >= self._engine.settings.ticket_ttl

    def _leave_minority(self) -> None:
        # A place that only a minority knows would keep the name from clients that reach a quorum.
        # The ticket keeps its number, with which it takes its old place again.
        ticket = self._ticket
        if ticket is not None and ticket.asked:
            leave(self._engine.multiplexer, ticket, ticket.asked)
            ticket.asked, ticket.unsettled = set(), True

    def _limit(self, now: float) -> float | None:
        # An attempt needs a limit only near the deadline; otherwise it ends by itself before. The
        # first one of a try_acquire has none: the links know better whether our loop was busy.
        if self._deadline is None and not (self._once and self.contended):
            return None
        whole = LONGEST_ATTEMPT * self._engine.settings.node_timeout
        left = self._answer_by() - now
        if self.contended is not None and not self._yields(self.contended):
            left = self._answer_by(settling=True) - now
        if left <= 0:
            raise self.out_of_time()
        return left if left < whole else None

    # others have it

    async def _wait_for_others(self, attempt: Attempt) -> LockSpec:
        """Wait until it is time for the next attempt and return the spec to ask for."""
        engine = self._engine
        engine.seeking[self] = self._spec.name, self._asked
        self._outage_since, self.contended, self._queue.unanswered = None, attempt, None
        self._queue.holder = attempt.holder
        ends = self._once or self._late()
        if self._once and self._spec.exempt:  # of a detached lease: nothing can free it for us
            raise refusals.refused(attempt, waited=False)
        if ends or not self._waits:
            spec = await self._settle(attempt)
            if spec is not None:
                return spec
            if ends:
                raise refusals.refused(attempt, waited=not self._once)
            self._leave_queue()
        other = self._elsewhere(attempt)
        if other is not None and self._hops < MAX_SLOT_HOPS and _clock.now() < self._until:
            self._hops += 1
            return other
        if self._waits:
            self._note_refusal(attempt)
        if other is not None:
            # There is a free slot, but rivals competed with us for it: back off at random.
            engine.spread.split()
            await self._pauses.sleep(engine.spread.width * engine.random())
            return other
        if self._ticket is not None and self._ticket.unsettled:
            return self._spec  # the nodes have different numbers: tell them which one counts
        if self._arm(attempt):
            return self._spec
        await self._pause(attempt)
        if self._late() and (
            self._yields(attempt) or _clock.now() >= self._answer_by(settling=True)
        ):
            raise refusals.refused(attempt, waited=True)
        return self._spec

    def _arm(self, attempt: Attempt) -> bool:
        """Watch for the next chance; return whether to ask again before we wait for it."""
        nodes, spec, ticket = self._engine.multiplexer, self._spec, self._ticket
        if ticket is None or not spec.queue:
            if self._watch is not None or not nodes.tracks():
                return False
            self._watch = nodes.wakeups.watch(spec.watched)
            return True
        if self._watch is not None:
            self._watch.close()
        # Clients without tickets wake nobody when they release: the first waiter watches the name.
        others = spec.watched if ticket.rank == 0 else ()
        self._watch = watch = nodes.wakeups.watch(others, ticket=ticket.key)
        if nodes.tracks() and self._pauses.expecting:
            look = Command.plain("MGET", *watch.keys, keys=watch.keys)
            looked = partial(_count_change, watch, attempt)
            nodes.broadcast(look, Take(looked), arm=True)
        return False

    def _elsewhere(self, attempt: Attempt) -> LockSpec | None:
        choose = attempt.spec.choose_slot
        if choose is None or not attempt.slot_votes:
            return None
        nodes = self._engine.multiplexer
        spare = len(nodes.nodes) - nodes.quorum
        return choose(attempt.slot_votes, spare, self._engine.random())

    def _note_refusal(self, attempt: Attempt) -> None:
        engine, name = self._engine, self._spec.name
        engine.counts.refused += 1
        if attempt.split:
            engine.counts.split_votes += 1
            if engine.observers:
                engine.observers(SplitVote(name))
        if engine.observers:
            holder, known_as = label(attempt.holder), digest(attempt.holder)
            engine.observers(Contended(name, holder, attempt.remaining, known_as))
        if not self._once:
            self._forbid_waiting_for_ourselves(attempt)

    async def _settle(self, attempt: Attempt) -> LockSpec | None:
        """Take a ticket and return what to ask for; None if the name is taken or time is over."""
        now = _clock.now()
        yields = self._yields(attempt)
        other = self._elsewhere(attempt) if yields else None
        left = self._answer_by(settling=True) - now
        # For each slot that turns out to be taken, rivals have got one more of the permits.
        if other is not None and self._hops < self._spec.permits and left > 0:
            self._hops += 1
            return other
        self._note_refusal(attempt)
        if yields or left <= 0:
            return None
        if self._ticket is None:
            ttl = self._engine.settings.ticket_ttl
            self._ticket = Ticket(self._spec, self._engine.owners.new(), now, ttl, set())
        self._ticket.stay()
        # The first attempt with a ticket goes at once: it tells the nodes our number. Later ones
        # can win only after rivals have withdrawn, so pause.
        if self._settled and not self._ticket.unsettled:
            pause = pacing.without_push(self._settled, None, self._engine.random())
            await asyncio.sleep(min(pause, self._engine.settings.node_timeout / 4, left))
        self._settled += 1
        return attempt.spec

    def _forbid_waiting_for_ourselves(self, attempt: Attempt) -> None:
        # The local queue doesn't know of conflicts between reader and writer or of several names,
        # so check whether the reported holder is our own task.
        engine, task = self._engine, asyncio.current_task()
        ours, spec = engine.renewals.find(attempt.holder or ""), self._spec
        shares = spec.shared and engine.renewals.shares(spec, task)
        if shares or (ours is not None and ours.spec.permits == 1 and ours.inside(task)):
            raise refusals.already_held(spec.name)

    def _yields(self, attempt: Attempt) -> bool:
        # True if somebody has the name. Before our own ticket is known to others, also true if the
        # ticket of another waiter is first: that waiter will settle the vote. Of several permits it
        # takes only one, so there the second reason doesn't count.
        others_go = any(one.free for one in attempt.refused.values()) and not self._settled
        if others_go and self._spec.permits == 1 and not attempt.ballot.claims:
            return True
        return self._owners.has_one(attempt.owners, attempt.started, _clock.now())

    def _answer_by(self, *, settling: bool = False) -> float:
        # The latest moment for an answer. After the deadline a split vote may be settled, and a
        # slot may be taken that was reported as free.
        if not (settling or self._settled or self._hops):
            return self._until
        return max(self._until, self._asked + SETTLING * self._engine.settings.node_timeout)

    def _late(self) -> bool:
        return self._deadline is not None and _clock.now() >= self._deadline

    # too few nodes answer

    def _judge_outage(self, attempt: Attempt) -> None:
        now, settings = _clock.now(), self._engine.settings
        took = now - attempt.started
        if self._late() and took < settings.node_timeout:
            # The caller's timeout ended before the nodes' own, so this may be no outage.
            if self.contended:
                raise refusals.refused(self.contended, waited=True)
            if attempt.cut and self._outage_since is None and took < 0.9 * settings.node_timeout:
                raise self.out_of_time()
        self._queue.unanswered = attempt
        if attempt.hopeless:
            raise refusals.hopeless(attempt)
        if self._outage_since is None:
            self._outage_since = attempt.started
        patience = validity.longest_outage(settings.max_ttl)
        waited_out = self._deadline is None and now - self._outage_since >= patience
        # Don't make the caller wait for votes that can't come in time.
        in_vain = self._deadline is not None and now + attempt.barred > self._until
        only = self._once and not (now < self._until and refusals.discarded(attempt))
        if self._once and self.contended and attempt.cut:
            raise refusals.refused(self.contended, waited=False)
        if only or waited_out or in_vain or self._late():
            raise refusals.outage(attempt)

    def out_of_time(self) -> AsyncLockError:
        """Return the error for a call whose time ended during or between attempts."""
        if self._queue.unanswered is not None:
            return refusals.outage(self._queue.unanswered)
        if self.contended is not None:
            return refusals.refused(self.contended, waited=not self._once)
        return refusals.out_of_time(self._engine, self._spec)

    # between two attempts

    async def _pause(self, attempt: Attempt) -> None:
        self._prepare_error(attempt)
        self._hops = 0
        rank = 0 if self._ticket is None else self._ticket.rank
        await self._pauses.wait(attempt, self._watch, rank)

    def _prepare_error(self, attempt: Attempt) -> None:
        """Ask for the holder's message and the waiters before us, for the error of a timeout.

        This is done before a pause in which the timeout may end, so nobody waits for the replies.
        """
        nodes, ticket, now = self._engine.multiplexer, self._ticket, _clock.now()
        ending = self._deadline is not None and self._deadline - now <= self._pauses.longest
        if attempt.outage or (not ending and not self._pauses.made):
            return
        replies = self._queue.message_replies = self._queue.message_replies or {}
        nodes.broadcast(attempt.spec.read_beside(), Take(replies.__setitem__))
        if ending and ticket is not None and ticket.rank and self._spec.queue:
            ask = question(self._spec.queue, most=NAMED + 1)
            nodes.broadcast(ask, Take(self._ahead.__setitem__))

    def leave(self) -> None:
        """Give up the place in the queue; a second call does nothing."""
        if self._watch is not None:
            self._watch.close()
        self._leave_queue()

    def _leave_queue(self) -> None:
        ticket, self._ticket, self._settled = self._ticket, None, 0
        self._owners.forget()
        if ticket is not None:
            leave(self._engine.multiplexer, ticket, ticket.asked)


def _count_change(watch: Watch, refused: Attempt, index: int, reply: Any) -> None:
    """Count node `index` as changed if the ticket that it has was woken, or is gone.

    A node that granted our last attempt may leave the name to our ticket when that attempt is
    released. That says nothing about the other nodes, so it is only counted. If another key is
    gone, the name is free though nobody has woken us: a client without a queue had it, or its
    holder crashed.
    """
    parsed = values(reply)
    if type(parsed) is Failure:
        return
    if not refused.queued(index):
        if parsed[0] == WOKEN:
            watch.count(index)
    elif parsed[0] in (WOKEN, None):
        watch.on_change(index)
    elif None in parsed:
        watch.on_hint()


@coroutine
def _decided(ask: Ask, limit: float | None, *, armed: bool) -> Generator[Any, Any, None]:
    yield from decide(ask, limit, armed=armed)


class Pauses:
    """How long one call waits: until a push, until the holder's ttl is over, or by pacing."""

    def __init__(
        self, engine: Context, spec: LockSpec, deadline: float | None, until: float
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._deadline = deadline
        self._until = until
        self.longest: float = 0.4 * engine.settings.ticket_ttl
        """Maximum seconds of a pause: the nodes must hear of a ticket before it expires."""
        self.made: int = 0
        """Number of pauses so far."""
        self._in_vain = 0

    @property
    def expecting(self) -> bool:
        """Whether pushes are worth asking for: not too many have come in vain."""
        return self._in_vain < pacing.IN_VAIN

    async def wait(self, attempt: Attempt, watch: Watch | None, rank: int) -> None:
        """Wait until it is time for the next attempt; `rank` waiters go before this one."""
        engine = self._engine
        listening = watch is not None and not attempt.outage and engine.multiplexer.tracks()
        expecting = listening and self.expecting
        pause = self._length(attempt, rank, listening=expecting)
        self.made += 1
        if not listening or watch is None:
            await asyncio.sleep(pause)
            self._woke("pacing")
        elif await watch.wait(pause):
            self._woke("push")
            self._in_vain += watch.called  # if this attempt wins, nobody looks at it again
            if not self._spec.queue and len(engine.multiplexer.nodes) > 1:
                # The same release woke our rivals: a random pause prevents a split vote.
                await self.sleep(engine.spread.width * engine.random())
        else:
            self._woke("expiry" if expecting else "pacing")
            self._in_vain = max(0, self._in_vain - 1)

    def _woke(self, cause: str) -> None:
        if self._deadline is None or _clock.now() < self._deadline:
            self._engine.counts.wakeups[cause] += 1

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the deadline."""
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - _clock.now()))
        await asyncio.sleep(seconds)

    def _length(self, attempt: Attempt, rank: int, *, listening: bool) -> float:
        random = self._engine.random()
        remaining = None if attempt.outage else attempt.remaining
        if listening:
            pause = pacing.until_expiry(remaining, random)
        else:
            pause = pacing.without_push(self.made, remaining, random, rank=rank)
        pause = min(pause, self.longest * (0.75 + random / 4))
        end = self._until if self._deadline is None else self._deadline
        return min(pause, max(0.0, end - _clock.now()))
