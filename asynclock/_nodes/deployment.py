"""Makes the nodes of a manager from the addresses that `connect` was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from .._keys import HASH_TAG
from .._rules.validity import Facts
from ..errors import ConfigurationError
from ..events import Observers
from .endpoint import Endpoint, Seeds, check_arguments, spelled
from .handshake import RECORD_KEY, WITNESS_KEY, closing_if_failed, dial
from .link import Link
from .node import Node, NodeSettings
from .replicated import PrimaryDialer, SentinelNode, Service
from .replicated.acks import MARK_KEY, Acks, KnownReplicas, leave_mark
from .server import ServerNode
from .wire import Script

if TYPE_CHECKING:
    import redis.asyncio

NodeAddress: TypeAlias = "str | redis.asyncio.Redis"
"""A node for `connect`: a URL, or a redis-py client, of which only the settings are used."""

MOST_LEASES = 100
"""Maximum number of leases per renewal command, which takes a server well under a millisecond."""


def make_nodes(
    addresses: Sequence[object],
    settings: NodeSettings,
    scripts: Sequence[Script],
    observers: Observers,
    *,
    acks: Acks,
    prefix: str,
) -> list[Node]:
    """Make one node, or at least three independent ones. Raises ConfigurationError.

    A node is a server, a primary with replicas (`acks`), such a group behind Sentinels, or a
    Cluster.
    """
    if not addresses:
        raise ConfigurationError("connect() needs at least one node: a URL or a redis client")
    check_arguments(addresses)
    if len(addresses) == 2:
        raise ConfigurationError(
            "two nodes are worse than one: a quorum of two needs both; use 1, 3 or 5"
        )
    careful = replace(settings, guard_first=True)
    primaries = PrimaryDialer(careful, scripts, acks, prefix + MARK_KEY)
    known: list[Endpoint] = []
    nodes = [_node(address, settings, primaries, observers, known) for address in addresses]
    seen: set[str] = set()
    for node in nodes:
        if node.address in seen:
            raise ConfigurationError(
                f"{node.address} is given twice: each node must be an independent server"
            )
        seen.add(node.address)
    return nodes


def naming(addresses: Sequence[object], prefix: str) -> tuple[str, int, str, str]:
    """Return the prefix of all keys, and the maximum number of leases per renewal command.

    Also returns the keys of the fleet's record and of the witness; both are "" on a Cluster. Raises
    ConfigurationError.
    """
    if not any(map(is_cluster, addresses)):
        return prefix, MOST_LEASES, prefix + RECORD_KEY, prefix + WITNESS_KEY
    if "{" in prefix:
        raise ConfigurationError(f'on a Cluster prefix must not contain "{{": {prefix!r}')
    return prefix + HASH_TAG, 1, "", ""


def _node(
    address: object,
    settings: NodeSettings,
    primaries: PrimaryDialer,
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
    return _server(
        endpoint, primaries.settings if primaries.acks else settings, primaries, observers
    )


def is_cluster(address: object) -> bool:
    """Return whether this is a Redis Cluster, where the keys of a name must share a hash tag."""
    if isinstance(address, str):
        return _scheme(address).endswith("+cluster")
    from redis.asyncio import RedisCluster

    if isinstance(address, RedisCluster):
        raise ConfigurationError("pass a Cluster by its URL: redis+cluster://host1,host2")
    return False


def _scheme(url: str) -> str:
    return url.strip().partition("://")[0]


def _cluster(url: str, primaries: PrimaryDialer, observers: Observers) -> Node:
    seeds = Seeds(url, port=6379)
    endpoints = seeds.endpoints()
    if seeds.path or any(endpoint.db for endpoint in endpoints):
        raise ConfigurationError(f"{seeds.shown}: a Cluster has one database, 0")
    # Imported here because it needs redis-py, whose import takes longer than all our own modules.
    from .cluster import ClusterNode

    prefix = primaries.mark.removesuffix(MARK_KEY)
    return ClusterNode(endpoints, primaries, prefix, observers)


def _service(address: object) -> Service | None:
    """Return the group behind Sentinels that an address names; None for any other address."""
    if isinstance(address, str):
        return Service.from_url(address) if _scheme(address).endswith("+sentinel") else None
    from redis.asyncio.sentinel import SentinelConnectionPool

    pool = getattr(address, "connection_pool", None)
    return Service.of_pool(pool) if isinstance(pool, SentinelConnectionPool) else None


def _server(
    endpoint: Endpoint, settings: NodeSettings, primaries: PrimaryDialer, observers: Observers
) -> Node:
    replicas = KnownReplicas()

    async def open_link(node: ServerNode, limit: float) -> tuple[Link, Facts]:
        if primaries.acks:
            return await primaries.dial(endpoint, node, limit, replicas)
        timeout = settings.node_timeout
        keys = settings.record_key, settings.witness_key
        link, facts = await dial(endpoint, node, primaries.scripts, timeout, limit, *keys)
        with closing_if_failed(link):
            return link, await _lineage(link, facts, primaries.mark)

    node = ServerNode(endpoint.address, open_link, settings, observers)
    node.late = endpoint.late
    return node


async def _lineage(link: Link, facts: Facts, key: str) -> Facts:
    """Add to a durable process the process whose data it started with; it has only its grants."""
    if not facts.durable or facts.run_id is None or facts.replica:
        return facts
    mark = await leave_mark(link, key, facts.run_id)
    return facts if mark is None else replace(facts, after=mark.before)
