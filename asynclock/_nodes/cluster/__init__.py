"""A Redis Cluster, one voter of many servers: a command goes to the server that has its hash slot.

Every primary in the cluster's view is a node with its own guards. The view is read again every
second from several servers (docs/decisions/0018, 0019).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from ... import _clock
from ..._process import Background
from ..._rules.quorum import majority
from ..._rules.validity import Facts, StandStill, Trust
from ...events import Observers
from ..endpoint import Endpoint
from ..handshake import HandshakeError, closing_if_failed, why_unready
from ..link import Link
from ..multiplexer import quarantined
from ..node import Node, PendingReleases
from ..replicated import POLL, PrimaryDialer, WatchedNode, poll, poll_patience, source_node
from ..replicated.acks import AckedLink, KnownReplicas, granted
from ..server import SETTLE_PAUSE, ServerNode
from ..wire import (
    ASKING,
    CACHING,
    EXTEND,
    GIVEN_UP,
    REDIRECTS,
    VOTES,
    Command,
    Failure,
    Sink,
    Word,
    told_by,
)
from .shards import (
    QUESTIONS,
    SLOTS,
    Address,
    Shard,
    View,
    confirmations,
    mark_key,
    read_redirect,
    read_views,
    slot_of,
    why_none,
)

LOOK_GAP = 0.05
"""Minimum seconds between two readings of the view."""


MARK_MOVED = Failure("the slot of its mark moves to another server")
"""It has no code: commands in other slots would follow that of a redirect."""

N = TypeVar("N", bound=ServerNode)


class ClusterNode(Node):
    """A Redis Cluster as a single voter; see `Node`."""

    def __init__(
        self, seeds: Sequence[Endpoint], dialer: PrimaryDialer, prefix: str, observers: Observers
    ) -> None:
        self.address = f"cluster {','.join(seed.address for seed in seeds)}"
        self.settings = settings = dialer.settings
        self.primaries: dict[Address, WatchedNode] = {}
        """By address, those of the present view."""
        self.trust: Trust = ClusterTrust(settings.max_ttl, self.primaries)
        self.random: Callable[[], float] = random.random
        self.owners: list[ServerNode | None] = [None] * SLOTS
        """The primary of each slot."""
        self.parked = ParkedCommands()
        self.claiming: dict[Word, RoutedCommand] = {}
        """For each owner: the unanswered command that may set the owner's key."""
        self.pending = PendingReleases(settings.node_timeout, self._send_again)
        """The releases and leaves that some server may not have executed."""
        self._seeds = [(seed.host, seed.port) for seed in seeds]
        self._endpoint = seeds[0]
        self._dialer = dialer
        self._prefix = prefix
        self._observers = observers
        self._replicas = KnownReplicas()
        """For all shards together: after a failover, the new primary's replicas are fewer."""
        self._view: View | None = None
        self._sources: dict[Address, ServerNode] = {}
        """The servers that are asked for their view."""
        self._keepers: dict[ServerNode, asyncio.Task[None]] = {}
        """The tasks that keep primaries and sources connected."""
        self._background = Background()
        self._clocks: list[Node] = []
        """The servers whose jumps are compared."""
        self._standstill = StandStill(0, 0)
        self._wanted = asyncio.Event()
        self._cause = Failure("the slots are not known yet")

    # requests

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        RoutedCommand(self, command, sink, index, arm=arm).go()

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        claim = self.claiming.get(command.owner)
        if claim is not None and claim.give_up():
            sink.on_reply(index, GIVEN_UP)
        else:
            RoutedCommand(self, command, sink, index, release=True).go()

    def _send_again(self, command: Command, sink: Sink) -> bool:
        self.deliver(command, sink, 0)
        return True

    @property
    def silence(self) -> None:
        """Always None: each server fails on its own."""

    takes_batches = False  # a batch goes to the `home` of its names

    def send_batch(self, command: Command, sink: Sink, index: int, *, write: bool) -> None:
        """Not called, because of `takes_batches`."""

    def write(self) -> None:
        for server in self.shards:
            server.write()

    def obstacle(self, _now: float, /) -> Failure | None:
        """Return why the whole cluster has no vote, or None; each server has guards of its own."""
        return self.rejected

    def last_error(self, keys: Sequence[str], /) -> Failure | None:
        home = self.home(keys)
        if home is None or home.lack is None:
            return None
        return told_by(home.address, home.lack)

    @property
    def votes_from(self) -> float:
        return max((shard.trust.votes_from for shard in self.shards), default=0.0)

    def home(self, keys: Sequence[str]) -> ServerNode | None:
        """Return the primary that serves the slot of these keys, or None if none is known.

        A command without keys, such as INFO, goes to any primary.
        """
        return self.owners[slot_of(keys[0])] if keys else next(iter(self.shards), None)

    # what a routed command asks for

    @property
    def shards(self) -> tuple[ServerNode, ...]:
        """The primaries of the present view, for callers that scan all keys."""
        return tuple(self.primaries.values())

    def look_again(self) -> None:
        """Read the view again soon, because it may be outdated."""
        self._wanted.set()

    def park(self, command: RoutedCommand) -> None:
        if self._cause.permanent:
            command.fail(self._cause)
            return
        left = max(0.0, command.until - _clock.now())
        self.parked.keep(command, left, lambda: command.fail(self._cause))
        self.look_again()

    # the view

    async def keep(self) -> None:
        try:
            while True:
                self._wanted.clear()
                try:
                    await self._look()
                except Exception as error:  # try again, whatever the servers reply
                    self._cause = why_unready(error)
                self.on_state()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL * (3 + self.random()) / 4):
                        await self._wanted.wait()
                await asyncio.sleep(LOOK_GAP)
        finally:
            await self._background.aclose()
            self._cause = Failure("the manager is closed", permanent=True)
            self.parked.fail(self._cause)
            self.pending.clear()

    async def _look(self) -> None:
        asked = _clock.now()
        self.pending.drop_expired()
        if not self._sources:
            _follow(self._sources, self._seeds, self._source)
        sources, patience = tuple(self._sources), poll_patience(self.settings.node_timeout)
        answers = await poll(self._sources.values(), QUESTIONS, patience)
        views, failures = read_views(sources, answers)
        if views:
            view, known = max(views.values(), key=lambda view: view.epoch), self._view
            if known is not None and view.epoch < known.epoch:
                view = known
            else:
                self._adopt(view)
            self._confirm(view, views, asked)
        else:
            self._cause = why_none(failures)
            if self._cause.permanent:
                self.parked.fail(self._cause)

    def _adopt(self, view: View) -> None:
        known, self._view = self._view, view
        self._cause = Failure("no server has its slot")
        gone: list[ServerNode] = [
            *_follow(self.primaries, view.shards, self._primary),
            *_follow(self._sources, view.sources, self._source),
        ]
        self.owners = [None if at is None else self.primaries[at] for at in view.owners]
        for address, shard in view.shards.items():
            self._replicas.counted(shard.replicas)
            link = self.primaries[address].link
            if isinstance(link, AckedLink):
                link.replicas = shard.replicas
        # Before anything else is sent, so that no release overtakes its acquire.
        self.parked.resume()
        if known is None or view.owners != known.owners:
            self.pending.resend()
            self.on_wake(None)  # a moved slot loses its pushes, so wake all waiters
        for node in gone:
            self._background.spawn(self._leave(node), f"asynclock: leave {node.address}")

    def _confirm(self, view: View, views: Mapping[Address, View], asked: float) -> None:
        """Note which primaries a majority of them, asked at `asked`, names as such."""
        counts = confirmations(view, views)
        for address, agreed in counts.items():
            primary = self.primaries[address]
            if agreed >= majority(len(counts)):
                primary.confirm(asked)
            else:
                primary.doubt = f"only {agreed} of {len(counts)} primaries confirm it as a primary"
                self.look_again()

    async def _leave(self, node: ServerNode) -> None:
        """End the connection of a server that the view no longer has."""
        link = node.link
        # A frozen server doesn't finish in time; cancelling its task then ends the link.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.node_timeout):
                await node.finish()
        task = self._keepers[node]
        task.cancel()
        await asyncio.wait([task])
        if link is not None:
            await link.closed
        del self._keepers[node]
        self.pending.resend()  # its releases without a reply

    # its servers

    def _keep(self, node: N) -> N:
        self._keepers[node] = self._background.spawn(node.keep(), f"asynclock: keep {node.address}")
        return node

    def _source(self, address: Address) -> ServerNode:
        return self._keep(source_node(self._endpoint.at(*address), self.settings))

    def _primary(self, address: Address) -> WatchedNode:
        endpoint = self._endpoint.at(*address)

        async def open_link(_node: ServerNode, limit: float) -> tuple[Link, Facts]:
            return await self._open(address, endpoint, node, limit)

        node = WatchedNode(endpoint.address, open_link, self.settings, self._observers)
        node.late = endpoint.late
        node.watched_keys, node.on_wake = self.watched_keys, lambda key: self.on_wake(key)
        node.on_jump = self._shard_jumped
        node.on_state = lambda: self.on_state()
        node.on_connect = self._shard_connected
        node.pending, node.in_cluster = self.pending, True
        return self._keep(node)

    async def _open(
        self, address: Address, endpoint: Endpoint, node: WatchedNode, limit: float
    ) -> tuple[Link, Facts]:
        # Wait until the primary is confirmed: before that, the age of its mark proves nothing.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await node.confirmation()
        shard = self._shard(address)
        mark = mark_key(self._prefix, shard.slot)
        patience = min(limit, 2 * self.settings.node_timeout)
        try:
            node.require()
            link, facts = await self._dialer.dial(
                endpoint, node, patience, self._replicas, mark=mark, replicas=shard.replicas
            )
        except BaseException as error:
            self.look_again()
            if isinstance(error, HandshakeError) and error.failure.code in REDIRECTS:
                raise HandshakeError(MARK_MOVED) from None
            raise
        with closing_if_failed(link):
            return link, node.watched(link, facts)

    def _shard(self, address: Address) -> Shard:
        found = None if self._view is None else self._view.shards.get(address)
        return found or Shard(0, 0)

    def _shard_jumped(self, shard: Node, by: float) -> None:
        # If our own clock stood still, each server reports a jump, but leases end sooner only once.
        # A lease may be on any of the servers, so the largest jump counts.
        clocks: list[Node] = [*self.primaries.values()]
        if clocks != self._clocks:
            self._clocks, self._standstill = clocks, StandStill(len(clocks), len(clocks))
        if shard not in clocks:
            return  # it left the cluster and serves no lease
        index = clocks.index(shard)
        sooner = self._standstill.jumped(index, by, _clock.now())
        if sooner:
            self.on_jump(self, sooner)
        for other in self._standstill.silent(index):
            clocks[other].check_clock()

    def _shard_connected(self, shard: Node) -> None:
        self.trust.facts = shard.trust.facts
        # No key is watched at a server that was never met.
        self.tracking = all(node.tracking for node in self.shards if node.trust.facts)
        self.on_connect(self)
        if self.rejected is not None:
            shard.rejected = self.rejected

    # the end

    @property
    def settled(self) -> bool:
        """Whether every server has answered every release that it must get."""
        waits = self._view is not None and (len(self.pending) > 0 or self.parked.releases)
        return not waits and all(node.settled for node in self._keepers)

    async def settle(self) -> None:
        while not self.settled:
            self.look_again()  # a release may wait for a view with the server that has its slot
            await asyncio.sleep(SETTLE_PAUSE)

    async def finish(self) -> None:
        await asyncio.gather(*(node.finish() for node in (*self.shards, *self._sources.values())))

    def check_clock(self) -> None:
        for shard in self.shards:
            shard.check_clock()

    # state

    def state(self, now: float) -> str:
        """Return "up" if all primaries are up, otherwise the state of one that is not."""
        if self._view is None:
            return "down" if self._cause.permanent else "connecting"
        states = [shard.state(now) for shard in self.shards]
        return next((state for state in states if state != "up"), "up")

    def cause(self, now: float) -> str:
        """Return the causes at all servers that are not "up"; "" if all are up."""
        if self._view is None:
            return self._cause.cause
        causes = [(shard.address, shard.cause(now)) for shard in self.shards]
        return "; ".join(f"{address}: {cause}" for address, cause in causes if cause)


