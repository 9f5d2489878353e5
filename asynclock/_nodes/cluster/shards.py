"""The primaries of a cluster: which slots the servers' views give them, and a node for each.

https://redis.io/docs/latest/commands/cluster-slots/
"""

from __future__ import annotations

import asyncio
import contextlib
from binascii import crc_hqx
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar, cast

from ... import _clock
from ..._keys import HASH_TAG, PRIMARY, derived, lock_key
from ..._process import Background
from ..._rules.quorum import majority
from ..._rules.validity import Facts, StandStill, Trust
from ...events import Observers
from ..endpoint import Endpoint
from ..handshake import HandshakeError
from ..link import Link
from ..node import Node, NodeSettings
from ..replicated import (
    SILENT,
    PrimaryDialer,
    WatchedNode,
    poll,
    poll_patience,
    source_node,
)
from ..replicated.acks import AckedLink, KnownReplicas
from ..server import ServerNode
from ..wire import REDIRECTS, Command, Failure, number, parse_info

SLOTS = 16_384
QUESTIONS = (Command.plain("CLUSTER", "SLOTS"), Command.plain("CLUSTER", "INFO"))

Address = tuple[str, int]


@dataclass(slots=True)
class Shard:
    """A primary in the view: its number of replicas and one slot that it serves."""

    replicas: int
    slot: int


@dataclass(slots=True)
class View:
    """The cluster as one server sees it; the view with the highest epoch is the newest."""

    epoch: int
    owners: list[Address | None] = field(default_factory=lambda: [None] * SLOTS)
    """The primary of each slot."""
    shards: dict[Address, Shard] = field(default_factory=dict)
    others: set[Address] = field(default_factory=set)
    """The replicas, which also have a view of the cluster."""


def read_view(asked: Address, slots: Any, info: Any) -> View | None:
    """Return the view in the answers of server `asked` to QUESTIONS; None if it has none."""
    if isinstance(slots, Failure) or isinstance(info, Failure) or not slots:
        return None
    view = View(number(parse_info(info), "cluster_current_epoch") or 0)
    for first, last, primary, *replicas in slots:
        owner = _address(primary, asked)
        view.owners[first : last + 1] = [owner] * (last + 1 - first)
        view.shards.setdefault(owner, Shard(len(replicas), first))
        view.others.update(_address(replica, asked) for replica in replicas)
    view.others -= view.shards.keys()
    return view


def _address(server: Sequence[Any], asked: Address) -> Address:
    # A server that doesn't know its own host name leaves it out: then it is the one we asked.
    host = (server[0] or b"").decode()
    return (host if host not in ("", "?") else asked[0], int(server[1]))


def read_redirect(cause: str, asked: str) -> Address | None:
    """Return the address in `MOVED 3999 host:port` or `ASK 3999 host:port`; None without one.

    Without a host, the redirect is to another port of the server at `asked`.
    """
    words = cause.split()
    if len(words) < 3:
        return None
    host, _, port = words[2].rpartition(":")
    host = host or asked.rpartition(":")[0]
    return (host.strip("[]"), int(port)) if port.isdigit() else None


def key_slot(key: bytes) -> int:
    """Return the hash slot of a key, as redis-py does, whose import takes a fifth of a second."""
    _, _, rest = key.partition(b"{")
    tag, brace, _ = rest.partition(b"}")
    return crc_hqx(tag if brace and tag else key, 0) % SLOTS


@lru_cache(maxsize=1024)
def slot_of(key: str) -> int:
    """Return the slot of a key. All keys of a command are of one name, so they have one slot."""
    return key_slot(key.encode("utf-8", "surrogateescape"))


@lru_cache(maxsize=64)
def mark_key(prefix: str, slot: int) -> str:
    """Return the key of the mark of the primary that serves this slot."""
    for tag in map(str, count()):
        if key_slot(tag.encode()) == slot:
            return derived(lock_key(prefix + HASH_TAG, tag), PRIMARY)
    raise AssertionError


def read_views(
    asked: Sequence[Address], answers: Sequence[Sequence[Any]]
) -> tuple[dict[Address, View], list[Failure]]:
    """Return the view of each server that has one, and why others have none."""
    views: dict[Address, View] = {}
    failures: list[Failure] = []
    for address, answer in zip(asked, answers, strict=True):
        failures += [reply for reply in answer if isinstance(reply, Failure)]
        try:
            view = read_view(address, *answer)
        except Exception as error:  # an unreadable answer of one server must not affect others
            cause = f"its view can't be read: {type(error).__name__}: {error}"
            failures.append(Failure(cause))
            continue
        if view is not None:
            views[address] = view
    return views, failures


