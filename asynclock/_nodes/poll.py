"""Asks several servers the same questions; complete once a majority has answered all of them.

The servers are those that know which server is the primary: Sentinels, or the servers of a Cluster.
One of them may be frozen, so a poll doesn't wait for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from .._rules.quorum import majority
from .._rules.trust import Facts
from ..events import Observers
from .endpoint import Endpoint
from .handshake import greet
from .link import Failure, Link
from .node import Node, NodeSettings
from .script import Command

SILENT = Failure("no answer yet")


class Poll:
    """Collects the answers of `size` servers to `questions` questions each."""

    def __init__(self, size: int, questions: int, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.complete: asyncio.Future[None] = self._loop.create_future()
        self._size = size
        self._questions = questions
        self._patience = patience
        """Seconds that the other servers get once a majority has answered."""
        self._said: dict[int, Any] = {}
        self._missing = questions * majority(size)
        """Number of answers that a majority still owes."""

    def ask(self, servers: Iterable[Node], questions: Iterable[Command]) -> None:
        """Send all questions to all servers; `answers` keeps their order."""
        for index, (server, question) in enumerate(product(servers, questions)):
            server.ask(question, self, index)

    def on_reply(self, index: int, reply: Any) -> None:
        """Keep answer number `index`."""
        self._said[index] = reply
        self._missing -= not isinstance(reply, Failure)
        if len(self._said) == self._questions * self._size:
            self._finish()
        elif not self._missing:
            self._loop.call_later(self._patience, self._finish)

    def _finish(self) -> None:
        if not self.complete.done():
            self.complete.set_result(None)

    def answers(self) -> list[list[Any]]:
        """Return each server's answers so far, in the order of the questions."""
        said = [self._said.get(index, SILENT) for index in range(self._questions * self._size)]
        return [said[i : i + self._questions] for i in range(0, len(said), self._questions)]


def scout(endpoint: Endpoint, settings: NodeSettings) -> Node:
    """Return a node for questions about primaries only: logged in, no guards, no observers."""

    async def open_link(node: Node, limit: float) -> tuple[Link, Facts]:
        return await greet(endpoint, node, settings.node_timeout, limit), Facts()

    return Node(endpoint.address, open_link, replace(settings, restart_guard=False), Observers())
