"""One voter that is many servers: each name is asked for where its slot is.

Every primary that the cluster's view names is a Node with its own guards, so a promoted replica
does not vote before all leases that it may have missed have ended. The view is asked for again
every second, from several servers, because an old primary that wakes up does not know at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ... import _clock
from ..._background import Background
from ..._rules.trust import Facts, Trust
from ...events import Observers
from ..acks import AckedLink
from ..debts import MAX_OWED
from ..endpoint import Endpoint
from ..handshake import greet
from ..link import NOBODY, Failure, Link, Sink
from ..node import CACHING, Node, NodeSettings
from ..primary import Primaries
from ..script import Command
from .route import Route
from .slots import QUESTIONS, SLOTS, Address, Shard, View, Views, mark_key
from .waiting import Waiting

POLL = 1.0
"""Seconds between two looks at the slots while all is well."""
GAP = 0.05
"""Seconds between two looks when something is wrong."""
INFORMANTS = 7
"""How many servers are asked for their view."""
LAG = 2 * POLL
"""So long others may go on with a primary that has been replaced: until they have looked, too."""


class ClusterNode(Node):
    """A Redis Cluster."""

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
        self._shards: dict[Address, Node] = {}
        self._scouts: dict[Address, Node] = {}
        self._seeds = [(seed.host, seed.port) for seed in seeds]
        self._view: View | None = None
        self._owners: list[Node | None] = [None] * SLOTS
        self.waiting = Waiting(lambda: self._cause)
        self._unsent: deque[Command] = deque(maxlen=MAX_OWED)
        self._wanted = asyncio.Event()
        self._arming = False
        self._cause = Failure("the slots are not known yet")
        self.trust = _ClusterTrust(primaries.settings.max_ttl, self._shards)

    # asked

    def ask(self, command: Command, sink: Sink, index: int) -> None:
        """Send `command` to the server that has its keys."""
        if command is CACHING:
            self._arming = True  # it means the next command, whose server it must go to
            return
        armed, self._arming = self._arming, False
        Route(self, command, sink, index, armed=armed).go()

    def deliver(self, command: Command, sink: Sink, index: int) -> None:
        """Send a release, now or when whoever has its keys is back."""
        route = Route(self, command, sink, index, owed=True)
        if not self.waiting.forget(route):
            route.go()

    def obstacle(self, now: float) -> Failure | None:
        """Why the whole cluster has no vote; each server's own guards are asked on the way."""
        return self.rejected

    # where things are

    def owner(self, slot: int) -> Node | None:
        """The server that serves `slot`, as far as we know."""
        return self._owners[slot]

    def shard_at(self, address: Address | None) -> Node | None:
        """The primary at `address`, if the cluster's view knows one there."""
        return None if address is None else self._shards.get(address)

    def address_of(self, shard: Node) -> Address:
        """Where it is."""
        return next((at for at, one in self._shards.items() if one is shard), self._seeds[0])

    def moved(self, slot: int, shard: Node) -> None:
        """A server said so."""
        self._owners[slot] = shard

    def look_again(self) -> None:
        """Something is not where it was."""
        self._wanted.set()

    def park(self, route: Route) -> None:
        """Wait for the next view, as long as the command has time."""
        if self._cause.permanent:
            route.fail(self._cause)
            return
        self.waiting.park(route)
        self.look_again()

    def owe(self, command: Command) -> None:
        """Send it once a new view says where to."""
        self._unsent.append(command)

    # kept connected

    async def keep(self) -> None:
        """Follow the cluster's view until cancelled."""
        try:
            while True:
                self._wanted.clear()
                await self._look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL * (3 + self.random()) / 4):
                        await self._wanted.wait()
                await asyncio.sleep(GAP)
        finally:
            await self._crew.aclose()
            self._cause = Failure("the manager is closed", permanent=True)
            self.waiting.fail(self._cause)

    async def _look(self) -> None:
        informants = {**self._shards, **self._scouts}
        if not informants:
            for seed in self._seeds:
                self._scouts[seed] = self._scout(seed)
            informants = self._scouts
        asked = list(informants)[:INFORMANTS]
        views = Views(asked, self.settings.node_timeout / 4)
        for number, address in enumerate(asked):
            for place, question in enumerate(QUESTIONS):
                informants[address].ask(question, views, 2 * number + place)
        await views.complete
        view = views.newest()
        if isinstance(view, Failure):
            self._cause = view
            if view.permanent:
                self.waiting.fail(self._cause)
        else:
            await self._adopt(view)

    async def _adopt(self, view: View) -> None:
        if self._view is not None and view.epoch < self._view.epoch:
            return
        changed = self._view is None or view.owners != self._view.owners
        self._view = view
        self._cause = Failure("no server has its slot")
        for address, shard in view.shards.items():
            if address not in self._shards:
                self._shards[address] = self._primary(address)
            self._tell_replicas(self._shards[address], shard)
        gone = [self._shards.pop(at) for at in list(self._shards) if at not in view.shards]
        self._owners = [None if at is None else self._shards[at] for at in view.owners]
        wanted = set(list(view.others)[: max(1, INFORMANTS - len(self._shards))])
        gone += [self._scouts.pop(at) for at in list(self._scouts) if at not in wanted]
        for address in wanted - self._scouts.keys():
            self._scouts[address] = self._scout(address)
        for node in gone:
            self._unsent.extend(node.debts.take())
        if changed:
            self.on_wake(None)  # nobody else tells that a name has moved away from its push
        self._resume()  # before anything else can be sent: a release must not overtake
        for node in gone:
            await self._retire(node)

    def _resume(self) -> None:
        self.waiting.resume()
        unsent, self._unsent = self._unsent, deque(maxlen=MAX_OWED)
        now = _clock.now()
        for command in unsent:
            if command.owed_until > now:
                self.deliver(command, NOBODY, 0)

    async def _retire(self, node: Node) -> None:
        # A frozen server takes nothing off our hands: its keeper then ends the link.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.node_timeout):
                await node.finish()
        keeper = self._keepers.pop(node, None)
        if keeper is not None:
            keeper.cancel()

    def _hire(self, node: Node) -> Node:
        self._keepers[node] = self._crew.spawn(node.keep(), f"asynclock: keep {node.address}")
        return node

    # its servers

    def _primary(self, address: Address) -> Node:
        endpoint = self._endpoint.at(*address)
        open_link = partial(self._open, address, endpoint)
        node = Node(endpoint.address, open_link, self.settings, self._observers)
        node.on_wake = lambda key: self.on_wake(key)
        node.on_jump = lambda _node, by: self.on_jump(self, by)
        node.on_met = self._met
        return self._hire(node)

    async def _open(
        self, address: Address, endpoint: Endpoint, node: Node, limit: float
    ) -> tuple[Link, Facts]:
        shard = self._shard(address)
        mark = mark_key(self._prefix, shard.slot)
        patience = min(limit, 2 * self.settings.node_timeout)
        try:
            link, facts = await self._primaries.dial(
                endpoint, node, patience, mark=mark, replicas=shard.replicas
            )
        except BaseException:
            self.look_again()
            raise
        if facts.marked is None or facts.complete:
            return link, facts
        return link, replace(facts, marked=facts.marked - LAG)

    def _shard(self, address: Address) -> Shard:
        view = self._view
        found = None if view is None else view.shards.get(address)
        return found or Shard(0, 0)

    def _tell_replicas(self, node: Node, shard: Shard) -> None:
        if isinstance(node.link, AckedLink):
            node.link.replicas = shard.replicas

    def _met(self, node: Node) -> None:
        self.trust.facts = node.trust.facts
        self.tracking = all(shard.tracking for shard in self._shards.values())
        self.on_met(self)
        if self.rejected is not None:
            node.rejected = self.rejected

    def _scout(self, address: Address) -> Node:
        return self._hire(_scout(self._endpoint.at(*address), self.settings))

    async def finish(self) -> None:
        """Close all links once what is queued has been written."""
        nodes = (*self._shards.values(), *self._scouts.values())
        await asyncio.gather(*(node.finish() for node in nodes))

    def check_clock(self) -> None:
        """Ask for every server's clock now."""
        for shard in self._shards.values():
            shard.check_clock()

    # seen

    def state(self, now: float) -> str:
        """ "up" when all primaries are; else the state of one that is not."""
        if self._view is None:
            return "down" if self._cause.permanent else "connecting"
        states = [shard.state(now) for shard in self._shards.values()]
        return next((state for state in states if state != "up"), "up")

    def cause(self, now: float) -> str:
        """What is wrong, server by server."""
        if self._view is None:
            return self._cause.cause
        causes = [(one.address, one.cause(now)) for one in self._shards.values()]
        return "; ".join(f"{address}: {cause}" for address, cause in causes if cause)


class _ClusterTrust(Trust):
    """Each server has its own guards; the whole has a clock for fence floors."""

    __slots__ = ("_shards",)

    def __init__(self, max_ttl: float, shards: dict[Address, Node]) -> None:
        super().__init__(max_ttl)
        self._shards = shards

    @property
    def offset(self) -> float | None:
        """That of the server most ahead, so that none takes a request for late too early."""
        known = [o for shard in self._shards.values() if (o := shard.trust.offset) is not None]
        return max(known) if known and len(known) == len(self._shards) else None


def _scout(endpoint: Endpoint, settings: NodeSettings) -> Node:
    async def open_link(node: Node, limit: float) -> tuple[Link, Facts]:
        return await greet(endpoint, node, settings.node_timeout, limit), Facts()

    return Node(endpoint.address, open_link, replace(settings, restart_guard=False), Observers())


async def _unused(_node: Node, _limit: float) -> tuple[Link, Facts]:
    raise AssertionError("a cluster has no link of its own")
