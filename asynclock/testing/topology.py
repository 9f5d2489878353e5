"""Deployments of local servers behind one interface.

    async with SentinelGroup(replicas=2) as deployment:
        locks = asynclock.connect(*deployment.addresses, acks=1)
        await deployment.fail_over()

An `async with` block begins when the deployment is ready: replicas are in sync, and Sentinels and
cluster nodes agree. At its end no process and no file is left, even if servers were killed or
frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, Unpack
from urllib.parse import urlsplit

from asynclock.errors import UnsupportedDeploymentError
from asynclock.testing.servers import (
    LocalServer,
    ServerOptions,
    ServerReplyError,
    start_all,
    tls_settings,
)

_TIMEOUT = 30.0  # seconds until a condition counts as never met


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, *, timeout: float = _TIMEOUT
) -> None:
    """Call `condition` until it holds; an unreachable server counts as False.

    Raises TimeoutError after `timeout` seconds, with what never happened.
    """
    try:
        async with asyncio.timeout(timeout):
            while True:
                with contextlib.suppress(OSError, ServerReplyError):
                    if await condition():
                        return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout} s: {what}") from None


class Topology:
    """Servers of one deployment; the options are those of `LocalServer`, for each server."""

    _server: ClassVar[type[LocalServer]] = LocalServer

    def __init__(self, n: int, **options: Unpack[ServerOptions]) -> None:
        self.servers: list[LocalServer] = [self._server(**options) for _ in range(n)]
        """The servers that have data (no Sentinels)."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.servers}>"

    @property
    def addresses(self) -> list[str]:
        """The addresses for `asynclock.connect`."""
        return [server.url for server in self.servers]

    async def ready(self) -> None:
        """Wait until the deployment is ready. Raises TimeoutError with what isn't."""

    async def fail_over(self, *, kill: bool = True) -> LocalServer:  # noqa: ARG002 - for subclasses
        """Make a replica the primary and return it, once all servers agree.

        kill: kill the primary, which stays dead until `repair`; if False, fail over in an orderly
        way. Raises UnsupportedDeploymentError if there are no replicas.
        """
        raise UnsupportedDeploymentError(f"{type(self).__name__} has no replica to fail over to")

    async def repair(self) -> None:
        """Thaw frozen servers, start dead ones (with their data if `aof`), wait until ready."""
        await self._launch(self.servers)
        await self._arrange()
        await self.ready()

    async def _arrange(self) -> None:
        """Configure the roles of the servers."""

    async def _launch(self, servers: list[LocalServer]) -> None:
        for server in servers:
            if server.frozen:
                await server.thaw()
        await start_all(servers)

    def close(self) -> None:
        """Kill all servers; works without an event loop."""
        for server in self.servers:
            server.close()

    async def __aenter__(self) -> Self:
        try:
            await self.repair()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Single(Topology):
    """One server without replicas, for `connect` with one address."""

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        super().__init__(1, **options)


class Quorum(Topology):
    """`n` independent primaries: the nodes of a quorum."""

    def __init__(self, n: int = 3, **options: Unpack[ServerOptions]) -> None:
        super().__init__(n, **options)


# ---- A primary with replicas ---------------------------------------------------------------------


# Without these settings, timers of several seconds delay the first synchronization of a replica.
REPLICATION = (
    *("--repl-diskless-sync", "yes"),
    *("--repl-diskless-sync-delay", "0"),
    *("--repl-ping-replica-period", "1"),
)


class Replicated(Topology):
    """A primary with replicas; `addresses` is the URL of the present primary.

    There is no watcher: `fail_over` does by hand what an operator would do.
    """

    def __init__(self, replicas: int = 2, **options: Unpack[ServerOptions]) -> None:
        options["args"] = [*REPLICATION, *options.get("args", ())]
        if options.get("unix"):
            raise UnsupportedDeploymentError("replicas reach their primary by TCP only")
        super().__init__(1 + replicas, **options)
        self.primary: LocalServer = self.servers[0]
        """The present primary, as far as this object itself has failed over."""

    @property
    def replicas(self) -> list[LocalServer]:
        """All other servers, dead or alive."""
        return [server for server in self.servers if server is not self.primary]

    @property
    def addresses(self) -> list[str]:
        """The URL of the primary."""
        return [self.primary.url]

    async def _arrange(self) -> None:
        await asyncio.gather(*(follow(replica, self.primary) for replica in self.replicas))

    async def ready(self) -> None:
        """Wait until every running replica has all of the primary's data and acknowledges it."""
        await in_sync(self.primary, [replica for replica in self.replicas if runs(replica)])

    async def fail_over(self, *, kill: bool = True) -> LocalServer:
        """Promote the first running replica and make the others follow it."""
        if kill:
            await self.primary.kill()
        self.primary = next(replica for replica in self.replicas if runs(replica))
        await self.primary.command("REPLICAOF", "NO", "ONE")
        for replica in self.replicas:
            if runs(replica):
                await follow(replica, self.primary)
        await self.ready()
        return self.primary


