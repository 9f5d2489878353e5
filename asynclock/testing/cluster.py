"""A Redis Cluster of local processes."""

from __future__ import annotations

import asyncio
import secrets
from typing import ClassVar, Unpack
from urllib.parse import urlsplit

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing._settings import ServerOptions
from asynclock.testing.servers import LocalServer
from asynclock.testing.topology import REPLICATION, Topology, in_sync, runs, until

__all__ = ["RedisCluster"]

_SLOTS = 16_384
_BUS_OFFSET = 10_000


class _ClusterNode(LocalServer):
    _with_bus: ClassVar[bool] = True

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        self.identity = secrets.token_hex(20)
        super().__init__(**options)

    def remember(self, nodes: str) -> None:
        """Give it the file in which a node keeps what it knows of the cluster."""
        (self._data / "nodes.conf").write_text(nodes)


class RedisCluster(Topology):
    """Primaries that share the slots, each with replicas; servers are ordered by shard.

    node_timeout: seconds of silence after which nodes believe that one has failed; a busy machine
    may keep nodes silent for most of a second.

    The nodes start as if they had known each other for long; it takes about two seconds until
    they serve, which is how long a Redis Cluster waits before it trusts itself.
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
        for server in self._nodes:
            server.remember(self._nodes_conf(server))

    @property
    def _nodes(self) -> list[_ClusterNode]:
        return [server for server in self.servers if isinstance(server, _ClusterNode)]

    @property
    def shards(self) -> list[list[LocalServer]]:
        """Servers by shard, in the order in which they were made, whoever is primary now."""
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

    async def ready(self) -> None:
        """Wait until all nodes that run agree on everything and every replica is in sync."""
        await until(self._agreed, "all cluster nodes are content and of one opinion")
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
        views = await asyncio.gather(*(_view(server, ports) for server in running))
        return None not in views and len(set(views)) == 1

    async def primary(self, shard: int = 0) -> LocalServer:
        """Return the primary of that shard at this moment; TimeoutError if there is none."""
        return await self._primary_among(list(filter(runs, self.shards[shard])))

    async def _primary_among(self, servers: list[LocalServer]) -> LocalServer:
        for server in servers:
            if (await server.command("ROLE"))[0] == "master":
                return server
        raise TimeoutError(f"no primary in the shard of {self.addresses[0]}")

    async def fail_over(self, *, kill: bool = True, shard: int = 0) -> LocalServer:
        """Kill the primary of that shard, or order a failover, and wait until all agree."""
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
        """Wait until a replica has taken the place of `old` for every node, and return it."""
        shard = next(number for number, servers in enumerate(self.shards) if old in servers)
        others = [server for server in self.shards[shard] if server is not old]

        async def moved() -> bool:
            await self._primary_among(list(filter(runs, others)))
            return True

        await until(moved, f"a replica takes the place of {old.url}")
        await self.ready()
        return await self.primary(shard)


async def _view(server: LocalServer, running: set[int]) -> str | None:
    """What this node knows of those that run; None if it believes that anything is wrong."""
    if "cluster_state:ok" not in await server.command("CLUSTER", "INFO"):
        return None
    view = []
    for line in (await server.command("CLUSTER", "NODES")).splitlines():
        node, address, flags, primary, _, _, epoch, link, *slots = line.split()
        if int(address.split("@")[0].rsplit(":", 1)[1]) in running:
            if "fail" in flags or link != "connected":
                return None
            view.append(" ".join([node, flags.removeprefix("myself,"), primary, epoch, *slots]))
    # What clients are shown: a replica is left out until the node has heard that it has data.
    shown = {node[1] for _, _, *nodes in await server.command("CLUSTER", "SLOTS") for node in nodes}
    return "\n".join(sorted(view)) if running <= shown else None
