"""A primary that may be replaced: it is used only while watchers confirm that it is the primary.

The watchers are Sentinels or the servers of a Cluster. A client that is cut off together with an
old primary can't see that another server was promoted. So each confirmation by a majority of the
watchers counts for CONFIRMED seconds from the moment it was requested. After that, commands fail
without being sent, and replies to writes don't count. Two majorities share a watcher, so the old
primary grants nothing later than CONFIRMED seconds after a majority named the new one. The new
primary's first quarantine is longer by that time (`Facts.lag`). Releases are sent in any case.
Reasons: docs/decisions/0020.

`poll` asks the watchers. One of them may be frozen, so it doesn't wait for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

from ... import _clock
from ..._rules.quorum import majority
from ..._rules.trust import Facts
from ...events import Observers
from ..endpoint import Endpoint
from ..handshake import HandshakeError, greet
from ..link import Link
from ..node import Node, NodeSettings
from ..replies import Failure, Gather, Sink, told_by
from ..script import Command
from ..server import Dial, ServerNode

POLL: Final = 1.0
"""Maximum seconds between two requests to the watchers while they confirm the primary."""
CONFIRMED: Final = 2 * POLL
"""Seconds for which a primary counts as confirmed, from the moment the watchers were asked."""


def poll_patience(node_timeout: float) -> float:
    """Return the seconds to wait for the other watchers once a majority has answered.

    With a frozen watcher each poll takes that long. Two polls and the pause between them must end
    within CONFIRMED, whatever the node timeout.
    """
    return min(node_timeout, POLL) / 4


SILENT = Failure("no answer yet")


async def poll(
    servers: Iterable[Node], questions: Sequence[Command], patience: float
) -> list[list[Any]]:
    """Return each server's answers, in the order of the questions; a failure names its server.

    Once a majority has answered, the others get `patience` seconds.
    """
    asked, each = tuple(servers), len(questions)
    replies = Gather(each * len(asked), each * majority(len(asked)), patience)
    for index, (server, question) in enumerate(product(asked, questions)):
        server.ask(question, replies, index)
    await replies.complete
    found = [replies.found.get(index, SILENT) for index in range(each * len(asked))]
    return [
        [_named(server, reply) for reply in found[first : first + each]]
        for server, first in zip(asked, range(0, len(found), each), strict=True)
    ]


def _named(server: Node, reply: Any) -> Any:
    answered = reply is not SILENT and isinstance(reply, Failure)
    return told_by(server.address, reply) if answered else reply


def source_node(endpoint: Endpoint, settings: NodeSettings) -> ServerNode:
    """Return a node for questions about primaries only: logged in, no guards, no observers."""

    async def open_link(node: ServerNode, limit: float) -> tuple[Link, Facts]:
        return await greet(endpoint, node, settings.node_timeout, limit), Facts()

    unguarded = replace(settings, restart_guard=False, record_key="")
    node = ServerNode(endpoint.address, open_link, unguarded, Observers())
    node.late = endpoint.late
    return node


class WatchedNode(ServerNode):
    """A node whose server may be replaced by another one as the primary."""

    def __init__(
        self, address: str, dial: Dial, settings: NodeSettings, observers: Observers
    ) -> None:
        super().__init__(address, dial, settings, observers)
        self.doubt = "it is not confirmed as the primary yet"
        """Why the primary is not confirmed, if it isn't."""
        self._confirmed_until = 0.0
        self._confirmed = asyncio.Event()

    def confirm(self, asked: float) -> None:
        """Note that a majority, asked at `asked` (boot-time clock), named this node's primary."""
        self._confirmed_until = max(self._confirmed_until, asked + CONFIRMED)
        self._confirmed.set()

    async def confirmation(self) -> None:
        """Wait until the primary is confirmed."""
        while _clock.now() > self._confirmed_until:
            self._confirmed.clear()
            await self._confirmed.wait()

    def ask(self, command: Command, sink: Sink, index: int, *, arm: bool = False) -> None:
        """Send `command` unless the primary may have been replaced; see `Node.ask`."""
        doubt = self.doubted(_clock.now())
        if doubt is None:
            super().ask(command, sink, index, arm=arm)
        else:
            sink.on_reply(index, doubt)

    def obstacle(self, now: float) -> Failure | None:
        """Return why the node has no vote at the moment, or None if it has one."""
        return self.doubted(now) or super().obstacle(now)

    def state(self, now: float) -> str:
        """Return "down" while the primary is not confirmed, otherwise `ServerNode.state`."""
        return "down" if self.doubted(now) else super().state(now)

    def require(self) -> None:
        """Raise HandshakeError if the primary is not confirmed."""
        if _clock.now() > self._confirmed_until:
            raise HandshakeError(Failure(self.doubt))

    def watched(self, link: Link, facts: Facts) -> tuple[Link, Facts]:
        """Return the results of a handshake, with CONFIRMED as the lag of other clients.

        Raises HandshakeError, and closes the link, if the primary is no longer confirmed.
        """
        try:
            self.require()
        except HandshakeError:
            link.close(self.doubt)
            raise
        link.doubted = self.doubted
        return link, replace(facts, lag=CONFIRMED)

    def doubted(self, now: float) -> Failure | None:
        """Return why the primary may have been replaced, or None if it is confirmed."""
        # A node without a link reports its own cause.
        if self._link is None or now <= self._confirmed_until:
            return None
        return Failure(self.doubt)