def _follow(
    nodes: dict[Address, N], wanted: Collection[Address], make: Callable[[Address], N]
) -> list[N]:
    """Let `nodes` be those at the wanted addresses; return the ones that it no longer has."""
    for address in wanted:
        if address not in nodes:
            nodes[address] = make(address)
    return [nodes.pop(address) for address in list(nodes) if address not in wanted]


class ClusterTrust(Trust):
    """The clock of the whole cluster, for fence floors; each server has its own guards."""

    __slots__ = ("_nodes",)

    def __init__(self, max_ttl: float, nodes: Mapping[Address, Node]) -> None:
        super().__init__(max_ttl)
        self._nodes = nodes

    @property
    def offset(self) -> float | None:
        """The offset of the server most ahead, so that no server rejects a request too early."""
        known = [o for node in self._nodes.values() if (o := node.trust.offset) is not None]
        return max(known) if known and len(known) == len(self._nodes) else None


TRY_AGAIN = 0.02
"""Seconds before a retry after TRYAGAIN: a slot migration has split the keys of one name."""


class ParkedCommands:
    """Keeps commands until the next view of the cluster, or for a moment."""

    def __init__(self) -> None:
        self._waiting: dict[RoutedCommand, asyncio.TimerHandle] = {}
        """Each command in its order, and the timer that ends its wait."""

    def keep(self, command: RoutedCommand, seconds: float, then: Callable[[], None]) -> None:
        """Keep `command` until the next view, or call `then` after `seconds`."""

        def over() -> None:
            del self._waiting[command]
            then()

        self._waiting[command] = asyncio.get_running_loop().call_later(seconds, over)

    @property
    def releases(self) -> bool:
        """Whether any waiting command is a release."""
        return any(command.release for command in self._waiting)

    def drop(self, command: RoutedCommand) -> bool:
        """Remove `command`; return whether it was here."""
        timer = self._waiting.pop(command, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def resume(self) -> None:
        for command in filter(self.drop, tuple(self._waiting)):
            command.go()

    def fail(self, failure: Failure) -> None:
        for command in filter(self.drop, tuple(self._waiting)):
            command.fail(failure)


MOST_REDIRECTS: Final = 5

HOLDING: Final = frozenset({EXTEND, "raise"})
"""Operations of an owner that has the lock already."""


class RoutedCommand:
    """One command to a cluster; takes the shard's answer and passes it on to the sink."""

    __slots__ = (
        "_cluster",
        "_command",
        "_index",
        "_redirects",
        "_released",
        "_sent",
        "_shard",
        "_sink",
        "release",
        "until",
    )

    def __init__(
        self,
        cluster: ClusterNode,
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
        self._redirects = MOST_REDIRECTS
        self._released = False
        """Whether a release of the same owner was sent after this command, or instead of it."""
        self._sent = now = _clock.now()
        self.until = now + cluster.settings.node_timeout
        self.release = release
        """Whether this is a release: also sent to a server that doesn't answer, resent if lost."""
        for owner in command.claims:
            cluster.claiming[owner] = self

    def go(self) -> None:
        """Send the command to the server that has its slot; park it if none is known."""
        shard = self._cluster.home(self._command.keys)
        if shard is not None:
            self._send(shard, self._command)
        else:
            self._cluster.park(self)

    def fail(self, failure: Failure) -> None:
        """Fail the command; keep it for later if it is a release."""
        if self.release:
            self._cluster.pending.keep(self._command).retry_later()
        self._answer(failure)

    def give_up(self) -> bool:
        """Prepare for a release of the same owner, which this command must not follow.

        Return whether this command was never executed and never will be: there is nothing to
        release.
        """
        self._released = True
        if not self._cluster.parked.drop(self):
            return False
        self._answer(GIVEN_UP)
        return True

    def _answer(self, reply: Any) -> None:
        claiming = self._cluster.claiming
        for owner in self._command.claims:
            if claiming.get(owner) is self:
                del claiming[owner]
        self._sink.on_reply(self._index, reply)

    def _send(self, shard: ServerNode, command: Command) -> None:
        self._shard, self._sent = shard, (now := _clock.now())
        obstacle = shard.obstacle(now) if self._command.op in VOTES else None
        if obstacle is not None:
            self._answer(told_by(shard.address, obstacle))
            return
        (shard.deliver if self.release else shard.ask)(command, self, 0)

    def on_reply(self, _index: int, reply: Any) -> None:
        shard, operation = self._shard, self._command.op
        self._cluster.round_trip = shard.round_trip
        if type(reply) is Failure:
            self._failed(reply, shard)
            return
        if operation in VOTES and self._sent < shard.trust.votes_from and granted(reply):
            reply = told_by(shard.address, quarantined(shard))
        elif operation in HOLDING and self._sent < shard.trust.renews_from:
            reply = Failure("it became the primary a moment ago")
        self._answer(reply)

    def _failed(self, failure: Failure, shard: ServerNode) -> None:
        cluster = self._cluster
        if failure.code not in (*REDIRECTS, "TRYAGAIN"):
            cluster.look_again()
            lack = told_by(shard.address, failure)
            if failure.code and not failure.permanent:
                self.fail(lack)
            else:  # a server that doesn't answer keeps its releases itself
                self._answer(lack)
        elif self._released:
            self._answer(GIVEN_UP)
        elif not self._redirects or _clock.now() >= self.until:
            self.fail(failure)
        elif failure.code == "TRYAGAIN":
            cluster.parked.keep(self, TRY_AGAIN, self.go)
        else:
            self._redirects -= 1
            self._follow(failure, shard)

    def _follow(self, failure: Failure, shard: ServerNode) -> None:
        cluster = self._cluster
        # Use only servers in the cluster's own view: an address in a reply proves nothing.
        address = read_redirect(failure.cause, shard.address)
        target = None if address is None else cluster.primaries.get(address)
        if target is None:
            cluster.park(self)
        elif failure.code == "MOVED":
            cluster.look_again()
            cluster.owners[slot_of(self._command.keys[0])] = target
            self.go()
        else:
            # No push is requested: a server forgets CACHING with ASKING, and ASKING with CACHING.
            self._send(target, self._command.behind(ASKING))
