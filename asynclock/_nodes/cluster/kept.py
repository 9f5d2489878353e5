"""The servers of a cluster that are kept connected, each by a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..._background import Background
from ..server import ServerNode

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
