"""The acquires and releases of one loop tick: one command for each node, decided together.

Nearly always all nodes reply alike: then a quorum of equal replies decides every name at once. The
first different reply, or a failure, turns the batch into one `Attempt` per name, which takes over
the replies so far: only an `Attempt` decides what a single reply means. A batch leaves out nodes
that are down or in quarantine. If any other node can't take batches, as a Cluster never can, each
name goes to all nodes in a command of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from .. import _clock
from .._nodes.link import LATE_TIMER_FACTOR
from .._nodes.multiplexer import Multiplexer, UnsentBatch
from .._nodes.replies import NO_RIGHT, Failure
from .._nodes.script import Command, Word
from .._rules import validity
from .context import Context
from .message import RELEASED, Message, parts_of, plain
from .release import Release
from .request import Request
from .spec import LockSpec

MOST_KEYS: Final = 192
"""Maximum number of keys in one command, as 64 mutexes have. A server needs 0.3 ms for these, or
1 ms if all are held."""
ALONE: Final = 8
"""Number of batches in a row with one name after which one task seems to be alone."""
Alike = tuple[float, tuple[Word, ...]]
"""What all acquires of a batch have in common: their ttl, and the arguments if they wait."""
MOST_UNSENT: Final = 4
"""Number of unsent batches, the newest ones, that a name may join: each ttl has one of its own."""


class Batch:
    """What one loop tick sends to all nodes as one command, and the replies to it."""

    __slots__ = (
        "_message",
        "_missing",
        "_nodes",
        "_replies",
        "_split",
        "absent",
        "agreeing",
        "context",
        "names",
        "releases",
        "requests",
        "sending",
        "sent",
        "sent_to",
        "spec",
        "started",
        "ttl",
        "valid_until",
        "voters",
        "waits",
    )
    _message: Message

    def __init__(self, context: Context, spec: LockSpec) -> None:
        self.context = context
        self.spec = spec
        """The first name; all others have the same script, and as many keys."""
        self.ttl: float = 0.0
        """Seconds for which the names are requested."""
        self.waits: tuple[Word, ...] = ()
        """Arguments of an acquire that waits if it is refused; () if none of these waits."""
        self.requests: list[Request] = []
        self.releases: list[Release] = []
        self.sent = self.sending = False
        self.sent_to: list[int] = []
        """The nodes that the command was sent to; none if single commands were sent."""
        self.absent: dict[int, Failure] = {}
        """Why the other nodes were not asked."""
        self.started = self.valid_until = 0.0
        self.agreeing: list[int] = []
        """The nodes that have replied like the first one; none is added once a node differs."""
        self.voters: tuple[int, ...] = ()
        """The nodes that decided the batch."""
        self._replies: list[int] = []
        """Their reply for each name: releases first, then acquires."""
        self._split = False
        self._nodes = context.multiplexer
        self._missing = 0
        self.names = 1
        """Number of names that were ever put in: a name that is taken out makes no room."""
        self._nodes.unsent.append(self)

    def send(self, *, now: bool) -> None:
        """Send the batch; with `now`, write it and all commands that are queued."""
        if self.sent:  # a garbage collection closed a call, and its release sent all batches
            return
        self.sent = self.sending = True
        try:
            if self.requests or self.releases:
                self._send(now=now)
        finally:
            self.sending = False

    def _send(self, *, now: bool) -> None:
        nodes, requests = self._nodes, self.requests
        self.started = started = _clock.now()
        if requests:
            self.valid_until = validity.valid_until(started, self.ttl)
        for index, node in enumerate(nodes.nodes):
            takes = node.takes_batches
            lack = None if takes else node.silence
            if lack is None and requests:
                lack = node.obstacle(started)
            if lack is not None:
                self.absent[index] = lack
            elif takes:
                self.sent_to.append(index)
            else:
                self._send_singly()
                return
        if len(self.sent_to) < nodes.quorum:
            self._send_singly()
            return
        command, self._missing = self._command(), len(self.sent_to)
        nodes.undecided += 1
        nodes.singles = nodes.singles + 1 if self.names == 1 else 0
        for index in self.sent_to:
            nodes.nodes[index].send_batch(command, self, index, now=now)
        for release in self.releases if self.absent else ():
            nodes.deliver(release.command(), release, tuple(self.absent))

    def _send_singly(self) -> None:
        self._split = True
        self.sent_to, self.absent = [], {}
        for release in self.releases:
            self._nodes.deliver(release.command(), release, self._nodes.everyone)
        for request in self.requests:
            request._alone().ask(armed=False)
        self.requests, self.releases = [], []

    def _command(self) -> Command:
        nodes, requests, releases = self._nodes, self.requests, self.releases
        if not requests and len(releases) == 1:
            return releases[0].command()
        floor, give_up_at, not_after = 0, 0.0, 0
        if requests:
            patience = LATE_TIMER_FACTOR * self.context.settings.node_timeout
            give_up_at = self.started + patience
            floor, not_after = nodes.fence_floor(self.started), nodes.not_after(give_up_at)
        limits = (floor, not_after, self.context.retention)
        self._message = Message(self.spec.script, self.ttl, limits, self.waits, give_up_at)
        asked = [(request._spec, request._owner) for request in requests]
        return self._message.command(releases, asked)

    # replies

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`; a quorum of equal ones decides the batch."""
        node, requests, releases = self._nodes.nodes[index], self.requests, self.releases
        replies = plain(reply, len(releases), len(requests), self._replies)
        if requests and self.started < node.trust.votes_from:
            replies = None
        if not self._split and replies is not None:
            if requests and node.lack is not None:
                node.note(None)
            self._replies = replies
            self.agreeing.append(index)
            if len(self.agreeing) == self._nodes.quorum:
                self._decide()
        elif type(reply) is Failure and reply.code == NO_RIGHT and len(releases + requests) > 1:
            self._ask_singly(index, reply)
        else:
            self._count(index, reply)
        self._missing -= 1
        if not self._missing:  # end the circle of requests and batch, which only a collector frees
            self.requests, self.releases = [], []

    def _ask_singly(self, index: int, denied: Failure) -> None:
        """Ask node `index` for each name alone: the user may lack the right to one of them only."""
        self._split_up()
        for release in self.releases:
            self._nodes.nodes[index].deliver(release.command(), release, index)
        for request in self.requests:
            attempt = request._alone()
            single = self._message.acquire((request._spec, request._owner))
            if request in self.context.undos and not request._future.done():
                self._nodes.nodes[index].ask(single, attempt, index)
            else:  # the call is over, and its release may have been sent
                attempt.on_reply(index, denied)

    def _decide(self) -> None:
        self.voters = tuple(self.agreeing)
        self._nodes.undecided -= 1
        for release in self.releases:
            release.agreed(len(self.voters))
        fences = self._replies[len(self.releases) :]
        for request, fence in zip(self.requests, fences, strict=True):
            if request._attempt is None:
                request._fence = fence
            if not request._future.done():  # otherwise its task is being cancelled
                request._future.set_result(None)

    def _count(self, index: int, reply: Any) -> None:
        """Count a reply for each name alone."""
        self._split_up()
        parts = parts_of(reply, len(self.releases), len(self.requests))
        for release, part in zip(self.releases, parts, strict=False):
            release.on_reply(index, part)
        for request, part in zip(self.requests, parts[len(self.releases) :], strict=True):
            request._alone().on_reply(index, part)

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

    def claims(self, request: Request) -> dict[int, int]:
        """Return the fences that `request` got from the nodes that replied like the first one."""
        if request._fence:
            return dict.fromkeys(self.voters, request._fence)
        if not self.agreeing:
            return {}
        fence = self._replies[len(self.releases) + self.requests.index(request)]
        return dict.fromkeys(self.agreeing, fence)


