"""One command on its way to the server that has its keys, however often they have moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ... import _clock
from ..acks import UNSUPPORTED
from ..link import NOBODY, Failure, Sink
from ..node import CACHING, Node
from ..script import Command
from .slots import read_redirect, slot_of

if TYPE_CHECKING:
    from .node import ClusterNode

ASKING = Command.plain("ASKING")
REDIRECTS: Final = 5
APART = Failure(
    "its keys lie in different slots: on a Cluster each name is locked by itself",
    permanent=True,
    code=UNSUPPORTED,
)


class Route:
    """The sink between a shard and whoever asked the cluster."""

    __slots__ = (
        "_armed",
        "_cluster",
        "_command",
        "_index",
        "_left",
        "_sent",
        "_shard",
        "_sink",
        "owed",
        "slot",
        "until",
    )

    def __init__(
        self,
        cluster: ClusterNode,
        command: Command,
        sink: Sink,
        index: int,
        *,
        armed: bool = False,
        owed: bool = False,
    ) -> None:
        self._cluster = cluster
        self._command = command
        self._sink = sink
        self._index = index
        self._armed = armed
        self._left = REDIRECTS
        self._sent = 0.0
        self._shard: Node | None = None
        self.owed = owed
        """A release: it is sent to whoever does not answer, too, and again if it got lost."""
        self.slot = slot_of(command)
        self.until = _clock.now() + cluster.settings.node_timeout

    def go(self) -> None:
        """Send it to whoever has the slot; parked while nobody is known to."""
        if self.slot is None:
            self._sink.cast(self._index, APART)
            return
        shard = self._cluster.owner(self.slot)
        if shard is not None:
            self._send(shard, self._command)
        else:
            self._cluster.park(self)

    def fail(self, failure: Failure) -> None:
        """Give up; a release is kept for later."""
        if self.owed:
            self._cluster.owe(self._command)
        self._sink.cast(self._index, failure)

    def answer(self, failure: Failure) -> None:
        """Tell whoever asked, and nothing more."""
        self._sink.cast(self._index, failure)

    def undone_by(self, release: Route) -> bool:
        """Whether `release` gives back what this would take."""
        mine, theirs = self._command, release._command
        same = (mine.args[1], mine.keys) == (theirs.args[1], theirs.keys)
        return mine.args[0] == "acquire" and same

    def _send(self, shard: Node, command: Command, *, asking: bool = False) -> None:
        now = _clock.now()
        self._shard, self._sent = shard, now
        obstacle = None if self._command.args[0] != "acquire" else shard.obstacle(now)
        if obstacle is not None:
            self._sink.cast(self._index, obstacle)
            return
        if self._armed and shard.tracking:
            shard.ask(CACHING, NOBODY, 0)
        if asking:
            shard.ask(ASKING, NOBODY, 0)
        (shard.deliver if self.owed else shard.ask)(command, self, 0)

    def cast(self, _index: int, reply: Any) -> None:
        """The shard answered: pass it on, or go where it says."""
        cluster, shard = self._cluster, self._shard
        if shard is None:
            return
        if type(reply) is Failure:
            self._failed(reply, shard)
            return
        cluster.round_trip = shard.round_trip
        granted = self._command.args[0] == "acquire" and reply[0] == 1
        if granted and self._sent < shard.trust.votes_from:
            reply = Failure("it was quarantined meanwhile")
        self._sink.cast(self._index, reply)

    def _failed(self, failure: Failure, shard: Node) -> None:
        cluster = self._cluster
        if failure.code not in ("MOVED", "ASK", "TRYAGAIN"):
            cluster.look_again()
            self._sink.cast(self._index, failure)
        elif not self._left or _clock.now() >= self.until:
            self.fail(failure)
        elif failure.code == "TRYAGAIN":
            cluster.waiting.retry(self)
        else:
            self._left -= 1
            self._follow(failure, shard)

    def _follow(self, failure: Failure, shard: Node) -> None:
        cluster = self._cluster
        address = read_redirect(failure.cause, cluster.address_of(shard))
        # Only servers that the cluster's own view knows are asked: a name in a reply is no proof.
        target = cluster.shard_at(address)
        if failure.code == "MOVED":
            cluster.look_again()
            if target is not None and self.slot is not None:
                cluster.moved(self.slot, target)
                self.go()
            else:
                cluster.park(self)
        elif target is not None:
            # By its source: a NOSCRIPT would use up the permission that ASKING gives.
            self._send(target, self._command.with_source(), asking=True)
        else:
            cluster.park(self)
