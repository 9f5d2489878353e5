"""Acquires, releases, and the tick's outbox: one command for each node, decided together.

Nearly always all nodes reply alike: then a quorum of equal replies decides every name at once. The
first different reply, or a failure, turns the batch into one `Attempt` per name, which takes over
the replies so far: only an `Attempt` decides what a single reply means. A batch leaves out nodes
that are down or in quarantine. If any other node can't take batches, the batch splits itself: each
name goes to all nodes in a command of its own. A request that joins no other is a batch of one.

On a Cluster each server has batches of its own, in which each name has a command of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from .. import _clock
from .._nodes.link import LATE_TIMER_FACTOR
from .._nodes.multiplexer import Multiplexer, quarantined
from .._nodes.server import ServerNode
from .._nodes.wire import (
    ACQUIRE,
    BATCH,
    CACHING,
    GIVEN_UP,
    NO_RIGHT,
    RELEASE,
    REST,
    SENT_AGAIN,
    BatchCommand,
    Command,
    Failure,
    Word,
    pack,
    told_by,
)
from .._rules import validity
from ..events import GONE
from .attempt import Attempt, Ticket, leave
from .context import Context, closed
from .grant import Grant
from .spec import RELEASED, Granted, LockSpec, acquired, ms, plain, released, replies_of

MOST_NAMES, MOST_KEYS = 64, 384
"""Maximum numbers of names and keys in one command: those of 64 locks on three names, which take a
server 1.1 ms. 64 mutexes take it 0.3 ms, or 1 ms if all are held and leave tickets."""
FEW_KEYS: Final = MOST_KEYS // MOST_NAMES  # per name; names with more reach MOST_KEYS first
ALONE: Final = 8
"""Number of batches in a row with one name after which one task seems to be alone."""
MOST_UNSENT: Final = 32
"""Number of unsent batches, the newest ones, that a name may join. Each ttl has batches of its own,
and so does each server of a Cluster."""
UNDONE: Final = (*SENT_AGAIN, "CLUSTERDOWN")
"""Codes of a Cluster's errors that show that a command was not executed; it is then sent alone."""
WAKE_NOBODY = (1,)


