"""Asks the nodes until they grant: attempts, and the pauses between them.

After a refusal the loop arms a wake-up and looks once more before it waits, so it can't miss a
release: where the nodes keep a queue it looks at its ticket, elsewhere it asks again. Every wait is
bounded by the holder's remaining ttl, by pacing and by the caller's deadline.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import _clock
from .._nodes.wakeup import Watch
from .._nodes.wire import Command, Failure, Take
from .._rules import pacing, validity
from .._rules.seeking import Owners, Seeking, Seen, Step
from ..errors import AcquireTimeoutError, AsyncLockError
from ..events import Contended, SplitVote, Voted
from . import refusals
from .attempt import WOKEN, Attempt, Ticket, leave
from .context import closed
from .engine import Engine
from .grant import LocalQueue
from .inspection import NAMED, before, question
from .outbox import Ask
from .spec import LockSpec, digest, label, values


@dataclass(eq=False, repr=False)
class Seek:
    """Asks the nodes for one task, and does what `Seeking` decides; call `run` once."""

    _engine: Engine
    _spec: LockSpec
    _ttl: float
    _deadline: float | None
    _began: float
    """When the call was made."""
    _once: bool
    """Whether the call takes only what is free."""
    _barge: bool
    """Whether the next request goes ahead of all waiters."""
    _queue: LocalQueue
    """Keeps the last attempt if too few nodes voted, also for the tasks that wait there."""
    contended: Attempt | None = None
    """The last attempt that was lost to other holders."""

    def __post_init__(self) -> None:
        engine, settings, spec = self._engine, self._engine.settings, self._spec
        # The first attempt that is refused leaves a ticket. Without a queue, or in a try_acquire,
        # only a split vote makes one.
        self._ticket: Ticket | None = None
        self._place = engine.place if spec.queue and not self._once else ()
        self._seeking: Seeking = Seeking(
            began=self._began,
            deadline=self._deadline,
            once=self._once,
            queues=bool(self._place),
            # Nothing can free a name with a detached lease for a call that resumes it.
            settles=not (self._once and spec.exempt),
            permits=spec.permits,
            node_timeout=settings.node_timeout,
            ticket_ttl=settings.ticket_ttl,
            patience=validity.longest_outage(settings.max_ttl),
            owners=Owners(engine.multiplexer.quorum, settings.node_timeout),
        )
        self._watch: Watch | None = None
        self._ahead: dict[int, Any] = {}
        """Each node's last reply about the waiters before this one."""

    async def run(self, first: Attempt | None = None) -> Attempt:
        """Return the attempt that was won, or raise the caller's error.

        `first` is the attempt that a batch has made already, if there was one.
        """
        engine, spec = self._engine, self._spec
        engine.seeking[self] = None
        engine.undos[self] = Seek.leave
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
                spec = await self._next(attempt)
            raise closed()
        except AcquireTimeoutError as error:
            self._explain(error)
            raise
        finally:
            engine.clean_up(self._end)

    def _explain(self, error: AcquireTimeoutError) -> None:
        """Add to the error how long the timeout was, the place in the queue, and the message."""
        if self._deadline is None or self._deadline <= self._began:
            return
        timeout, ticket = round(self._deadline - self._began, 3), self._ticket
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
        engine = self._engine
        lost = None if self.contended is None else self.contended.seen()
        limit = self._seeking.limit(lost, _clock.now())
        if limit is not None and limit <= 0:
            raise self.out_of_time()
        place, ticket = self._place, self._ticket
        if self._counts_as_dead():
            self._leave_minority()
            place, ticket = (), None
        ask = Ask(engine, spec, self._ttl, place, ticket, first=False)
        if self._barge:
            ask.barge()
            self._barge = False
        watch = self._watch
        if watch is not None:
            watch.reset()
        await ask.decided(limit, armed=watch is not None and not spec.queue)
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

    async def _next(self, attempt: Attempt) -> LockSpec:
        """Take the step that follows an attempt that was lost; return the spec to ask for."""
        seeking, ticket = self._seeking, self._ticket
        other = None if attempt.outage else self._elsewhere(attempt)
        unsettled = ticket is not None and ticket.unsettled
        look = partial(attempt.seen, slot=other is not None, unsettled=unsettled)
        seen = look()
        step = seeking.after(seen, _clock.now())
        if not attempt.outage:
            self._meet(attempt, refused=step is not Step.ELSEWHERE)
        elif step not in (Step.TAKEN, Step.OUT_OF_TIME):  # otherwise the nodes lacked the time
            self._queue.unanswered = attempt
        if step is Step.WAIT:
            if not attempt.outage and self._arm(attempt):
                return self._spec
            await self._pause(attempt, seen)
            step = seeking.waited(look(), _clock.now())  # late replies may have come
        match step:
            case Step.AGAIN:
                return self._spec
            case Step.SETTLE:
                await self._settle()
                return attempt.spec
            case Step.ELSEWHERE:
                return other or self._spec
            case _:
                raise self._error(step, attempt)

    def _error(self, step: Step, attempt: Attempt) -> AsyncLockError:
        if step is Step.TAKEN:
            return refusals.refused(self.contended or attempt, waited=not self._once)
        if step is Step.HOPELESS:
            return refusals.hopeless(attempt)
        return refusals.outage(attempt) if step is Step.OUTAGE else self.out_of_time()

    def out_of_time(self) -> AsyncLockError:
        """Return the error for a call whose time ended during or between attempts."""
        if self._queue.unanswered is not None:
            return refusals.outage(self._queue.unanswered)
        if self.contended is not None:
            return refusals.refused(self.contended, waited=not self._once)
        return refusals.out_of_time(self._engine, self._spec)

    # others have it

    def _meet(self, attempt: Attempt, *, refused: bool) -> None:
        """Note that others have the name; `refused`: also in the statistics and for observers."""
        engine, name = self._engine, self._spec.name
        engine.seeking[self] = name, self._began
        self.contended, self._queue.unanswered = attempt, None
        self._queue.holder = attempt.holder
        if refused:
            engine.totals.refused += 1
            engine.totals.split_votes += attempt.split
            if engine.observers:
                if attempt.split:
                    engine.observers(SplitVote(name))
                holder, known_as = label(attempt.holder), digest(attempt.holder)
                engine.observers(Contended(name, holder, attempt.remaining, known_as))
            if not self._once:
                self._forbid_waiting_for_ourselves(attempt)
        if not (self._place or self._seeking.settled):
            self._leave_queue()  # the ticket was only to settle a vote

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
        if nodes.tracks() and self._seeking.expects_pushes:
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

    async def _settle(self) -> None:
        """Take a ticket that stays in the queue, and pause if the nodes know it already."""
        ticket, now = self._ticket, _clock.now()
        if ticket is None:
            ttl = self._engine.settings.ticket_ttl
            ticket = self._ticket = Ticket(self._spec, self._engine.owners.new(), now, ttl, set())
        ticket.stay()
        if self._seeking.settled > 1 and not ticket.unsettled:
            await asyncio.sleep(self._seeking.before_settling(now, self._engine.random()))

    def _forbid_waiting_for_ourselves(self, attempt: Attempt) -> None:
        # The local queue doesn't know of conflicts between reader and writer or of several names,
        # so check whether the reported holder is our own task.
        engine, task = self._engine, asyncio.current_task()
        ours, spec = engine.renewals.find(attempt.holder or ""), self._spec
        shares = spec.shared and engine.renewals.shares(spec, task)
        if shares or (ours is not None and ours.spec.permits == 1 and ours.inside(task)):
            raise refusals.already_held(spec.name)

    # between two attempts

    async def _pause(self, attempt: Attempt, seen: Seen) -> None:
        self._prepare_error(attempt)
        engine, seeking, watch, ticket = self._engine, self._seeking, self._watch, self._ticket
        nodes, rank = engine.multiplexer, 0 if ticket is None else ticket.rank
        listens = watch is not None and not attempt.outage and nodes.tracks()
        expects = listens and seeking.expects_pushes
        now, random = _clock.now(), engine.random()
        seconds = seeking.pause(seen, now, random, rank=rank, listens=expects)
        if not listens or watch is None:
            await asyncio.sleep(seconds)
            self._woke("pacing")
        elif await watch.wait(seconds):
            self._woke("push")
            seeking.pushed(called=watch.called)
            if not self._spec.queue and len(nodes.nodes) > 1:
                # The same release woke our rivals: a random pause prevents a split vote.
                await self._sleep(pacing.PUSH_SPREAD * engine.random())
        else:
            self._woke("expiry" if expects else "pacing")
            seeking.unpushed()

    def _woke(self, cause: str) -> None:
        if not self._seeking.late(_clock.now()):
            self._engine.totals.wakeups[cause] += 1

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the deadline."""
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - _clock.now()))
        await asyncio.sleep(seconds)

    def _prepare_error(self, attempt: Attempt) -> None:
        """Ask for the holder's message and the waiters before us, for the error of a timeout.

        This is done before a pause in which the timeout may end, so nobody waits for the replies.
        """
        nodes, ticket, now = self._engine.multiplexer, self._ticket, _clock.now()
        ending = self._deadline is not None and self._deadline - now <= self._seeking.longest
        if attempt.outage or (not ending and not self._seeking.pauses):
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
        ticket, self._ticket = self._ticket, None
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
