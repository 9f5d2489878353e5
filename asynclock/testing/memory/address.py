"""Finds the in-memory nodes of the running event loop by their `memory://` addresses."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TypeVar

from asynclock._nodes.endpoint import Endpoint, redacted
from asynclock.errors import ConfigurationError
from asynclock.testing.memory.lua import check_lua
from asynclock.testing.memory.node import MemoryNode
from asynclock.testing.memory.wire import Route

P = TypeVar("P", bound=asyncio.Protocol)
SCHEME = "memory://"
AGE = 86_400.0
"""Seconds that a node has been up when its name is first used."""


def freeze(node: str) -> None:
    """Freeze the node of a `memory://` address: it answers nothing until `thaw`."""
    memory_node(node).freeze()


def thaw(node: str) -> None:
    """Let a frozen node answer again, beginning with the requests that came in the meantime."""
    memory_node(node).thaw()


class MemoryEndpoint(Endpoint):
    """The endpoint of an in-memory node, which is found by name in the running loop, or given."""

    def __init__(
        self, name: str, node: MemoryNode | None = None, route: Route | None = None
    ) -> None:
        self.name = name
        self._node = node
        self._route = route
        self.path: str | None = None
        self.host: str = name
        self.port: int = 0
        self.db: int = 0

    @property
    def address(self) -> str:
        """The name of the node in errors, logs and health."""
        return SCHEME + self.name

    @property
    def opaque(self) -> bool:
        """Return True because there is nothing that another way to connect would reach."""
        return True

    @property
    def rotates(self) -> bool:
        """Return False because there is no password."""
        return False

    async def credentials(self) -> tuple[str, ...]:
        """Return () because an in-memory node needs no credentials."""
        return ()

    async def open(self, make: Callable[[], P]) -> P:
        """Open a connection. Raises OSError."""
        node = memory_node(self.name) if self._node is None else self._node
        return await node.open(make, self._route)


_nodes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryNode]]
_nodes = weakref.WeakKeyDictionary()


def memory_node(name: str = "") -> MemoryNode:
    """Return the node of `memory://name` in the running loop; the first call makes it."""
    nodes = _nodes.setdefault(asyncio.get_running_loop(), {})
    name = name.removeprefix(SCHEME)
    if name not in nodes:
        nodes[name] = MemoryNode(name)
        # Old enough to vote at once. After `restart` the node is young and the guard makes it wait.
        nodes[name].born_ago(AGE)
    return nodes[name]


def endpoint(url: str) -> MemoryEndpoint:
    """Return the endpoint of a `memory://` URL. Raises ConfigurationError."""
    name = url.strip().removeprefix(SCHEME)
    if any(mark in name for mark in "/?#@,"):
        raise ConfigurationError(f"{redacted(url)} must be {SCHEME} and a plain name")
    check_lua()  # raises now; later the node would seem not to answer
    return MemoryEndpoint(name)
