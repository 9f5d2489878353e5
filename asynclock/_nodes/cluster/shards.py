"""The primaries of a cluster: one node with its own guards for each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from ... import _clock
from ..._rules.quorum import majority
from ..._rules.standstill import StandStill
from ..._rules.trust import Facts, Trust
from ...events import Observers
from ..endpoint import Endpoint
from ..handshake import HandshakeError
from ..node import Node, NodeLink
from ..replicated.acks import AckedLink, KnownReplicas
from ..replicated.primary import PrimaryDialer
from ..replicated.watched import WatchedNode
from ..replies import REDIRECTS, Failure
from ..server import ServerNode
from .kept import KeptNodes
from .slots import Address, Shard, View, confirmations, mark_key

MARK_MOVED = Failure("the slot of its mark moves to another server")
"""It has no code: commands in other slots would follow that of a redirect."""


class Shards:
    """The primaries of the present view."""

    def __init__(
        self,
        endpoint: Endpoint,
        primaries: PrimaryDialer,
        prefix: str,
        observers: Observers,
        kept: KeptNodes,
        *,
        equip: Callable[[WatchedNode], None],
        look_again: Callable[[], None],
    ) -> None:
        self.view: View | None = None
        self.nodes: dict[Address, WatchedNode] = {}
        self._known = KnownReplicas()
        """For all shards together: after a failover, the new primary's replicas are fewer."""
        self._endpoint = endpoint
        self._primaries = primaries
        self._prefix = prefix
        self._observers = observers
        self._kept = kept
        self._equip = equip
        """Called with each new node, to connect its events."""
        self._look_again = look_again
        """Called when the view may be outdated."""
        self._clocks: list[Node] = []
        """The servers whose jumps are compared."""
        self._standstill = StandStill(0, 0)

    # the view

    def adopt(self, view: View) -> list[ServerNode]:
        """Take over a new view; return the nodes that it no longer has."""
        self.view = view
        for address, shard in view.shards.items():
            if address not in self.nodes:
                self.nodes[address] = self._add(address)
            self._tell_replicas(self.nodes[address], shard)
        return [self.nodes.pop(at) for at in list(self.nodes) if at not in view.shards]

    def confirm(self, views: Mapping[Address, View], asked: float) -> None:
        """Note which primaries a majority, asked at `asked`, names as primaries."""
        if self.view is None:
            return
        counts = confirmations(self.view, views)
        for address, count in counts.items():
            shard = self.nodes[address]
            if count >= majority(len(counts)):
                shard.confirm(asked)
            else:
                shard.doubt = f"only {count} of {len(counts)} primaries confirm it as a primary"
                self._look_again()

    def _tell_replicas(self, node: ServerNode, shard: Shard) -> None:
        self._known.counted(shard.replicas)
        if isinstance(node.link, AckedLink):
            node.link.replicas = shard.replicas

    # connections

    def _add(self, address: Address) -> WatchedNode:
        endpoint = self._endpoint.at(*address)

        async def open_link(_node: ServerNode, limit: float) -> tuple[NodeLink, Facts]:
            return await self._open(address, endpoint, node, limit)

        settings = self._primaries.settings
        node = WatchedNode(endpoint.address, open_link, settings, self._observers)
        node.late = endpoint.late
        self._equip(node)
        return self._kept.start(node)

    async def _open(
        self, address: Address, endpoint: Endpoint, node: WatchedNode, limit: float
    ) -> tuple[NodeLink, Facts]:
        # Not before the first confirmation: until then the age of a mark proves nothing.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await node.confirmation()
        shard = self._shard(address)
        mark = mark_key(self._prefix, shard.slot)
        patience = min(limit, 2 * self._primaries.settings.node_timeout)
        try:
            node.require()
            link, facts = await self._primaries.dial(
                endpoint, node, patience, self._known, mark=mark, replicas=shard.replicas
            )
        except BaseException as error:
            self._look_again()
            if isinstance(error, HandshakeError) and error.failure.code in REDIRECTS:
                raise HandshakeError(MARK_MOVED) from None
            raise
        return node.watched(link, facts)

    def _shard(self, address: Address) -> Shard:
        found = None if self.view is None else self.view.shards.get(address)
        return found or Shard(0, 0)

    # clocks

    def jumped(self, shard: Node, by: float) -> float:
        """Return by how many seconds leases end sooner because the clock of `shard` jumped."""
        # If our own clock stood still, each server reports a jump, but leases end sooner only once.
        # A lease may be on any of the servers, so the largest jump counts.
        clocks: list[Node] = [*self.nodes.values()]
        if clocks != self._clocks:
            self._clocks, self._standstill = clocks, StandStill(len(clocks), len(clocks))
        if shard not in clocks:
            return 0.0  # it left the cluster and serves no lease
        return self._standstill.jumped(clocks.index(shard), by, _clock.now())

    def check_silent(self, shard: Node) -> None:
        """Ask for the clocks of the servers that haven't reported the jump of `shard`."""
        if shard in self._clocks:
            for other in self._standstill.silent(self._clocks.index(shard)):
                self._clocks[other].check_clock()


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