def runs(server: LocalServer) -> bool:
    """Return whether a server runs and isn't frozen."""
    return server.alive and not server.frozen


async def follow(replica: LocalServer, primary: LocalServer) -> None:
    """Make one server a replica of the other; does nothing if it is one."""
    await replica.command("REPLICAOF", primary.host, primary.port)


async def in_sync(primary: LocalServer, replicas: list[LocalServer]) -> None:
    """Wait until all these replicas have the primary's present data, and the primary knows it."""

    async def complete() -> bool:
        reached = int(await _replication(primary, "master_repl_offset"))
        for replica in replicas:
            if await _replication(replica, "master_port") != str(primary.port):
                return False
            if await _replication(replica, "master_link_status") != "up":
                return False
            if int(await _replication(replica, "slave_repl_offset")) < reached:
                return False
        # Without a write before it, WAIT returns at once, with the number of connected replicas.
        count: int = await primary.command("WAIT", len(replicas), 1000)
        return count >= len(replicas)

    await until(complete, f"{len(replicas)} replicas in sync with {primary}")


async def _replication(server: LocalServer, field: str) -> str:
    for line in (await server.command("INFO", "replication")).splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return str(value)
    return "-1"


# ---- A Redis Cluster -----------------------------------------------------------------------------

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
        nodes = [server for server in self.servers if isinstance(server, _ClusterNode)]
        for node in nodes:
            node.remember(self._nodes_conf(node, nodes))

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
        hosts = ",".join(urlsplit(one.url).netloc.removeprefix(login + at) for one in self.servers)
        return [url._replace(scheme=f"{url.scheme}+cluster", netloc=login + at + hosts).geturl()]

    def _nodes_conf(self, myself: _ClusterNode, nodes: list[_ClusterNode]) -> str:
        lines, shards = [], len(self.shards)
        for number, node in enumerate(nodes):
            shard, place = divmod(number, self._per_shard)
            first, last = shard * _SLOTS // shards, (shard + 1) * _SLOTS // shards - 1
            primary = nodes[shard * self._per_shard].identity if place else "-"
            flags = ("myself," if node is myself else "") + ("slave" if place else "master")
            slots = "" if place else f" {first}-{last}"
            address = f"{node.host}:{node.port}@{node.port + _BUS_OFFSET}"
            epoch = f"0 0 {shard + 1}"
            lines.append(f"{node.identity} {address} {flags} {primary} {epoch} connected{slots}")
        return "\n".join([*lines, f"vars currentEpoch {shards} lastVoteEpoch 0", ""])

    async def _arrange(self) -> None:
        """Cancel unfinished moves of slots.

        Only the node that moves a slot lists the move, so the servers' views would differ forever.
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
            primary = await self._primary_among(shard)
            await in_sync(primary, [one for one in shard if runs(one) and one is not primary])

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
        return await self._primary_among(self.shards[shard])

    async def _primary_among(self, servers: list[LocalServer]) -> LocalServer:
        for server in filter(runs, servers):
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
            await self._primary_among(others)
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


# ---- A primary with replicas and their Sentinels -------------------------------------------------

FAILOVER_WITHIN = 50.0
"""Seconds; long, because a Sentinel that got no CPU for 2 s does nothing for 30 s."""


async def _tilted(sentinel: LocalServer) -> bool:
    # "Tilt": a Sentinel that was frozen mistrusts its clock and does nothing for 30 s.
    return runs(sentinel) and "sentinel_tilt:1" in str(await sentinel.command("INFO", "sentinel"))


class _Sentinel(LocalServer):
    """A server in Sentinel mode; it keeps its state in its configuration file."""

    watches: Sequence[str] = ()
    """The lines of its configuration; set them before the first start."""

    def __init__(self, **options: Unpack[ServerOptions]) -> None:
        self.identity = secrets.token_hex(20)
        super().__init__(**options)

    def _command_line(self, aof: bool) -> list[str]:  # noqa: ARG002 - a Sentinel keeps no data
        return [str(self._data / "sentinel.conf"), "--sentinel"]

    def _spawn(self) -> None:
        file = self._data / "sentinel.conf"
        if not file.exists():
            settings = {"bind": self.host, "port": str(0 if self.tls else self.port)}
            settings |= {"dir": str(self._data), "sentinel myid": self.identity}
            if self.tls:
                files = self.tls.copied_to(self.folder)
                settings |= tls_settings(files, self.port, client_certs=self.tls_client_certs)
            lines = [f"{key} {value}" for key, value in settings.items()]
            file.write_text("\n".join([*lines, *self.watches, ""]))
        super()._spawn()


class SentinelGroup(Replicated):
    """A primary with replicas and Sentinels, which watch it and fail it over by themselves.

    service: the Sentinels' name of the group. down_after: seconds of silence after which a Sentinel
    regards a server as down; on a busy machine a good one may be silent for most of a second.
    """

    def __init__(
        self,
        replicas: int = 2,
        sentinels: int = 3,
        *,
        service: str = "mymaster",
        down_after: float = 1.5,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(replicas, **options)
        self.service = service
        self._down_after = down_after
        own: ServerOptions = {
            "binary": self.primary.binary,
            "host": self.primary.host,
            "tls": self.primary.tls,
            "tls_client_certs": self.primary.tls_client_certs,
        }
        self.sentinels: list[LocalServer] = [_Sentinel(**own) for _ in range(sentinels)]
        """The Sentinels, which can be killed and frozen like servers."""

    @property
    def addresses(self) -> list[str]:
        """One URL with all Sentinels and the name of the service."""
        url = urlsplit(self.primary.url)
        login, at, _ = url.netloc.rpartition("@")
        hosts = ",".join(urlsplit(sentinel.url).netloc for sentinel in self.sentinels)
        scheme = f"{url.scheme}+sentinel"
        return [
            url._replace(scheme=scheme, netloc=f"{login}{at}{hosts}", path=self.service).geturl()
        ]

    async def _arrange(self) -> None:
        """Start the Sentinels last, so that they first see all replicas in sync."""
        await super()._arrange()
        await super().ready()
        for sentinel in self.sentinels:
            if isinstance(sentinel, _Sentinel) and not sentinel.watches:
                sentinel.watches = self._watches(sentinel)
            if sentinel.frozen or await _tilted(sentinel):
                await sentinel.restart()
        await self._launch(self.sentinels)

    def close(self) -> None:
        """End all servers and Sentinels."""
        super().close()
        for sentinel in self.sentinels:
            sentinel.close()

    def _watches(self, own: _Sentinel) -> list[str]:
        """Return a configuration with all servers and Sentinels, so that there is no discovery."""
        name, primary = self.service, self.primary
        lines = [
            f"monitor {name} {primary.host} {primary.port} {len(self.sentinels) // 2 + 1}",
            f"down-after-milliseconds {name} {round(self._down_after * 1000)}",
            f"failover-timeout {name} 4000",
            f"parallel-syncs {name} {len(self.servers)}",
        ]
        words = zip(("auth-pass", "auth-user"), primary.endpoint.credentials[::-1], strict=False)
        lines += [f"{key} {name} {word}" for key, word in words]
        lines += [
            f"known-replica {name} {replica.host} {replica.port}" for replica in self.replicas
        ]
        for other in self.sentinels:
            if isinstance(other, _Sentinel) and other is not own:
                lines.append(f"known-sentinel {name} {other.host} {other.port} {other.identity}")
        return [f"sentinel {line}" for line in lines]

    async def ready(self) -> None:
        """Wait until replicas are in sync and every running Sentinel sees all and can fail over."""
        await super().ready()
        await until(self._agreed, f"all sentinels see {self.service} complete")

    async def _agreed(self) -> bool:
        asked = map(self._sees_all, filter(runs, self.sentinels))
        return all(await asyncio.gather(*asked))

    async def _sees_all(self, sentinel: LocalServer) -> bool:
        await sentinel.command("SENTINEL", "CKQUORUM", self.service)
        known = await sentinel.command("SENTINEL", "REPLICAS", self.service)
        replicas = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in known]
        seen = {
            replica["port"]
            for replica in replicas
            if replica["flags"] == "slave" and replica["master-link-status"] == "ok"
        }
        wanted = {str(replica.port) for replica in self.replicas if runs(replica)}
        return wanted <= seen and await self._named_by(sentinel) == self.primary.port

    async def _named_by(self, sentinel: LocalServer) -> int:
        """Return the port of the primary that this Sentinel tells clients."""
        address = await sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return int(address[1])

    async def fail_over(self, *, kill: bool = True) -> LocalServer:
        """Kill the primary, or order a failover, and wait until all agree on the new one."""
        old = self.primary
        if kill:
            await old.kill()
        else:
            await self.sentinels[0].command("SENTINEL", "FAILOVER", self.service)
        return await self.failed_over(old)

    async def failed_over(self, old: LocalServer) -> LocalServer:
        """Wait until every running Sentinel names another primary than `old`, and return it.

        Use this if a test itself has frozen, cut off or killed the primary.
        """

        async def moved() -> bool:
            ports = {await self._named_by(sentinel) for sentinel in filter(runs, self.sentinels)}
            candidates = [server for server in self.servers if ports == {server.port}]
            if not candidates or candidates == [old]:
                return False
            (self.primary,) = candidates
            return bool((await self.primary.command("ROLE"))[0] == "master")

        await until(moved, f"the sentinels replace {old}", timeout=FAILOVER_WITHIN)
        if runs(old):  # a Sentinel itself would do this only after 8 s
            await follow(old, self.primary)
        await super().ready()
        return self.primary
