"""From wanting a lock to a lease: one attempt after the other until won, refused or too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .. import _clock
from .._nodes.acks import UNSUPPORTED
from .._nodes.link import NOBODY
from .._nodes.script import Word
from .._nodes.wakeup import Watch
from .._rules import pacing, validity
from ..errors import (
    AcquireTimeoutError,
    AlreadyHeldError,
    AsyncLockError,
    ConfigurationError,
    NotAcquiredError,
    QuorumUnavailableError,
    UnsupportedDeploymentError,
)
from ..events import Contended, Failed, SplitVote
from .attempt import Attempt
from .lease import Holding, Lease, Terms
from .recipe import Recipe, ms
from .waiting import Line, Stranded, Turn, reserve_now, take_fence

if TYPE_CHECKING:
    from .engine import Engine

YIELD = 0.002
"""A process that kept a name for long lets the others' wake-ups travel before it asks again."""
HOPS = 3
"""So many other places of a name are tried at once; then rivals get some room."""
OUTAGE = 3.0
"""Who waits for ever rides out an outage of the longest quarantine and so many seconds more."""


class Wish:
    """Somebody wants a lock until a deadline (None: for ever), or only if it is free (`once`)."""

    __slots__ = ("_engine", "_once", "_recipe", "_started", "_terms", "deadline")

    def __init__(
        self, engine: Engine, recipe: Recipe, terms: Terms, *, timeout: float | None, once: bool
    ) -> None:
        self._engine = engine
        self._recipe = recipe
        self._terms = terms
        self._once = once
        self._started = _clock.now()
        self.deadline = None if timeout is None else self._started + timeout

    async def fulfil(self) -> Lease:
        """Get the lease. Raises NotAcquiredError (`once`), AcquireTimeoutError,
        QuorumUnavailableError or ConfigurationError; cancelled or failed, it leaves nothing.
        """
        engine = self._engine
        engine.ready()
        try:
            return await self._through_the_line()
        except AsyncLockError as error:
            if engine.observers:
                outcome = _OUTCOMES.get(type(error), "error")
                waited = _clock.now() - self._started
                engine.observers(Failed(self._recipe.name, outcome, waited))
            raise

    async def _through_the_line(self) -> Lease:
        engine, key = self._engine, self._recipe.line
        if key is None:
            return await self._seek(None)
        line = engine.lines.get(key)
        if line is None:
            line = engine.lines[key] = Line(key, self._recipe.permits)
        elif self._once:
            if line.full:
                raise self._refused_by(line.holdings[0])
            return await self._seek(None)
        if not line.asking and not line.full:
            line.asking += 1
            return await self._as_head(line, Turn(None))
        self._forbid_deadlock(line)
        return await self._as_head(line, await self._wait_for_turn(line))

    def _forbid_deadlock(self, line: Line) -> None:
        task = asyncio.current_task()
        leases = [holding.lease for holding in line.holdings]
        if line.full and all(lease is not None and lease.task is task for lease in leases):
            raise self._already_held()

    def _already_held(self) -> AlreadyHeldError:
        return AlreadyHeldError(
            f"this task already holds {self._recipe.name!r}; waiting for it would never end "
            "(reentrant_lock may be nested)",
            name=self._recipe.name,
        )

    async def _wait_for_turn(self, line: Line) -> Turn:
        engine = self._engine
        engine.waiting += 1
        if line.full:
            engine.expect_handover(line.holdings[0])
        try:
            turn = await line.wait(self._terms, self.deadline)
        except Stranded as error:
            if error.turn is not None:
                self._pass_on(line, error.turn)
            raise (error.__cause__ or error) from None
        finally:
            engine.waiting -= 1
        if turn is None:
            raise self._timed_out(line.holdings[0] if line.holdings else None)
        engine.counts.wakeups["turn"] += 1
        return turn

    def _pass_on(self, line: Line, turn: Turn) -> None:
        # Cancelled in the moment it was our turn: the next one gets it just so.
        if line.give(turn):
            return
        if turn.holding is not None:
            self._engine.give_back(turn.holding)
        else:
            line.asking -= 1
        self._engine.next_in_line(line)

    async def _as_head(self, line: Line, turn: Turn) -> Lease:
        engine = self._engine
        asking = turn.holding is None
        try:
            if engine.closed:
                raise ConfigurationError("the manager was closed while this waited")
            if turn.holding is not None:
                lease = await self._take_over(turn.holding)
                if lease is not None:
                    return lease
                line.asking += 1
                asking = True
            elif turn.yielding:
                await asyncio.sleep(YIELD + engine.random() * engine.spread.width)
            return await self._seek(line)
        finally:
            line.asking -= asking
            engine.next_in_line(line)

    async def _take_over(self, holding: Holding) -> Lease | None:
        engine, terms = self._engine, self._terms
        try:
            if not holding.fences:
                await reserve_now(engine, holding, terms)
            if holding.valid_until - _clock.now() < holding.ttl / 2:
                await engine.stretch(holding, holding.ttl)
            fence = take_fence(holding)
        except BaseException:
            engine.give_back(holding)
            raise
        if fence is None or holding.lost_reason or _clock.now() >= holding.valid_until:
            engine.give_back(holding)
            return None
        engine.counts.handovers += 1
        waited = _clock.now() - self._started
        return engine.grant(holding, fence, terms, waited=waited, votes=0, handed_over=True)

    # asking the nodes

    async def _seek(self, line: Line | None) -> Lease:
        engine = self._engine
        recipe, ticket = self._recipe, self._ticket()
        watch: Watch | None = None
        number = hops = 0
        outage_since: float | None = None
        contended: Attempt | None = None
        engine.waiting += 1
        try:
            while True:
                attempt = Attempt(engine, recipe, self._terms.ttl, ticket)
                engine.counts.attempts += 1
                armed = watch is not None
                if watch is not None:
                    watch.reset()
                limit = self._limit(attempt.started) if number or armed else None
                if await attempt.decide(armed=armed, limit=limit):
                    ticket = ()
                    return self._won(attempt, line)
                if engine.closed:
                    raise ConfigurationError("the manager was closed while this waited")
                engine.ready()
                if attempt.outage:
                    if contended is not None and self._cut_short(attempt):
                        raise self._refusal(AcquireTimeoutError, _TOO_LONG, contended)
                    outage_since = outage_since or attempt.started
                    self._judge_outage(attempt, outage_since)
                else:
                    outage_since, contended = None, attempt
                    other = self._elsewhere(attempt)
                    recipe = other or self._recipe
                    if other is not None and hops < HOPS:
                        hops += 1
                        continue
                    self._note_refusal(attempt)
                    if other is not None:
                        await self._make_room()
                        continue
                    if watch is None and engine.multiplexer.tracks():
                        # Arm, then ask again, then wait: nothing is missed in between.
                        watch = engine.multiplexer.wakeups.watch(self._recipe.watched)
                        continue
                await self._pause(attempt, number, watch)
                number += 1
                hops = 0
        finally:
            engine.waiting -= 1
            if watch is not None:
                watch.close()
            if ticket:
                engine.multiplexer.broadcast(self._recipe.leave(ticket[0]), NOBODY)
                for key in self._recipe.neighbours:
                    engine.multiplexer.wakeups.wake(key)

    def _ticket(self) -> tuple[Word, ...]:
        # Remembered by the nodes for as long as we come back in time; not by those we only ask.
        patience = self._recipe.patience
        if not patience:
            return ()
        return (self._engine.new_owner(), 0 if self._once else ms(patience))

    def _elsewhere(self, attempt: Attempt) -> Recipe | None:
        choose = attempt.recipe.elsewhere
        if choose is None or not attempt.hints:
            return None
        nodes = self._engine.multiplexer
        spare = len(nodes.nodes) - nodes.quorum
        return choose(attempt.hints, spare, self._engine.random())

    async def _make_room(self) -> None:
        # There is a place, but rivals got in our way: spread out.
        self._engine.spread.split()
        await asyncio.sleep(self._engine.spread.width * self._engine.random())

    def _limit(self, now: float) -> float | None:
        # Only near the deadline: an attempt ends by itself within two node timeouts.
        if self.deadline is None or self._once:
            return None
        left = self.deadline - now
        return left if left < 2 * self._engine.settings.node_timeout else None

    def _cut_short(self, attempt: Attempt) -> bool:
        # The caller's time was up before the nodes' own was: no outage, as far as we know.
        now = _clock.now()
        late = self.deadline is not None and now >= self.deadline
        return late and now - attempt.started < self._engine.settings.node_timeout

    def _won(self, attempt: Attempt, line: Line | None) -> Lease:
        engine, terms = self._engine, self._terms
        ballot = attempt.ballot
        engine.spread.won()
        holding = Holding(
            attempt.recipe, attempt.owner, ballot.fence, terms.ttl, attempt.valid_until
        )
        holding.since = _clock.now()
        if line is not None:
            holding.line = line
            line.holdings.append(holding)
            line.since = line.since or holding.since
        lease = engine.grant(
            holding,
            ballot.fence,
            terms,
            waited=holding.since - self._started,
            votes=len(ballot.claims),
        )
        engine.renewals.add(holding, attempt.started)
        return lease

    def _note_refusal(self, attempt: Attempt) -> None:
        engine, name = self._engine, self._recipe.name
        engine.counts.refused += 1
        if attempt.split:
            engine.counts.split_votes += 1
            engine.spread.split()
            if engine.observers:
                engine.observers(SplitVote(name))
        if engine.observers:
            engine.observers(Contended(name, label(attempt.holder), attempt.remaining))
        if self._once:
            raise self._refusal(NotAcquiredError, "is held by", attempt)
        self._forbid_waiting_for_ourselves(attempt)
        if self.deadline is not None and _clock.now() >= self.deadline:
            raise self._refusal(AcquireTimeoutError, _TOO_LONG, attempt)

    def _forbid_waiting_for_ourselves(self, attempt: Attempt) -> None:
        # Where one place of a name excludes another, or one name another, no line can tell.
        ours = self._engine.renewals.find(attempt.holder or "")
        if ours is None or ours.lease is None or (ours.line is not None and ours.line.permits > 1):
            return
        if ours.lease.task is asyncio.current_task():
            raise self._already_held()

    def _judge_outage(self, attempt: Attempt, since: float) -> None:
        now = _clock.now()
        failures = attempt.failures.values()
        hopeless = [failure for failure in failures if failure.permanent]
        size = len(self._engine.multiplexer.nodes)
        if size - len(hopeless) < self._engine.multiplexer.quorum:
            unsupported = any(failure.code == UNSUPPORTED for failure in hopeless)
            kind = UnsupportedDeploymentError if unsupported else ConfigurationError
            raise kind(
                f"{self._recipe.name!r} can't be locked here: {_listed(attempt.causes())}",
                name=self._recipe.name,
            )
        patience = validity.quarantine(self._engine.settings.max_ttl) + OUTAGE
        over = now - since >= patience if self.deadline is None else now >= self.deadline
        if self._once or over:
            raise QuorumUnavailableError(
                f"too few nodes answered to decide on {self._recipe.name!r}: "
                f"{_listed(attempt.causes())}",
                name=self._recipe.name,
                nodes=attempt.causes(),
            )

    async def _pause(self, attempt: Attempt, number: int, watch: Watch | None) -> None:
        engine = self._engine
        random = engine.random()
        remaining = None if attempt.outage else attempt.remaining
        listening = watch is not None and not attempt.outage and engine.multiplexer.tracks()
        if attempt.split:
            pause, listening = engine.spread.width * random, False
        elif listening:
            pause = pacing.until_expiry(remaining, random)
        else:
            pause = pacing.without_push(number, remaining, random)
        if self._recipe.patience:
            pause = min(pause, self._recipe.patience / 2)
        if self.deadline is not None:
            pause = min(pause, max(0.0, self.deadline - _clock.now()))
        if not listening or watch is None:
            engine.counts.wakeups["pacing"] += 1
            await asyncio.sleep(pause)
        elif await watch.wait(pause):
            engine.counts.wakeups["push"] += 1
            if len(engine.multiplexer.nodes) > 1:
                # Rivals were woken by the same release: spread out, or the vote is split.
                await asyncio.sleep(engine.spread.width * engine.random())
        else:
            engine.counts.wakeups["expiry"] += 1

    # what to say

    def _refusal(self, kind: type[NotAcquiredError], text: str, attempt: Attempt) -> Exception:
        holder = label(attempt.holder)
        ballot = attempt.ballot
        return kind(
            f"{self._recipe.name!r} {text} {holder!r}",
            name=self._recipe.name,
            owner=attempt.holder,
            holder=holder,
            remaining=attempt.remaining,
            votes={
                "granted": len(ballot.claims),
                "refused": ballot.refused,
                "unknown": ballot.unknown,
            },
        )

    def _refused_by(self, holding: Holding) -> NotAcquiredError:
        return NotAcquiredError(
            f"{self._recipe.name!r} is held by this process",
            name=self._recipe.name,
            owner=holding.owner,
            holder=label(holding.owner),
            remaining=max(0.0, holding.valid_until - _clock.now()),
        )

    def _timed_out(self, holding: Holding | None) -> AcquireTimeoutError:
        return AcquireTimeoutError(
            f"{self._recipe.name!r} was not free in time; others of this process want it too",
            name=self._recipe.name,
            owner=None if holding is None else holding.owner,
            holder=None if holding is None else label(holding.owner),
            remaining=None if holding is None else max(0.0, holding.valid_until - _clock.now()),
        )


_TOO_LONG = "was not free in time; it is held by"
_OUTCOMES: dict[type[AsyncLockError], str] = {
    NotAcquiredError: "refused",
    AcquireTimeoutError: "timeout",
    QuorumUnavailableError: "outage",
}


def label(owner: str | None) -> str | None:
    """The holder's label in an owner id; untrusted text. The whole id where it isn't ours."""
    return None if owner is None else owner.partition(":")[2] or owner


def _listed(causes: dict[str, str]) -> str:
    return "; ".join(f"{node}: {cause}" for node, cause in causes.items()) or "no node answered"
