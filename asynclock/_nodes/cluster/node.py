"""One voter that consists of many servers: each command goes to the server that has its hash slot.

Every primary in the cluster's view is a Node with its own guards, so a promoted replica does not
vote before all leases that it may have missed have ended. The view is read again every second from
several servers, because an old primary that resumes doesn't know of its replacement at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ... import _clock
from ..._background import Background
from ..._rules.quorum import majority
from ..._rules.standstill import StandStill
from ..._rules.trust import Facts, Trust
from ...events import Observers
from ..acks import AckedLink
from ..endpoint import Endpoint
from ..handshake import why_unready
from ..link import NodeLink
from ..node import Node
from ..poll import poll, scout
from ..primary import Primaries
from ..replies import NOBODY, Failure, Sink
from ..script import Command, Word
from ..watched import POLL, WatchedNode, poll_patience
from .route import NEVER, Route
from .slots import (
    QUESTIONS,
    SLOTS,
    Address,
    Shard,
    View,
    confirmations,
    mark_key,
    read_views,
    why_none,
)
from .waiting import Waiting

N = TypeVar("N", bound=Node)

LOOK_GAP = 0.05
"""Minimum seconds between two readings of the view."""
MAX_OBSERVERS = 7
"""Number of servers that are asked for their view; with more primaries, all primaries are asked."""


class ClusterNode(Node):
    """A Redis Cluster as a single voter."""

    def __init__(
        self, seeds: Sequence[Endpoint], primaries: Primaries, prefix: str, observers: Observers
    ) -> None:
        where = ",".join(seed.address for seed in seeds)
        super().__init__(f"cluster {where}", _unused, primaries.settings, observers)
        self._primaries = primaries
        self._prefix = prefix
        self._endpoint = seeds[0]
        self._crew = Background()
        self._keepers: dict[Node, asyncio.Task[None]] = {}
        self._shards: dict[Address, WatchedNode] = {}
        self._scouts: dict[Address, Node] = {}
        self._seeds = [(seed.host, seed.port) for seed in seeds]
        self._view: View | None = None
        self._owners: list[Node | None] = [None] * SLOTS
        self.waiting = Waiting(lambda: self._cause)
        self.claiming: dict[Word, Route] = {}
        """For each owner: the unanswered command that may set the owner's key."""
        self._unsent: dict[Word, Command] = {}
        self._wanted = asyncio.Event()
        self._cause = Failure("the slots are not known yet")
        self.trust = _ClusterTrust(primaries.settings.max_ttl, self._shards)
        self._clocks: list[Node] = []
        """The servers whose jumps are compared."""
        self._standstill = StandStill(0, 0)

    # requests

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        """Send `command` to the server that has its keys; see `Node.ask`."""
        Route(self, command, sink, index, arm=arm and self.tracking).go()

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release, now or when the server that has its keys is back."""
        claim = self.claiming.get(command.owner)
        if claim is not None and claim.give_up():
            sink.on_reply(index, NEVER)
        else:
            Route(self, command, sink, index, owed=True).go()

    def obstacle(self, now: float) -> Failure | None:  # noqa: ARG002 - the word of any node
        """Return why the whole cluster has no vote, or None; `Route` asks each server's guards."""
        return self.rejected

    # the view

    def owner(self, slot: int) -> Node | None:
        """Return the primary that serves `slot`, or None if none is known."""
        return self._owners[slot]

    @property
    def shards(self) -> tuple[Node, ...]:
        """The primaries of the present view, for callers that scan all keys."""
        return tuple(self._shards.values())

    def shard_at(self, address: Address | None) -> Node | None:
        """Return the primary at `address`, or None if the view has none there."""
        return None if address is None else self._shards.get(address)

    def address_of(self, shard: Node) -> Address:
        """Return the address of a primary; that of a seed if the primary left the view."""
        return next((at for at, one in self._shards.items() if one is shard), self._seeds[0])

    def moved(self, slot: int, shard: Node) -> None:
        """Note that `shard` serves `slot` now, as a server replied."""
        self._owners[slot] = shard

    def look_again(self) -> None:
        """Read the view again soon, because it may be outdated."""
        self._wanted.set()

    def park(self, route: Route) -> None:
        """Keep a command for the next view, until its timeout."""
        if self._cause.permanent:
            route.fail(self._cause)
            return
        self.waiting.park(route)
        self.look_again()

    def owe(self, command: Command) -> None:
        """Keep a release and send it when the next view is known."""
        now = _clock.now()
        while self._unsent and next(iter(self._unsent.values())).retry_until <= now:
            del self._unsent[next(iter(self._unsent))]
        self._unsent[command.owner] = command

    # reading the view

    async def keep(self) -> None:
        """Read the cluster's view again and again until cancelled; run this in one task."""
        try:
            while True:
                self._wanted.clear()
                try:
                    await self._look()
                except Exception as error:  # try again, whatever the servers reply
                    self._cause = why_unready(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL * (3 + self.random()) / 4):
                        await self._wanted.wait()
                await asyncio.sleep(LOOK_GAP)
        finally:
            await self._crew.aclose()
            self._cause = Failure("the manager is closed", permanent=True)
            self.waiting.fail(self._cause)

    async def _look(self) -> None:
        if not self._scouts:
            for seed in self._seeds:
                self._scouts[seed] = self._scout(seed)
        scouts, asked = self._scouts, _clock.now()
        servers = tuple(scouts)
        patience = poll_patience(self.settings.node_timeout)
        views, failures = read_views(servers, await poll(scouts.values(), QUESTIONS, patience))
        if views:
            self._adopt(max(views.values(), key=lambda view: view.epoch))
            self._confirm(views, asked)
        else:
            self._cause = why_none(failures)
            if self._cause.permanent:
                self.waiting.fail(self._cause)

    def _confirm(self, views: Mapping[Address, View], asked: float) -> None:
        if self._view is None:
            return
        counts = confirmations(self._view, views)
        for address, count in counts.items():
            shard = self._shards[address]
            if count >= majority(len(counts)):
                shard.confirm(asked)
            else:
                shard.doubt = f"only {count} of {len(counts)} primaries confirm it as a primary"
                self.look_again()

    def _adopt(self, view: View) -> None:
        if self._view is not None and view.epoch < self._view.epoch:
            return
        changed = self._view is None or view.owners != self._view.owners
        self._view = view
        self._cause = Failure("no server has its slot")
        for address, shard in view.shards.items():
            if address not in self._shards:
                self._shards[address] = self._primary(address)
            self._tell_replicas(self._shards[address], shard)
        gone: list[Node] = [
            self._shards.pop(at) for at in list(self._shards) if at not in view.shards
        ]
        self._owners = [None if at is None else self._shards[at] for at in view.owners]
        wanted = {*view.shards, *list(view.others)[: max(1, MAX_OBSERVERS - len(view.shards))]}
        gone += [self._scouts.pop(at) for at in list(self._scouts) if at not in wanted]
        for address in wanted - self._scouts.keys():
            self._scouts[address] = self._scout(address)
        for node in gone:
            self._take_over(node)
        if changed:
            self.on_wake(None)  # a moved slot loses its pushes, so wake all waiters
        self._resume()  # before anything else is sent, so that no release overtakes its acquire
        for node in gone:
            self._crew.spawn(self._retire(node), f"asynclock: leave {node.address}")

    def _resume(self) -> None:
        self.waiting.resume()
        unsent, self._unsent = self._unsent, {}
        now = _clock.now()
        for command in unsent.values():
            if command.retry_until > now:
                self.deliver(command, NOBODY, 0)

    def _take_over(self, node: Node) -> None:
        for command in node.pending.take():
            self.owe(command)

    async def _retire(self, node: Node) -> None:
        link = node.link
        # A frozen server doesn't finish in time; cancelling its keeper then ends the link.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.node_timeout):
                await node.finish()
        keeper = self._keepers[node]
        keeper.cancel()
        await asyncio.wait([keeper])
        if link is not None:
            await link.closed
        del self._keepers[node]
        self._take_over(node)  # its commands without a reply
        self._resume()

    def _hire(self, node: N) -> N:
        self._keepers[node] = self._crew.spawn(node.keep(), f"asynclock: keep {node.address}")
        return node

    # the servers

    def _primary(self, address: Address) -> WatchedNode:
        endpoint = self._endpoint.at(*address)

        async def open_link(_node: Node, limit: float) -> tuple[NodeLink, Facts]:
            return await self._open(address, endpoint, node, limit)

        node = WatchedNode(endpoint.address, open_link, self.settings, self._observers)
        node.on_wake = lambda key: self.on_wake(key)
        node.on_jump = self._jumped
        node.on_connect = self._met
        node.pending.on_redirect = lambda release: self.deliver(release, NOBODY, 0)
        return self._hire(node)

    async def _open(
        self, address: Address, endpoint: Endpoint, node: WatchedNode, limit: float
    ) -> tuple[NodeLink, Facts]:
        # Not before the first confirmation: until then the age of a mark proves nothing.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await node.confirmation()
        shard = self._shard(address)
        mark = mark_key(self._prefix, shard.slot)
        patience = min(limit, 2 * self.settings.node_timeout)
        try:
            node.require()
            link, facts = await self._primaries.dial(
                endpoint,
                node,
                patience,
                mark=mark,
                replicas=shard.replicas,
            )
        except BaseException:
            self.look_again()
            raise
        return node.watched(link, facts)

    def _shard(self, address: Address) -> Shard:
        view = self._view
        found = None if view is None else view.shards.get(address)
        return found or Shard(0, 0)

    def _tell_replicas(self, node: Node, shard: Shard) -> None:
        if isinstance(node.link, AckedLink):
            node.link.replicas = shard.replicas

    def _jumped(self, shard: Node, by: float) -> None:
        # If our own clock stood still, each server reports a jump, but leases end sooner only once.
        # A lease may be on any of the servers, so the largest jump counts.
        clocks: list[Node] = [*self._shards.values()]
        if clocks != self._clocks:
            self._clocks, self._standstill = clocks, StandStill(len(clocks), len(clocks))
        if shard not in clocks:
            return  # it left the cluster and serves no lease
        place = clocks.index(shard)
        sooner = self._standstill.jumped(place, by, _clock.now())
        if sooner:
            self.on_jump(self, sooner)
        for other in self._standstill.silent(place):
            clocks[other].check_clock()

    def _met(self, node: Node) -> None:
        self.trust.facts = node.trust.facts
        self.tracking = all(shard.tracking for shard in self._shards.values())
        self.on_connect(self)
        if self.rejected is not None:
            node.rejected = self.rejected

    def _scout(self, address: Address) -> Node:
        return self._hire(scout(self._endpoint.at(*address), self.settings))

    @property
    def settled(self) -> bool:
        """Whether every server has answered every release that it must get."""
        return not self._homeless and all(node.settled for node in self._keepers)

    @property
    def _homeless(self) -> bool:
        # Whether a release waits for a view with the server that has its slot.
        return self._view is not None and (bool(self._unsent) or self.waiting.releases)

    async def settle(self) -> None:
        """Wait until every server has executed all its releases; the caller must limit the time."""
        while not self.settled:
            await asyncio.gather(*(node.settle() for node in self._keepers))
            if self._homeless:
                self.look_again()
                await asyncio.sleep(LOOK_GAP)

    async def finish(self) -> None:
        """Close all links once all queued commands have been written."""
        nodes = (*self._shards.values(), *self._scouts.values())
        await asyncio.gather(*(node.finish() for node in nodes))

    def check_clock(self) -> None:
        """Ask for every server's clock now."""
        for shard in self._shards.values():
            shard.check_clock()

    # state

    def state(self, now: float) -> str:
        """Return "up" if all primaries are up, otherwise the state of one that is not."""
        if self._view is None:
            return "down" if self._cause.permanent else "connecting"
        states = [shard.state(now) for shard in self._shards.values()]
        return next((state for state in states if state != "up"), "up")

    def cause(self, now: float) -> str:
        """Return the causes at all servers that are not "up"; "" if all are up."""
        if self._view is None:
            return self._cause.cause
        causes = [(one.address, one.cause(now)) for one in self._shards.values()]
        return "; ".join(f"{address}: {cause}" for address, cause in causes if cause)


class _ClusterTrust(Trust):
    """The clock of the whole cluster, for fence floors; each server has its own guards."""

    __slots__ = ("_shards",)

    def __init__(self, max_ttl: float, shards: Mapping[Address, Node]) -> None:
        super().__init__(max_ttl)
        self._shards = shards

    @property
    def offset(self) -> float | None:
        """The offset of the server most ahead, so that no server rejects a request too early."""
        known = [o for shard in self._shards.values() if (o := shard.trust.offset) is not None]
        return max(known) if known and len(known) == len(self._shards) else None


async def _unused(_node: Node, _limit: float) -> tuple[NodeLink, Facts]:
    raise AssertionError("a cluster has no link of its own")
