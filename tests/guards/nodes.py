"""Nodes in memory for the guards of one node and of the set; in virtual time."""

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

import pytest

from asynclock._rules.nodeset import NodeSet
from asynclock.fleet import Fleet
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.commands import Words
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, Way, old
from tests.nodes.virtual_servers import Noting

SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": NODE_TIMEOUT}
RECORD = "asynclock::#set"
ABC = ("memory://a", "memory://b", "memory://c")
ABCD = (*ABC, "memory://d")
TRIP = 0.1
"""Seconds of a request and its reply."""


class Place(MemoryEndpoint):
    """Where a node is, and the way to it."""

    def __init__(self, node: MemoryNode, seconds: float = 0.0, name: str = "") -> None:
        self.way = Way()
        self.way.seconds = seconds
        super().__init__(name or node.name, node, self.way)


class Server(Noting):
    """A node that lists the clients that a test names."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.clients: Any = b"id=1 name= flags=t\n"
        """The reply to CLIENT LIST: a client that gets pushes."""

    def answer(self, client: Any, words: Words) -> Any:
        if client is not None and words[:2] == (b"CLIENT", b"LIST"):
            return self.clients
        return super().answer(client, words)


def pushed(names: str) -> tuple[list[Server], list[Any]]:
    """Old nodes whose clients get pushes, and their addresses."""
    servers = [Server(name) for name in names]
    return servers, [Place(server) for server in servers]


def far_nodes(names: str) -> tuple[list[MemoryNode], list[Any]]:
    """Old nodes that tell of no clients' pushes, and their addresses, with a trip between."""
    servers = old(names).nodes
    return servers, [Place(server, TRIP / 2) for server in servers]


async def recorded(names: str = "abc", make: Any = far_nodes) -> tuple[list[Any], list[Any]]:
    """Such nodes of a fleet with a record."""
    servers, nodes = make(names)
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
    return servers, nodes


async def kept(node: MemoryNode) -> tuple[str | None, NodeSet | None, str | None]:
    """Return the number, the record and the name that a node keeps."""
    number, value, name = await node.command("HMGET", RECORD, "accepted", "value", "name")
    return number, NodeSet.parse(value), name


async def keep(node: MemoryNode, record: NodeSet, number: int = 1, *more: str) -> None:
    """Let a node keep another record."""
    words = ("promised", number, "accepted", number, "value", record.text(), *more)
    await node.command("DEL", RECORD)
    await node.command("HSET", RECORD, *words)


def digest(names: Iterable[str]) -> str:
    """Return what stands for a set of nodes in the names of connections, in every version."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:8]


def named(*uses: str) -> bytes:
    """A reply to CLIENT LIST with connections that are named after sets."""
    lines = [f"id={n} addr=h:1 name=asynclock:{one} flags=t" for n, one in enumerate(uses)]
    return "\n".join([*lines, "id=9 name= flags=t", "id=10 name=other flags=t"]).encode()


def said(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    """Return what the fleet's guard has logged."""
    found = [one for one in caplog.records if one.name == "asynclock.fleet"]
    return [one.message for one in found if one.levelno == level]
