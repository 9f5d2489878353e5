"""Which nodes make up a manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import redis.asyncio
from redis.asyncio.sentinel import SentinelConnectionPool

from .._rules.trust import Facts
from .._settings import HASH_TAG
from ..errors import ConfigurationError
from ..events import Observers
from .acks import Acks
from .cluster import ClusterNode
from .endpoint import Endpoint, Seeds, spelled
from .handshake import dial
from .link import Link
from .node import Node, NodeSettings
from .primary import MARK_KEY, Primaries
from .script import Script
from .sentinel import SentinelNode, Service

BATCH = 100
"""Leases per renewal command: a server is busy with one for well under a millisecond."""


def make_nodes(
    addresses: Sequence[object],
    settings: NodeSettings,
    scripts: Sequence[Script],
    observers: Observers,
    *,
    acks: Acks,
    prefix: str,
) -> list[Node]:
    """The nodes behind `addresses`: one, or N >= 3 independent ones.

    Each is a server, a primary with replicas (`acks`), such a group behind Sentinels, or a Cluster.
    """
    if not addresses:
        raise ConfigurationError("connect() needs at least one node: a URL or a redis client")
    if len(addresses) == 2:
        raise ConfigurationError(
            "two nodes are worse than one: a quorum of two needs both; use 1, 3 or 5"
        )
    careful = replace(settings, guard_first=True)
    primaries = Primaries(careful, scripts, acks, prefix + MARK_KEY)
    known: list[Endpoint] = []
    nodes = [_node(address, settings, primaries, observers, known) for address in addresses]
    seen: set[str] = set()
    for node in nodes:
        if node.address in seen:
            raise ConfigurationError(f"{node.address} is named twice: nodes are independent")
        seen.add(node.address)
    return nodes


def naming(addresses: Sequence[object], prefix: str) -> tuple[str, int]:
    """How keys begin, and how many leases one renewal command may carry."""
    if not any(map(is_cluster, addresses)):
        return prefix, BATCH
    if "{" in prefix:
        raise ConfigurationError(f'on a Cluster prefix must not contain "{{": {prefix!r}')
    return prefix + HASH_TAG, 1


def _node(
    address: object,
    settings: NodeSettings,
    primaries: Primaries,
    observers: Observers,
    known: list[Endpoint],
) -> Node:
    if isinstance(address, str):
        address = spelled(address)
    if is_cluster(address):
        return _cluster(str(address), primaries, observers)
    service = _service(address)
    if service is not None:
        return SentinelNode(service, primaries, observers)
    endpoint = Endpoint.of(address, known)
    known.append(endpoint)
    if primaries.acks:
        return _primary(endpoint, primaries, observers)
    return _server(endpoint, settings, primaries.scripts, observers)


def is_cluster(address: object) -> bool:
    """Whether it names a Redis Cluster, where the keys of a name must share a hash tag."""
    if isinstance(address, redis.asyncio.RedisCluster):
        raise ConfigurationError("a Cluster is named by its URL: redis+cluster://host1,host2")
    return isinstance(address, str) and _scheme(address).endswith("+cluster")


def _scheme(url: str) -> str:
    return url.strip().partition("://")[0]


def _cluster(url: str, primaries: Primaries, observers: Observers) -> Node:
    seeds = Seeds(url, port=6379)
    endpoints = seeds.endpoints()
    if seeds.path or any(endpoint.db for endpoint in endpoints):
        raise ConfigurationError(f"{seeds.shown}: a Cluster has one database, 0")
    prefix = primaries.mark.removesuffix(MARK_KEY)
    return ClusterNode(endpoints, primaries, prefix, observers)


def _service(address: object) -> Service | None:
    """The group that an address stands for; None: it is a server's own."""
    if isinstance(address, str):
        return Service.from_url(address) if _scheme(address).endswith("+sentinel") else None
    pool = getattr(address, "connection_pool", None)
    return Service.of_pool(pool) if isinstance(pool, SentinelConnectionPool) else None


def _server(
    endpoint: Endpoint, settings: NodeSettings, scripts: Sequence[Script], observers: Observers
) -> Node:
    async def open_link(node: Node, limit: float) -> tuple[Link, Facts]:
        return await dial(endpoint, node, scripts, settings.node_timeout, limit, Link)

    return Node(endpoint.address, open_link, settings, observers)


def _primary(endpoint: Endpoint, primaries: Primaries, observers: Observers) -> Node:
    async def open_link(node: Node, limit: float) -> tuple[Link, Facts]:
        return await primaries.dial(endpoint, node, limit)

    return Node(endpoint.address, open_link, primaries.settings, observers)
