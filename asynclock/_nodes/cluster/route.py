"""Sends one command to the server that has its keys, and follows redirects if the keys moved."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ... import _clock
from ..node import NodeSettings
from ..replicated.acks import UNSUPPORTED
from ..replies import REDIRECTS, Failure, Sink, told_by
from ..script import ASKING, CACHING, GRANTED, Command, Word
from ..server import ServerNode
from ..voting import quarantined
from .parked import ParkedCommands
from .slots import Address, read_redirect, slot_of

MOST_REDIRECTS: Final = 5
"""Maximum number of redirects that one command follows."""
APART = Failure(
    "its keys lie in different slots: on a Cluster each name is locked by itself",
    permanent=True,
    code=UNSUPPORTED,
)

VOTES: Final = frozenset({"acquire", "read", "prepare", "accept"})
"""Operations whose positive reply is a vote, which a server that may have forgotten can't give."""
HOLDING: Final = frozenset({"extend", "raise"})
"""Operations of an owner that has the lock already."""
NEVER = Failure("given up before it was executed")


class Cluster(Protocol):
    """What a command needs of its cluster; see `ClusterNode`."""

    round_trip: float | None

    @property
    def settings(self) -> NodeSettings:
        """The settings that all nodes share."""

    @property
    def parked(self) -> ParkedCommands:
        """The commands that wait for a server."""

    @property
    def claiming(self) -> dict[Word, RoutedCommand]:
        """For each owner: the unanswered command that may set the owner's key."""

    def owner(self, slot: int) -> ServerNode | None:
        """Return the primary that serves `slot`, or None if none is known."""

    def shard_at(self, address: Address | None) -> ServerNode | None:
        """Return the primary at `address`, or None if the view has none there."""

    def address_of(self, shard: ServerNode) -> Address:
        """Return the address of a primary."""

    def moved(self, slot: int, shard: ServerNode) -> None:
        """Note that `shard` serves `slot` now, as a server replied."""

    def look_again(self) -> None:
        """Read the view again soon, because it may be outdated."""

    def park(self, command: RoutedCommand) -> None:
        """Keep a command for the next view, until its timeout."""

    def keep_release(self, command: Command) -> None:
        """Keep a release and send it when the next view is known."""


class RoutedCommand:
    """One command to a cluster; takes the shard's answer and passes it on to the sink."""

    __slots__ = (
        "_claim",
        "_cluster",
        "_command",
        "_index",
        "_left",
        "_released",
        "_sent",
        "_shard",
        "_sink",
        "release",
        "slot",
        "until",
    )

    def __init__(
        self,
        cluster: Cluster,
        command: Command,
        sink: Sink,
        index: int,
        *,
        arm: bool = False,
        release: bool = False,
    ) -> None:
        self._cluster = cluster
        self._command = command.behind(CACHING) if arm else command
        self._sink = sink
        self._index = index
        self._left = MOST_REDIRECTS
        self._released = False
        """Whether a release of the same owner was sent after this command, or instead of it."""
        self._sent = 0.0
        self._shard: ServerNode | None = None
        self.release = release
        """Whether this is a release: also sent to a server that doesn't answer, resent if lost."""
        self.slot = slot_of(command)
        self.until = _clock.now() + cluster.settings.node_timeout
        self._claim = command.claims[0] if command.claims else None
        if self._claim is not None:
            cluster.claiming[self._claim] = self

    def go(self) -> None:
        """Send the command to the server that has its slot; park it if none is known."""
        if self.slot is None:
            self._answer(APART)
            return
        shard = self._cluster.owner(self.slot)
        if shard is not None:
            self._send(shard, self._command)
        else:
            self._cluster.park(self)

    def fail(self, failure: Failure) -> None:
        """Fail the command; keep it for later if it is a release."""
        if self.release:
            self._cluster.keep_release(self._command)
        self._answer(failure)

    def give_up(self) -> bool:
        """Prepare for a release of the same owner, which this command must not follow.

        Return whether this command was never executed and never will be, so that there is nothing
        to release.
        """
        self._released = True
        if not self._cluster.parked.drop(self):
            return False
        self._answer(NEVER)
        return True

    def _answer(self, reply: Any) -> None:
        if self._claim is not None and self._cluster.claiming.get(self._claim) is self:
            del self._cluster.claiming[self._claim]
        self._sink.on_reply(self._index, reply)

    def _send(self, shard: ServerNode, command: Command) -> None:
        now = _clock.now()
        self._shard, self._sent = shard, now
        obstacle = shard.obstacle(now) if self._command.op in VOTES else None
        if obstacle is not None:
            self._answer(told_by(shard.address, obstacle))
            return
        (shard.deliver if self.release else shard.ask)(command, self, 0)

    def on_reply(self, _index: int, reply: Any) -> None:
        """Take the shard's answer: pass it on, or follow its redirect."""
        cluster, shard = self._cluster, self._shard
        if shard is None:
            return
        if type(reply) is Failure:
            self._failed(reply, shard)
            return
        cluster.round_trip = shard.round_trip
        operation = self._command.op
        if operation in VOTES and shard.lack is not None:
            shard.note(None)
        granted = type(reply) is list and reply[:1] == [GRANTED]
        if operation in VOTES and granted and self._sent < shard.trust.votes_from:
            reply = told_by(shard.address, quarantined(shard))
        elif operation in HOLDING and self._sent < shard.trust.renews_from:
            reply = Failure("it became the primary a moment ago")
        self._answer(reply)

    def _failed(self, failure: Failure, shard: ServerNode) -> None:
        cluster = self._cluster
        if failure.code not in (*REDIRECTS, "TRYAGAIN"):
            cluster.look_again()
            if failure.code and self._command.op in VOTES:
                shard.note(failure)
            self._answer(told_by(shard.address, failure))
        elif self._released:
            self._answer(NEVER)
        elif not self._left or _clock.now() >= self.until:
            self.fail(failure)
        elif failure.code == "TRYAGAIN":
            cluster.parked.retry(self)
        else:
            self._left -= 1
            self._follow(failure, shard)

    def _follow(self, failure: Failure, shard: ServerNode) -> None:
        cluster = self._cluster
        address = read_redirect(failure.cause, cluster.address_of(shard))
        # Use only servers in the cluster's own view: an address in a reply proves nothing.
        target = cluster.shard_at(address)
        if failure.code == "MOVED":
            cluster.look_again()
            if target is not None and self.slot is not None:
                cluster.moved(self.slot, target)
                self.go()
            else:
                cluster.park(self)
        elif target is not None:
            # No push is requested: a server forgets CACHING with ASKING, and ASKING with CACHING.
            self._send(target, self._command.behind(ASKING))
        else:
            cluster.park(self)