@dataclass(slots=True, init=False, eq=False, repr=False)
class Ask:
    """One owner's request for one name, sent with all others of its tick."""

    context: Context
    spec: LockSpec
    ttl: float
    place: tuple[Word, ...]
    """Arguments that ask for a place in the queue; () if this one doesn't wait. With one word a
    node makes a ticket named after the owner (`Attempt.conclude`); a ticket has more words."""
    ticket: Ticket | None
    """The caller's place in the queue; None if it has none."""
    first: bool
    """Whether this is the first request of its call; `seeking` has the calls that ask again."""
    owner: str
    fence: int
    """The fence, once the whole batch was won; 0 before, and if each name is decided alone."""
    attempt: Attempt | None
    """The vote on this request alone; None while the batch may be decided as a whole."""
    batch: Batch
    future: asyncio.Future[None]
    """Done once the verdict is certain."""
    timer: asyncio.TimerHandle | None

    def __init__(
        self,
        context: Context,
        spec: LockSpec,
        ttl: float,
        place: tuple[Word, ...] = (),
        ticket: Ticket | None = None,
        first: bool = True,
    ) -> None:
        self.context = context
        self.spec = spec
        self.ttl = ttl
        self.place = place if ticket is None else ticket.words()
        self.ticket = ticket
        self.first = first
        self.owner = context.owners.new()
        self.fence = 0
        self.attempt = None
        # With the loop: to ask for the running one takes Python 3.11 a system call, `getpid`.
        self.future = asyncio.Future(loop=context.multiplexer.loop)
        self.timer = None

    async def decided(self, limit: float | None = None, *, armed: bool = False) -> None:
        """Send it and wait for the verdict. Raises ConfigurationError if the manager closes.

        If this is cancelled or closed, a release is sent to every node that may have granted; its
        replies are not awaited.
        limit: seconds after which the nodes that have not replied count as failed; None: no limit.
        armed: whether each node is to tell of changes of the name.
        """
        try:
            self.send(limit, armed=armed)
            if self.future.done():
                await asyncio.sleep(0)  # a request that fails at once must not starve the loop
            await self.future
        except BaseException:
            self.cut_off()
            raise
        self.settle()

    def send(self, limit: float | None, *, armed: bool = False) -> None:
        """Put the request into the first batch of this tick that has room and asks alike.

        An earlier release of the same name is in this batch or in one before it: any batch that has
        room for an acquire has room for a release. Then call `settle`, or `cut_off` after an error.
        """
        # A command for several names has no place for a ticket, a turn, an exempt owner or CACHING.
        own = armed or len(self.place) > 1 or self.spec.exempt
        # All objects exist by now. Creating one may start a garbage collection, which may close
        # another call, and the release of that call sends all batches.
        context, spec = self.context, self.spec
        nodes = context.multiplexer
        home = nodes.home and nodes.home(spec.all_keys)
        room = nodes.unsent and not own and _with_room(nodes.unsent, spec, self, home)
        self.batch = batch = room or Batch(context, spec, home)
        batch.ttl, batch.place = self.ttl, self.place
        if own:
            batch.most, batch.armed = 1, armed
        batch.asks.append(self)
        context.undos[self] = Ask.withdraw
        context.totals.attempts += 1
        _send_soon(nodes, batch, wait=False)
        if limit is not None:
            self.timer = self.future.get_loop().call_later(max(0.0, limit), self.expire)

    def settle(self) -> None:
        """Note that the verdict is there. Raises ConfigurationError if the manager was closed."""
        if self.timer is not None:
            self.timer.cancel()
        if self.context.undos.pop(self, None) is None:
            raise closed()

    def cut_off(self) -> None:
        """Withdraw the request unless it is settled; call this in an `except`."""
        context = self.context
        if self not in context.undos:
            return
        # Before the batch is sent, no node knows of the request.
        if not self.batch.sent and asyncio._get_running_loop() is context.multiplexer.loop:  # noqa: SLF001
            self._cut()
        else:
            context.clean_up(self._cut)

    def _cut(self) -> None:
        if self.context.undos.pop(self, None) is not None:
            self.withdraw()

    def barge(self) -> None:
        """Ask ahead of all waiters, because the turn of this process isn't over."""
        if self.place:
            self.place = (*self.place, self.owner, 0, 1)

    def to_attempt(self) -> Attempt:
        """Return the vote on this request alone; the first call makes it with the replies so far.

        Call this only after the batch was sent: the attempt copies the list of the nodes asked.
        """
        if self.attempt is None:
            batch = self.batch
            fields = self.context, self.spec, self.owner, self.ttl, self.place, self.ticket
            self.attempt = Attempt(*fields, batch.started, self.future)
            self.attempt.sent(batch.sent_to, batch.absent, batch.claims(self))
        return self.attempt

    def expire(self) -> None:
        """Count all nodes that have not replied as failed: the caller's time is over."""
        if not self.batch.sent:
            self.context.multiplexer.flush()  # uvloop runs timers before the tick has ended
        if not self.future.done():
            self.to_attempt().expire()

    def withdraw(self) -> None:
        """Undo the request: the caller was cancelled, or the manager is being closed."""
        if self.timer is not None:
            self.timer.cancel()
        batch = self.batch
        if not batch.sent:
            batch.asks.remove(self)  # no node will know of it
        elif batch.sending:
            # A garbage collection closed the call: its release follows the batch.
            self.context.soon(self.withdraw)
        else:
            attempt = self.to_attempt()
            attempt.abandon()
            attempt.leave_queue()
        if not self.future.done():  # no reply counts any more
            self.future.set_result(None)


