"""A Redis Cluster of local processes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Unpack
from urllib.parse import urlsplit

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing.servers.local import LocalServer, ServerOptions, ServerReplyError
from asynclock.testing.topology.base import REPLICATION, Topology, in_sync, runs, until

_SLOTS = 16_384
_BUS_OFFSET = 10_000


class _ClusterNode(LocalServer):
    _with_bus: ClassVar[bool] = True

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        self.identity = secrets.token_hex(20)
        super().__init__(**options)

    def remember(self, nodes: str) -> None:
        """Write the file in which a node keeps its knowledge of the cluster."""
        (self._data / "nodes.conf").write_text(nodes)


class RedisCluster(Topology):
    """Primaries that share the hash slots, each with replicas; `servers` is ordered by shard.

    node_timeout: seconds of silence after which nodes regard a node as failed; on a busy machine a
    good node may be silent for most of a second.

    The nodes start with full knowledge of each other, but it takes about two seconds until they
    serve requests: a Redis Cluster waits that long after its start.
    """

    _server: ClassVar[type[LocalServer]] = _ClusterNode

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 1,
        *,
        node_timeout: float = 2.0,
        **options: Unpack[ServerOptions],
    ) -> None:
        if options.get("unix"):
            raise UnsupportedDeploymentError("cluster nodes reach each other by TCP only")
        options["args"] = [
            *(
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                str(round(node_timeout * 1000)),
            ),
            *REPLICATION,
            *options.get("args", ()),
        ]
        super().__init__(primaries * (1 + replicas), **options)
        self._per_shard = 1 + replicas
        self._views: list[_NodeReport] = []
        for server in self._nodes:
            server.remember(self._nodes_conf(server))

    @property
    def _nodes(self) -> list[_ClusterNode]:
        return [server for server in self.servers if isinstance(server, _ClusterNode)]

    @property
    def shards(self) -> list[list[LocalServer]]:
        """The servers by shard, in the order of creation, whichever is the primary now."""
        step = self._per_shard
        return [self.servers[i : i + step] for i in range(0, len(self.servers), step)]

    @property
    def addresses(self) -> list[str]:
        """One URL that names every node."""
        url = urlsplit(self.servers[0].url)
        login, at, _ = url.netloc.rpartition("@")
        hosts = ",".join(f"{server.host}:{server.port}" for server in self.servers)
        return [url._replace(scheme=f"{url.scheme}+cluster", netloc=login + at + hosts).geturl()]

    def _nodes_conf(self, myself: _ClusterNode) -> str:
        lines, shards = [], len(self.shards)
        for number, node in enumerate(self._nodes):
            shard, place = divmod(number, self._per_shard)
            first, last = shard * _SLOTS // shards, (shard + 1) * _SLOTS // shards - 1
            primary = self._nodes[shard * self._per_shard].identity if place else "-"
            flags = ("myself," if node is myself else "") + ("slave" if place else "master")
            slots = "" if place else f" {first}-{last}"
            address = f"{node.host}:{node.port}@{node.port + _BUS_OFFSET}"
            epoch = f"0 0 {shard + 1}"
            lines.append(f"{node.identity} {address} {flags} {primary} {epoch} connected{slots}")
        return "\n".join([*lines, f"vars currentEpoch {shards} lastVoteEpoch 0", ""])

    async def _arrange(self) -> None:
        """Cancel unfinished moves of slots.

        Only the node itself shows that it is moving a slot, so the views would never agree.
        """
        for server in self.servers:
            for slot in _moving(await server.command("CLUSTER", "NODES")):
                await server.command("CLUSTER", "SETSLOT", slot, "STABLE")

    async def ready(self) -> None:
        """Wait until all running nodes agree on everything and every replica is in sync.

        Raises TimeoutError with the nodes that disagree, and their differences.
        """
        try:
            await until(self._agreed, "all cluster nodes are content and of one opinion")
        except TimeoutError as error:
            raise TimeoutError("\n".join([str(error), *_differences(self._views)])) from None
        for shard in self.shards:
            running = list(filter(runs, shard))
            primary = await self._primary_among(running)
            await in_sync(primary, [server for server in running if server is not primary])

    async def _agreed(self) -> bool:
        """Whether all say ok, and the same about epochs, slots and who follows whom.

        The epochs matter: a failover ordered before all nodes know of the one before can end with
        a primary that nobody else accepts, for good.
        """
        running = list(filter(runs, self.servers))
        ports = {server.port for server in running}
        self._views = await asyncio.gather(*(_view(server, ports) for server in running))
        first = self._views[0]
        return all(not view.doubts and view.facts == first.facts for view in self._views)

    async def primary(self, shard: int = 0) -> LocalServer:
        """Return the shard's present primary. Raises TimeoutError if there is none."""
        return await self._primary_among(list(filter(runs, self.shards[shard])))

    async def _primary_among(self, servers: list[LocalServer]) -> LocalServer:
        for server in servers:
            if (await server.command("ROLE"))[0] == "master":
                return server
        raise TimeoutError(f"no primary in the shard of {self.addresses[0]}")

    async def fail_over(self, *, kill: bool = True, shard: int = 0) -> LocalServer:
        """Kill the shard's primary, or order a failover, and wait until all nodes agree."""
        if self._per_shard == 1:
            return await super().fail_over(kill=kill)
        old = await self.primary(shard)
        if kill:
            await old.kill()
        else:
            heir = next(s for s in self.shards[shard] if s is not old and runs(s))
            await heir.command("CLUSTER", "FAILOVER")
        return await self.failed_over(old)

    async def failed_over(self, old: LocalServer) -> LocalServer:
        """Wait until all nodes see a replica in the place of `old`, and return that replica."""
        shard = next(number for number, servers in enumerate(self.shards) if old in servers)
        others = [server for server in self.shards[shard] if server is not old]

        async def moved() -> bool:
            await self._primary_among(list(filter(runs, others)))
            return True

        await until(moved, f"a replica takes the place of {old}")
        await self.ready()
        return await self.primary(shard)