def why_none(failures: Sequence[Failure]) -> Failure:
    """Return why no server has a view."""
    known = [failure for failure in failures if failure is not SILENT]
    causes = "; ".join(sorted({failure.cause for failure in known}))
    hopeless = bool(known) and all(failure.permanent for failure in known)
    cause = f"no server reported the slots ({causes or 'none are assigned'})"
    return Failure(cause, permanent=hopeless)


def confirmations(view: View, views: Mapping[Address, View]) -> dict[Address, int]:
    """Return for each primary of `view` how many primaries name it as the owner of its slots."""
    voters = [views[address] for address in view.shards if address in views]
    return {
        address: sum(voter.owners[shard.slot] == address for voter in voters)
        for address, shard in view.shards.items()
    }


# the nodes of the primaries

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
        self._look_again = look_again
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
        """Note which primaries of the adopted view a majority, asked at `asked`, names as such."""
        counts = confirmations(cast(View, self.view), views)
        for address, agreed in counts.items():
            shard = self.nodes[address]
            if agreed >= majority(len(counts)):
                shard.confirm(asked)
            else:
                shard.doubt = f"only {agreed} of {len(counts)} primaries confirm it as a primary"
                self._look_again()

    def _tell_replicas(self, node: ServerNode, shard: Shard) -> None:
        self._known.counted(shard.replicas)
        if isinstance(node.link, AckedLink):
            node.link.replicas = shard.replicas

    # connections

    def _add(self, address: Address) -> WatchedNode:
        endpoint = self._endpoint.at(*address)

        async def open_link(_node: ServerNode, limit: float) -> tuple[Link, Facts]:
            return await self._open(address, endpoint, node, limit)

        settings = self._primaries.settings
        node = WatchedNode(endpoint.address, open_link, settings, self._observers)
        node.late = endpoint.late
        self._equip(node)
        return self._kept.start(node)

    async def _open(
        self, address: Address, endpoint: Endpoint, node: WatchedNode, limit: float
    ) -> tuple[Link, Facts]:
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


N = TypeVar("N", bound=ServerNode)


class KeptNodes:
    """The tasks that keep the servers connected."""

    def __init__(self, node_timeout: float) -> None:
        self._node_timeout = node_timeout
        self._background = Background()
        self._tasks: dict[ServerNode, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[ServerNode]:
        return iter(self._tasks)

    def start(self, node: N) -> N:
        """Keep `node` connected from now on; return it."""
        self._tasks[node] = self._background.spawn(node.keep(), f"asynclock: keep {node.address}")
        return node

    def leave(self, node: ServerNode, then: Callable[[ServerNode], None]) -> None:
        """End the connection of `node`, and call `then` when it has ended."""
        self._background.spawn(self._leave(node, then), f"asynclock: leave {node.address}")

    async def _leave(self, node: ServerNode, then: Callable[[ServerNode], None]) -> None:
        link = node.link
        # A frozen server doesn't finish in time; cancelling its task then ends the link.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._node_timeout):
                await node.finish()
        task = self._tasks[node]
        task.cancel()
        await asyncio.wait([task])
        if link is not None:
            await link.closed
        del self._tasks[node]
        then(node)

    async def aclose(self) -> None:
        """End every task and wait until it has ended."""
        await self._background.aclose()


MAX_SOURCES = 7
"""Number of servers that are asked for their view; with more primaries, all primaries are asked."""


class ViewReader:
    """The servers that are asked for their view of the cluster."""

    def __init__(
        self,
        endpoint: Endpoint,
        seeds: Sequence[Address],
        settings: NodeSettings,
        kept: KeptNodes,
    ) -> None:
        self._endpoint = endpoint
        self._seeds = seeds
        self._settings = settings
        self._kept = kept
        self._sources: dict[Address, ServerNode] = {}

    def __iter__(self) -> Iterator[ServerNode]:
        return iter(self._sources.values())

    async def read(self) -> tuple[Mapping[Address, View], Sequence[Failure]]:
        if not self._sources:
            for seed in self._seeds:
                self._sources[seed] = self._source(seed)
        asked, patience = tuple(self._sources), poll_patience(self._settings.node_timeout)
        return read_views(asked, await poll(self._sources.values(), QUESTIONS, patience))

    def follow(self, view: View) -> list[ServerNode]:
        """Ask the servers of `view` from now on; return the others, which are no longer asked."""
        others = list(view.others)[: max(1, MAX_SOURCES - len(view.shards))]
        wanted, sources = {*view.shards, *others}, self._sources
        gone = [sources.pop(at) for at in list(sources) if at not in wanted]
        for address in wanted - sources.keys():
            sources[address] = self._source(address)
        return gone

    def _source(self, address: Address) -> ServerNode:
        return self._kept.start(source_node(self._endpoint.at(*address), self._settings))