@dataclass(slots=True, eq=False, repr=False)
class Release:
    """One release; it is done once its outcome is certain."""

    context: Context
    grant: Grant
    on_loss: Callable[[Grant, str], None] | None = None
    """Called with the grant and the reason if the replies show that the lease was lost before."""
    kept: bool = False
    """Whether the nodes wake nobody, because this process may ask again within its turn."""
    rest: float = 0.0
    """Seconds for which nobody gets the name; 0 for a release without a rest."""
    on_certain: Callable[[], None] | None = None
    """Called once when the release is done."""
    _answered: int = 0
    _deleted: int = 0
    _foreign: int = 0
    _future: asyncio.Future[None] | None = None

    def command(self) -> Command:
        """Build the command for this name alone."""
        grant, now = self.grant, _clock.now()
        more: tuple[Word, ...] = WAKE_NOBODY if self.kept else ()
        op, spec = RELEASE, grant.spec
        if self.rest:
            nodes = self.context.multiplexer
            nodes.read_clocks(now)  # the acquire may be long ago
            # The latest end by the nodes' clocks: a late release makes the rest hardly longer.
            op, more = REST, (ms(self.rest), nodes.not_after(now + self.rest))
        command = spec.release(grant.owner, grant.asked_since, now + grant.ttl, more, op)
        command.wakes = spec.watched
        return command

    def agreed(self, nodes: int) -> None:
        """Count a quorum of nodes that have released the name and on which nobody waits."""
        self._deleted += nodes
        self._answered += nodes
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of one node."""
        parsed = released(reply)
        if type(parsed) is Failure:
            if parsed.permanent:
                self.context.complain(parsed)
        else:
            if parsed.done:
                self._deleted += 1
            else:
                self._foreign += 1
            # A waiter may be ours: servers send no push for changes by our own connection.
            for ticket in self.grant.spec.woken(parsed):
                self.context.multiplexer.wakeups.wake(ticket, index)
        self._answered += 1
        if not self.certain():
            return
        if self.on_loss is not None and self._refuted():
            tell_loss, self.on_loss = self.on_loss, None
            tell_loss(self.grant, GONE)
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)
        if self.on_certain is not None:
            tell, self.on_certain = self.on_certain, None
            tell()

    def certain(self) -> bool:
        """Return whether a quorum released, no quorum can have had the lease, or all answered."""
        nodes = self.context.multiplexer
        enough = self._deleted >= nodes.quorum or self._answered >= len(nodes.nodes)
        return enough or self._refuted()

    def _refuted(self) -> bool:
        # Whether too many nodes for a quorum had lost the lease before the release.
        nodes = self.context.multiplexer
        return self._foreign > len(nodes.nodes) - nodes.quorum

    def done(self) -> asyncio.Future[None]:
        """Return a future that is done once the outcome is certain, within one node timeout."""
        self._future = asyncio.Future(loop=self.context.multiplexer.loop)
        if self._answered and self.certain():
            self._future.set_result(None)
        return self._future


@dataclass(slots=True, init=False, eq=False, repr=False)
class Batch:
    """What one loop tick sends to all nodes as one command, and the replies to it."""

    context: Context
    spec: LockSpec
    """The first name; all others have the same form."""
    home: ServerNode | None
    """The server of a Cluster that has all names; None elsewhere, or if unknown."""
    names: int
    """Number of names that were ever put in: a name that is taken out makes no room."""
    most: int
    """Maximum number of names."""
    asks: list[Ask]
    releases: list[Release]
    ttl: float
    """Seconds for which the names are requested. Unset without acquires, like `place`."""
    place: tuple[Word, ...]
    """Arguments that ask for a place in the queue; () if none of these waits."""
    armed: bool
    """Whether each node is to tell of changes of the name."""
    sent: bool
    sending: bool
    sent_to: list[int]
    """The nodes that the command was sent to; none if single commands were sent."""
    absent: dict[int, Failure]
    """Why the other nodes were not asked."""
    started: float
    valid_until: float
    agreeing: list[int]
    """The nodes that have replied like the first one; none is added once a node differs."""
    numbers: list[int]
    """Their reply for each name: releases first, then acquires."""
    voters: tuple[int, ...]
    _nodes: Multiplexer
    _limits: tuple[int, int, int]
    """The fence floor, the time after which no node may acquire, and the fences' retention."""
    _give_up_at: float
    """The moment on our clock that each node takes for the second one; 0 if that is known."""
    _first: list[Any]
    """The first reply, without the node's clock."""
    _missing: int
    _split: bool

    def __init__(self, context: Context, spec: LockSpec, home: ServerNode | None = None) -> None:
        self.asks, self.releases, self.sent_to, self.agreeing = [], [], [], []
        self.armed = self.sent = self.sending = self._split = False
        self.absent = {}
        self.voters = ()
        self.context = context
        self.spec = spec
        self.home = home
        self.names = 1
        self.most = MOST_NAMES if (keys := len(spec.all_keys)) <= FEW_KEYS else MOST_KEYS // keys
        self._nodes = context.multiplexer
        self._nodes.unsent.append(self)

    def send(self, *, write: bool) -> None:
        """Send the batch; with `write`, write it and all commands that are queued."""
        if self.sent:  # a garbage collection closed a call, and its release sent all batches
            return
        self.sent, nodes, asks = True, self._nodes, self.asks
        if not asks and not self.releases:
            return
        self.sending = True
        try:
            self.started = started = _clock.now()
            if asks:
                self.valid_until = validity.valid_until(started, self.ttl)
                until = started + LATE_TIMER_FACTOR * self.context.settings.node_timeout
                floor, not_after = nodes.fence_floor(started), nodes.not_after(until)
                self._limits = floor, not_after, self.context.retention
                # If too few clocks are known for this limit, each node gets one by its own clock.
                self._give_up_at = 0.0 if not_after else until
            sent_to = self.sent_to
            servers = nodes.nodes if self.home is None else (self.home,)
            # While a Cluster's clock is unknown, each name needs a limit of its own.
            singly = self.home is not None and asks and self._limits[0] < 0
            for index, node in enumerate(servers):
                takes = node.takes_batches
                lack = None if takes else node.silence
                if lack is None and asks:
                    lack = node.obstacle(started)
                if lack is not None:
                    self.absent[index] = lack
                else:
                    sent_to.append(index)
                    singly = singly or not takes
            self._missing = len(sent_to)
            if singly or self._missing < nodes.quorum:
                self._send_singly()
                return
            command = self._command()
            nodes.undecided += 1
            nodes.singles = nodes.singles + 1 if self.names == 1 else 0
            for index in sent_to:
                servers[index].send_batch(command, self, index, write=write)
            for release in self.releases if self.absent else ():
                nodes.deliver(release.command(), release, tuple(self.absent))
        finally:
            self.sending = False

    def _send_singly(self) -> None:
        """Send each name by itself: releases to all nodes, acquires to those that may vote."""
        nodes, self._split = self._nodes, True
        for release in self.releases:
            nodes.deliver(release.command(), release, nodes.everyone)
        if self.home is not None:  # the Cluster looks for the server
            self.sent_to, self.absent = [0], {}
        elif self._missing < nodes.quorum:
            self.sent_to = []
        for ask in self.asks:
            attempt, command = ask.to_attempt(), self._acquire(ask)
            for index in self.sent_to:
                nodes.nodes[index].ask(command, attempt, index)
            if not self.sent_to and not ask.future.done():  # else its task is being cancelled
                ask.future.set_result(None)
        self.asks, self.releases = [], []

    def _command(self) -> Command:
        """Build the command for all names; for one name its own, which takes a node less time."""
        asks, releases = self.asks, self.releases
        if len(releases) + len(asks) == 1:
            return self._acquire(asks[0]) if asks else releases[0].command()
        given_up = [release.grant for release in releases]
        owners = [ask.owner for ask in asks]
        singles = partial(self._singles, releases, asks)
        command: BatchCommand
        if self.home is not None:
            more = pack((ms(self.ttl), *self._limits, *self.place))[4:] if asks else b""
            each = [one.spec.packed(RELEASE, one.owner) for one in given_up]
            each += [one.spec.packed(ACQUIRE, one.owner, 4 + len(self.place), more) for one in asks]
            command = BatchCommand(None, (), (BATCH,), owners, singles)
            command.size, command.packed = len(each), b"".join(each)
        else:
            names = [grant.spec.all_keys for grant in given_up]
            names += [ask.spec.all_keys for ask in asks]
            locks, counters, *others = zip(*names, strict=True)
            keys = [*locks, *chain(*others), *counters[len(releases) :]]
            common: tuple[Word, ...] = 1, 0, 0, self.context.retention, 0
            if asks:
                common = ms(self.ttl), *self._limits, *(self.place or (0,))
            args: list[Word] = [BATCH, len(releases), *common]
            args += [grant.owner for grant in given_up]
            command = BatchCommand(self.spec.script, keys, [*args, *owners], owners, singles)
        command.unlimited = bool(releases)
        command.wakes = [key for grant in given_up for key in grant.spec.watched]
        if asks:
            command.give_up_at = self._give_up_at
        return command

    def _singles(self, releases: list[Release], asks: list[Ask]) -> list[Command]:
        return [*(release.command() for release in releases), *map(self._acquire, asks)]

    def _acquire(self, ask: Ask) -> Command:
        """Build the command for this name alone."""
        command = ask.spec.acquire(ask.owner, self.ttl, *self._limits, self.place)
        command.give_up_at = self._give_up_at
        return command.behind(CACHING) if self.armed else command

    # replies

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`; a quorum of equal ones decides the batch."""
        asks, agreeing, node = self.asks, self.agreeing, self._nodes.nodes[index]
        if self.home is not None:
            node.round_trip = self.home.round_trip
            node = self.home
        if self._split or (asks and self.started < node.trust.votes_from):
            agrees = False
        elif agreeing:
            agrees = type(reply) is list and reply[:-1] == self._first
        elif agrees := (numbers := plain(reply, len(self.releases), len(asks))) is not None:
            self.numbers, self._first = numbers, reply[:-1]
        if agrees:
            agreeing.append(index)
            if len(agreeing) == self._nodes.quorum:
                self._decide()
        else:
            self._count(index, reply)
        self._missing -= 1
        if not self._missing:  # end the circle of asks and batch, which only a collector frees
            self.asks, self.releases = [], []

    def claims(self, ask: Ask) -> dict[int, int]:
        """Return the fences that `ask` got from the nodes that replied like the first one."""
        if ask.fence:
            return dict.fromkeys(self.voters, ask.fence)
        if not self.agreeing:
            return {}
        fence = self.numbers[self.asks.index(ask) - len(self.asks)]
        return dict.fromkeys(self.agreeing, fence)

    def _decide(self) -> None:
        self.voters = tuple(self.agreeing)
        self._nodes.undecided -= 1
        for release in self.releases:
            release.agreed(len(self.voters))
        fences = self.numbers[len(self.releases) :]
        for ask, fence in zip(self.asks, fences, strict=True):
            ask.fence = fence
            if not ask.future.done():  # otherwise its task is being cancelled
                ask.future.set_result(None)

    def _count(self, index: int, reply: Any) -> None:
        """Count a reply for each name alone; once the batch is decided, not a failure.

        Send the name's own command if the reply shows that it was not executed, or may have been
        denied for another name.
        """
        late = bool(self.voters) and type(reply) is Failure
        if not late:
            self._split_up()
        node, home, releases = self._nodes.nodes[index], self.home, self.releases
        in_cluster = home is not None
        replies = replies_of(reply, len(releases), len(self.asks))
        # The user may lack the right to one of several names only.
        undone = UNDONE if in_cluster else (NO_RIGHT,) if len(replies) > 1 else ()
        if in_cluster and type(reply) is Failure and reply.code not in undone:
            self._nodes.look_again()  # the server may have an heir
        for release, answer in zip(releases, replies, strict=False):
            if type(answer) is Failure and answer.code in undone:
                node.deliver(release.command(), release, index)
            else:
                release.on_reply(index, answer)
        if late:
            ttl = self.context.settings.ticket_ttl
            for ask in self.asks if self.asks and self.place else ():
                # The node may still execute the command, refuse the name and keep a ticket.
                ticket = ask.ticket or Ticket(ask.spec, ask.owner, self.started, ttl, set())
                leave(self._nodes, ticket, (index,))
            return
        barred = home is not None and self.started < home.trust.votes_from
        for ask, answer in zip(self.asks, replies[len(releases) :], strict=True):
            attempt, told, failed = ask.to_attempt(), answer, type(answer) is Failure
            alive = ask in self.context.undos and not ask.future.done()
            if failed and answer.code in undone:
                if alive:
                    node.ask(self._acquire(ask), attempt, index)
                    continue
                if in_cluster:
                    told = GIVEN_UP  # its release was sent
            elif home is not None:
                if barred and type(acquired(answer)) is Granted:
                    told = quarantined(home)
                if type(told) is Failure:
                    told = told_by(home.address, told)
            attempt.on_reply(index, told)

    def _split_up(self) -> None:
        """Decide each name alone from now on; releases count the replies so far."""
        if not self._split:
            self._split = True
            if self.voters:
                return
            self._nodes.undecided -= 1
            for release in self.releases:
                for agreed in self.agreeing:
                    release.on_reply(agreed, RELEASED)


def batch_release(release: Release, *, wait: bool) -> None:
    """Put one release into the first batch of this tick that has room.

    wait: an acquire of the name may join, because a task of this process asks for it now.
    """
    context, spec = release.context, release.grant.spec
    nodes = context.multiplexer
    home = nodes.home and nodes.home(spec.all_keys)
    room = nodes.unsent and _with_room(nodes.unsent, spec, None, home)
    batch = room or Batch(context, spec, home)
    batch.releases.append(release)
    _send_soon(nodes, batch, wait=wait)


def _with_room(
    unsent: list[Any], spec: LockSpec, ask: Ask | None, home: ServerNode | None
) -> Batch | None:
    """Return a batch that a release (None), or an acquire with equal arguments, may join."""
    batch: Batch  # nothing else puts itself in there
    for batch in unsent[-MOST_UNSENT:]:
        if batch.spec.form != spec.form or batch.sent or batch.home is not home:
            continue
        if ask is None or not batch.asks or (batch.ttl == ask.ttl and batch.place == ask.place):
            batch.names += 1
            return batch
    return None


def _send_soon(nodes: Multiplexer, batch: Batch, *, wait: bool) -> None:
    """Send the batch when the tick ends, or now if it is full or one task seems to be alone."""
    # To wait for the end of the tick gains nothing if many batches in a row had one name, and all
    # have their verdicts. Compare Nagle's rule, RFC 896.
    alone = nodes.singles >= ALONE and not (wait or nodes.undecided)
    if alone or batch.names >= batch.most:
        nodes.flush(write=alone or batch.most > 1)  # otherwise others of the tick share the write
    elif not nodes.flush_due:
        nodes.flush_soon()