@dataclass(frozen=True)
class _NodeReport:
    """What one node knows of those that run, and what it finds wrong."""

    node: str
    facts: frozenset[str] = frozenset()
    doubts: tuple[str, ...] = ()


async def _view(server: LocalServer, running: set[int]) -> _NodeReport:
    name = f"{server.host}:{server.port}"
    try:
        state, *_ = (await server.command("CLUSTER", "INFO")).splitlines()
        lines = (await server.command("CLUSTER", "NODES")).splitlines()
        slots = await server.command("CLUSTER", "SLOTS")
    except (OSError, ServerReplyError) as error:
        return _NodeReport(name, doubts=(f"can't be asked: {error}",))
    doubts = [] if state == "cluster_state:ok" else [state]
    facts = set()
    for line in lines:
        node, address, flags, primary, _, _, epoch, link, *owned = line.split()
        if (port := _port(address)) in running:
            if "fail" in flags or link != "connected":
                doubts.append(line)
            role = flags.removeprefix("myself,")
            facts.add(" ".join([str(port), node, role, primary, epoch, *owned]))
    # The view for clients, which leaves a replica out until the node knows that it has data.
    hidden = running - {node[1] for _, _, *nodes in slots for node in nodes}
    doubts += [f"does not show {port} to clients" for port in sorted(hidden)]
    return _NodeReport(name, frozenset(facts), tuple(doubts))


def _moving(nodes: str) -> list[str]:
    """Return the slots that this node marks: `[5->-id]` goes to another, `[5-<-id]` comes."""
    (myself,) = (line for line in nodes.splitlines() if "myself" in line)
    return [word[1:].split("-")[0] for word in myself.split() if word.startswith("[")]


def _port(address: str) -> int:
    """Return the port in `host:port@bus,name`."""
    return int(address.split("@", maxsplit=1)[0].rsplit(":", maxsplit=1)[-1])


def _differences(views: list[_NodeReport]) -> Iterator[str]:
    """Yield what each node doubts, and what it says that not all say."""
    common = frozenset.intersection(*(view.facts for view in views)) if views else frozenset()
    for view in views:
        yield from (f"{view.node}: {doubt}" for doubt in view.doubts)
        yield from (f"{view.node} says: {fact}" for fact in sorted(view.facts - common))
