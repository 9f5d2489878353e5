"""Asks several servers the same questions, until a majority has answered all of them.

The servers are those that know which server is the primary: Sentinels, or the servers of a Cluster.
One of them may be frozen, so a poll doesn't wait for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ..._rules.quorum import majority
from ..._rules.trust import Facts
from ...events import Observers
from ..endpoint import Endpoint
from ..handshake import greet
from ..link import Link
from ..node import Node, NodeSettings
from ..replies import Failure, Gather, told_by
from ..script import Command
from ..server import ServerNode

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
