"""What the nodes keep of the fleet's record, and which clients are connected to them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .._access import node_access
from .._nodes.node import Node
from .._nodes.record import RECORD_KEY, kept, reading
from .._nodes.replies import Failure
from .._nodes.script import Command
from .._nodes.set_guard import NAMED, digest
from .._rules.nodeset import NOTHING, Kept, Names, NodeSet
from ..manager import LockManager
from .survey import ask

TOOL = re.compile(r".+:\d+:(serve|top|inspect)")
"""The labels of the tools that hold no lock."""
CLIENTS = Command.plain("CLIENT", "LIST", "TYPE", "NORMAL")


@dataclass(frozen=True, slots=True)
class NodeState:
    """What one node keeps."""

    node: str
    name: str
    """What the record calls the node; its address if the node was not told."""
    epoch: int | None
    """The epoch that the node keeps; None without a record or an answer."""
    number: int
    named: bool
    """Whether the node was told its name."""
    cause: str | None
    """Why the node could not be asked; None if it answered."""


@dataclass(frozen=True, slots=True, order=True)
class Client:
    """A connected client that follows the record."""

    label: str
    """Untrusted text."""
    uses: str
    """"old" or "new" (the sets of a step), "same" without a step, or "other"."""

    @property
    def holds(self) -> bool:
        """Whether the client may hold a lock; `serve`, `top` and `inspect` never do."""
        return TOOL.fullmatch(self.label) is None


@dataclass(frozen=True, slots=True)
class FleetState:
    """The record, and who lags behind."""

    record: NodeSet | None
    """The newest record: `epoch`, `nodes`, the `other` set of a step, and its `phase`."""
    newest: Kept
    """The newest record as the nodes keep it."""
    nodes: tuple[NodeState, ...]
    clients: tuple[Client, ...] | None
    """None if no node shows its clients: that takes the right to CLIENT LIST."""
    silent: bool
    """Whether a connection that may be a client's gets no pushes: it learns of a change only when
    it asks."""

    @property
    def names(self) -> Names:
        """The names of the nodes that were asked."""
        return tuple(node.name for node in self.nodes)

    @property
    def lagging(self) -> tuple[NodeState, ...]:
        """The nodes that do not keep the newest record."""
        newest = self.newest.number
        return tuple(node for node in self.nodes if node.cause or node.number < newest)


async def fleet_state(locks: LockManager) -> FleetState:
    """Ask all nodes at once."""
    access = node_access(locks)
    key = access.prefix + RECORD_KEY
    found = await asyncio.gather(*(ask(node, reading(key)[1]) for node in access.nodes))
    listed = await asyncio.gather(*(ask(node, CLIENTS) for node in access.nodes))
    return state_of(access.nodes, found, listed)


def state_of(nodes: Sequence[Node], found: Sequence[Any], listed: Sequence[Any]) -> FleetState:
    """Return the state in the replies to `reading` and CLIENT LIST."""
    keeps = [kept(reply) for reply in found]
    newest = max(keeps, default=NOTHING)
    states = []
    for node, reply, one in zip(nodes, found, keeps, strict=True):
        record = NodeSet.parse(one.text)
        cause = reply.cause if isinstance(reply, Failure) else None
        epoch = None if record is None else record.epoch
        name = one.name or node.address
        states.append(NodeState(node.address, name, epoch, one.number, bool(one.name), cause))
    record = NodeSet.parse(newest.text)
    silent = any(
        "t" not in one.get("flags", "") for one in _connections(listed) if _may_be_ours(one)
    )
    return FleetState(record, newest, tuple(states), clients_of(record, listed), silent)


def clients_of(record: NodeSet | None, listed: Sequence[Any]) -> tuple[Client, ...] | None:
    """Return the clients in the replies to CLIENT LIST, each once."""
    if not any(isinstance(reply, bytes) for reply in listed):
        return None
    found = set()
    for connection in _connections(listed):
        name = connection.get("name", "")
        if name.startswith(NAMED):
            uses, _, label = name.removeprefix(NAMED).partition(":")
            found.add(Client(label, _uses(record, uses)))
    return tuple(sorted(found))


def _may_be_ours(connection: dict[str, str]) -> bool:
    # A client of ours has no name before it has read the record, or without the right to take one.
    # Others, as Sentinels, have names of their own.
    name = connection.get("name", "")
    return not name or name.startswith(NAMED)


def _connections(listed: Sequence[Any]) -> Iterator[dict[str, str]]:
    for reply in listed:
        for line in reply.decode("utf-8", "replace").splitlines() if type(reply) is bytes else ():
            yield dict(word.split("=", 1) for word in line.split(" ") if "=" in word)


def _uses(record: NodeSet | None, uses: str) -> str:
    if record is None:
        return "other"
    if uses == digest(record.nodes):
        return "old" if record.phase == "open" else "same"
    if record.other and uses == digest(record.other):
        return "new" if record.phase == "open" else "old"
    return "other"