def batch_release(context: Context, one: Release, *, joined: bool) -> None:
    """Put one release into the first batch of this tick that has room.

    joined: a task of this process asks for the name now, so its acquire may join the batch.
    """
    spec, nodes = one.spec, context.multiplexer
    batch = (nodes.unsent and _with_room(nodes.unsent, spec, None)) or Batch(context, spec)
    batch.releases.append(one)
    _send_soon(nodes, batch, wait=joined)


def batch_acquire(context: Context, one: Request, ttl: float, waits: tuple[Word, ...]) -> None:
    """Put one acquire into the first batch of this tick that has room and asks alike.

    An earlier release of the same name is in this batch or in one before it: any batch that has
    room for an acquire has room for a release.
    """
    # Create all objects first. Each may start a garbage collection, which may close another call,
    # and the release of that call sends all batches.
    one._owner, one._fence, one._attempt = context.new_owner(), 0, None
    one._future = asyncio.Future(loop=context.multiplexer.loop)
    spec, alike = one._spec, (ttl, waits)
    unsent = context.multiplexer.unsent
    batch = (unsent and _with_room(unsent, spec, alike)) or Batch(context, spec)
    batch.ttl, batch.waits = alike
    one._batch = batch
    batch.requests.append(one)
    context.undos[one] = one._abandon
    _send_soon(context.multiplexer, batch, wait=False)


def _with_room(unsent: list[UnsentBatch], spec: LockSpec, alike: Alike | None) -> Batch | None:
    """Return a batch that a release (None), or an acquire with these terms, may join."""
    for batch in unsent[-MOST_UNSENT:]:
        if type(batch) is not Batch or batch.spec.script is not spec.script or batch.sent:
            continue
        if len(batch.spec.all_keys) != len(spec.all_keys):
            continue
        if alike is None or not batch.requests or alike == (batch.ttl, batch.waits):
            batch.names += 1
            return batch
    return None


def _send_soon(nodes: Multiplexer, batch: Batch, *, wait: bool) -> None:
    """Send the batch when the tick ends, or now if it is full or one task seems to be alone.

    wait: another name will be put in before the tick ends, so the task is not alone.
    """
    another = (batch.names + 1) * len(batch.spec.all_keys)
    if another > MOST_KEYS or (not wait and _alone(nodes)):
        nodes.flush(ends=True)
    elif not nodes.flush_due:
        nodes.flush_soon()


def _alone(nodes: Multiplexer) -> bool:
    # Whether waiting for the end of the tick gains nothing: many batches in a row had one name, and
    # all have their verdicts. Compare Nagle's rule, RFC 896.
    return not nodes.undecided and nodes.singles >= ALONE
