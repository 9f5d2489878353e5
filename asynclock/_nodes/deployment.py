"""Which nodes make up a manager."""

from __future__ import annotations

from collections.abc import Sequence

from .._rules.trust import Facts
from ..errors import ConfigurationError
from ..events import Observers
from .endpoint import Endpoint
from .handshake import dial
from .link import Link
from .node import Node, NodeSettings
from .script import Script

BATCH = 100
"""Leases per renewal command: a server is busy with one for well under a millisecond."""


def make_nodes(
    addresses: Sequence[object],
    settings: NodeSettings,
    scripts: Sequence[Script],
    observers: Observers,
) -> list[Node]:
    """The nodes behind `addresses`: one server, or N >= 3 independent masters."""
    if not addresses:
        raise ConfigurationError("connect() needs at least one node: a URL or a redis client")
    if len(addresses) == 2:
        raise ConfigurationError(
            "two nodes are worse than one: a quorum of two needs both; use 1, 3 or 5"
        )
    endpoints = [Endpoint.of(address) for address in addresses]
    seen: set[str] = set()
    for endpoint in endpoints:
        if endpoint.address in seen:
            raise ConfigurationError(f"{endpoint.address} is named twice: nodes are independent")
        seen.add(endpoint.address)
    return [_node(endpoint, settings, scripts, observers) for endpoint in endpoints]


def _node(
    endpoint: Endpoint, settings: NodeSettings, scripts: Sequence[Script], observers: Observers
) -> Node:
    async def open_link(node: Node, limit: float) -> tuple[Link, Facts]:
        return await dial(endpoint, node, scripts, settings.node_timeout, limit)

    return Node(endpoint.address, open_link, settings, observers)
