"""The fleet's set of nodes: shows its record, and changes the set one node at a time.

The nodes keep a record of their set. Each client compares its own nodes with it, and is refused if
they differ (docs/deployments.md, "Changing the set of nodes"). `asynclock nodes` does the same on
the command line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack

from . import _clock
from ._inspect.survey import ask
from ._nodes.deployment import is_cluster
from ._nodes.endpoint import Endpoint, as_options, spelled
from ._nodes.fleet import NAMED, digest
from ._nodes.handshake import (
    RECORD_KEY,
    RECORD_RETENTION,
    reading_record,
    record_in,
    telling_record,
)
from ._nodes.node import HALF_OPEN, Node
from ._nodes.wire import Command, Failure
from ._primitives.shared.register import Register
from ._rules.nodeset import NOTHING, OPEN, SETTLED, Copy, Names, NodeSet
from ._rules.validity import Trust, quarantine
from ._settings import ConnectSettings
from .errors import ConfigurationError, UnsupportedDeploymentError
from .manager import LockManager, connect, engine_of

__all__ = ["Client", "Fleet", "FleetState", "NodeState"]

TOOL = re.compile(r".+:\d+:(serve|top|inspect)")
"""The labels of the tools that hold no lock."""
CLIENTS = Command.plain("CLIENT", "LIST", "TYPE", "NORMAL")
READING_TIME = 1.0
"""Seconds in which a connected client reads a change and names its connections anew."""


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
    newest: Copy
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


class Fleet:
    """The set of nodes behind some addresses; `async with` opens and closes the connections.

    Each change raises ConfigurationError if it does not fit what the nodes keep, and
    QuorumUnavailableError if too few nodes answer. An interrupted call may be made again.

    Args:
        nodes: the present nodes, as for `connect`.
        progress: called with a line of text when a call begins to wait.
        settings: settings of `connect`; `prefix` and `max_ttl` must be those of the clients.
    """

    def __init__(
        self,
        *nodes: str,
        progress: Callable[[str], None] = lambda _text: None,
        **settings: Unpack[ConnectSettings],
    ) -> None:
        if any(map(is_cluster, nodes)):
            raise UnsupportedDeploymentError("a Cluster keeps no record of a set of nodes")
        self._settings: ConnectSettings = {**settings, "set_guard": False}
        self._locks: LockManager = connect(*nodes, **self._settings)
        self._progress = progress
        given = {"--prefix": settings.get("prefix"), "--max-ttl": settings.get("max_ttl")}
        self._options: str = as_options(nodes, given)

    async def __aenter__(self) -> Self:
        await self._locks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._locks.aclose()

    async def show(self) -> FleetState:
        """Return what the nodes keep, and which clients are connected to them."""
        nodes = engine_of(self._locks).multiplexer.nodes
        found = await asyncio.gather(*(ask(node, reading_record(self._key)[1]) for node in nodes))
        listed = await asyncio.gather(*(ask(node, CLIENTS) for node in nodes))
        keeps = [record_in(reply) for reply in found]
        newest = max(keeps, default=NOTHING)
        states = []
        for node, reply, one in zip(nodes, found, keeps, strict=True):
            record = NodeSet.parse(one.text)
            cause = reply.cause if isinstance(reply, Failure) else None
            epoch = None if record is None else record.epoch
            name = one.name or node.address
            states.append(NodeState(node.address, name, epoch, one.number, bool(one.name), cause))
        record = NodeSet.parse(newest.text)
        ours = [one for one in _connections(listed) if _may_be_ours(one)]
        silent = any("t" not in one.get("flags", "") for one in ours)
        return FleetState(record, newest, tuple(states), clients_of(record, listed), silent)

    async def record(self, *, force: bool = False) -> FleetState:
        """Write the first record: the set consists of the nodes of this object.

        At first clients only warn of a difference. They are refused once no connected client
        differs, or with `force`. All get a second to read the record. If some client may get no
        pushes, that second begins once each client has asked by itself: every third of `max_ttl`.
        """
        ours = (await self.show()).names

        def note(found: NodeSet | None) -> NodeSet:
            return NodeSet(0, ours) if found is None else found.known_to(ours)

        state = await self._change(note)
        await asyncio.sleep(READING_TIME + (self._longest_poll() if state.silent else 0.0))
        if not force:
            _refuse_users((await self.show()).clients, "other")
        return await self._change(lambda found: note(found).enforced())

    async def add(self, url: str, *, force: bool = False) -> FleetState:
        """Open the step that adds the node at `url`, once that node can vote.

        Raises ConfigurationError while clients of other nodes are connected to it, unless `force`:
        they would be refused from then on.
        """
        settings: ConnectSettings = {**self._settings, "restart_guard": False}
        async with connect(url, **settings) as locks:
            (node,) = engine_of(locks).multiplexer.nodes
            await self._fit(node, force=force)
            state = await self._change(lambda found: self._recorded(found).adding(node.address))
            await ask(node, telling_record(self._key, state.newest, node.address))
        return await self.show()

    async def remove(self, name: str) -> FleetState:
        """Open the step that removes a node, given by name or URL; it may be dead."""
        gone = _name(name)
        return await self._change(lambda found: self._recorded(found).removing(gone))

    async def replace(self, name: str, url: str, *, force: bool = False) -> FleetState:
        """Open the next of two steps: add the node at `url`, then remove the node `name`.

        Call this again once the first step is finished. `force` is that of `add`.
        """
        record = self._recorded((await self.show()).record)
        added = _name(url) in (record.nodes if record.phase == SETTLED else ())
        if added or record.removes(_name(name)):
            return await self.remove(name)
        return await self.add(url, force=force)

    async def finish(self, *, force: bool = False) -> FleetState:
        """Refuse clients of the old set, and wait until none of them can hold a lease.

        Raises ConfigurationError while clients of the old set are connected, unless `force`.
        """
        return await self._close(NodeSet.finish, "old", force=force)

    async def back(self, *, force: bool = False) -> FleetState:
        """Take the step back: refuse clients of the new set, and wait as `finish` does."""
        return await self._close(NodeSet.back, "new", force=force)

    async def _change(self, step: Callable[[NodeSet | None], NodeSet]) -> FleetState:
        """Change the record on a majority, and tell each node that answers its name in it."""
        state = await self.show()
        ours = state.names
        if state.record is not None:
            state.record.known_to(ours)  # more nodes than a majority may know of a newer set

        def change(text: str | None) -> str:
            found = None
            if text:
                found = NodeSet.parse(text)
                if found is None:
                    raise ConfigurationError(f"the record is not one of this version: {text!r}")
                found.known_to(ours)
            return step(found).text()

        nodes = engine_of(self._locks).multiplexer.nodes
        # A node that lags promises a new number to this call, and then can't be told an older one.
        await fleet_record(self._locks).change(change, None, rewrite=bool(state.lagging))
        state = await self.show()
        untold = [
            ask(node, telling_record(self._key, state.newest, known.name))
            for node, known in zip(nodes, state.nodes, strict=True)
            if known.cause is None and (not known.named or known.number < state.newest.number)
        ]
        await asyncio.gather(*untold)
        return await self.show()

    async def _close(
        self, step: Callable[[NodeSet], NodeSet], leaving: str, *, force: bool
    ) -> FleetState:
        state = await self.show()
        if not force and state.record is not None and state.record.phase == OPEN:
            _refuse_users(state.clients, leaving)
        state = await self._change(lambda found: step(self._recorded(found)))
        closing = self._recorded(state.record)

        def settle(found: NodeSet | None) -> NodeSet:
            if found is None or found.epoch != closing.epoch:
                raise ConfigurationError("the step was begun anew while this call waited")
            return found.settle()

        seconds = self._longest_lease()
        self._progress(f"waiting {seconds:.0f} s until no client of the other set holds a lease")
        await asyncio.sleep(seconds)
        state = await self._change(settle)
        for name in sorted(set(closing.other) - set(closing.nodes)):
            self._progress(
                f"{name} still refuses clients with other nodes. To use it elsewhere, stop its "
                f"clients, run `redis-cli DEL '{self._key}'` there, and start the clients again"
            )
        return state

    def _longest_lease(self) -> float:
        # A majority keeps the record now. Each lease of the other set needs one of these nodes,
        # whose push comes before its reply. Where servers send no pushes, clients ask every third
        # of max_ttl (_nodes/node.py).
        settings = engine_of(self._locks).settings
        return quarantine(settings.max_ttl) + self._longest_poll() + settings.node_timeout

    def _longest_poll(self) -> float:
        # Seconds until a client without pushes has asked: it looks at its timer less often.
        settings = engine_of(self._locks).settings
        return settings.max_ttl / 3 + max(1.0, HALF_OPEN * settings.node_timeout)

    async def _fit(self, new: Node, *, force: bool) -> None:
        """Wait until the node can vote. Raises ConfigurationError if it does not fit."""
        facts = new.trust.facts
        if facts is None or facts.replica:
            cause = new.cause(_clock.now()) or "no answer"
            raise ConfigurationError(f"{new.address} can't be added: {cause}")
        for node in engine_of(self._locks).multiplexer.nodes:
            known = node.trust.facts
            if known is not None and facts.run_id is not None and known.run_id == facts.run_id:
                raise ConfigurationError(f"{new.address} and {node.address} are the same server")
        told = record_in(await ask(new, reading_record(self._key)[1]))
        state = await self.show()
        if told.number > state.newest.number:
            raise ConfigurationError(
                f"{new.address} keeps the record of another fleet; if that fleet is gone: "
                f"redis-cli DEL '{self._key}' there"
            )
        if not force:
            step = self._recorded(state.record).adding(new.address)
            listed = [await ask(new, CLIENTS)]
            found = clients_of(step, listed)
            if found is not None:
                # Clients that know no record don't name their connections. Ours is the last one.
                plain = [one for one in _connections(listed) if not one.get("name")]
                pushed = [one.get("addr", "?") for one in plain if "t" in one.get("flags", "")]
                found += tuple(Client(one, "other") for one in pushed[:-1])
            _refuse_users(found, "other")
        settings = engine_of(self._locks).multiplexer.nodes[0].settings
        seconds = Trust(settings.max_ttl).met(
            facts, _clock.now(), guard=True, guard_first=True, disks_kept=settings.disks_kept
        )
        if seconds > 0:
            self._progress(f"waiting {seconds:.0f} s until {new.address} can vote")
            await asyncio.sleep(seconds)

    def _recorded(self, found: NodeSet | None) -> NodeSet:
        if found is None:
            raise ConfigurationError(
                "the nodes keep no record of their set: write it with `asynclock nodes record "
                f"{self._options}`"
            )
        return found

    @property
    def _key(self) -> str:
        return engine_of(self._locks).settings.prefix + RECORD_KEY


def _refuse_users(clients: tuple[Client, ...] | None, nodes: str) -> None:
    """Raise ConfigurationError if one of the clients, or an unknown one, may use these nodes."""
    if clients is None:
        raise ConfigurationError(
            "no node shows its clients (CLIENT LIST), so some may still use other nodes: "
            "log in as a user that may list them, or use force (--force)"
        )
    others = [repr(client.label) for client in clients if client.uses == nodes and client.holds]
    if others:
        raise ConfigurationError(
            f"{len(others)} connected clients still use other nodes: {', '.join(others[:20])}; "
            "start them with the right nodes first, or use force (--force)"
        )


def _name(node: str) -> str:
    """Return the name of a node that is given by its URL or its name."""
    return Endpoint.of(spelled(node)).address if "://" in node else node


def fleet_record(locks: LockManager) -> Register:
    """Return the register that the nodes keep the record in."""
    engine = engine_of(locks)
    key = engine.settings.prefix + RECORD_KEY
    return Register(engine, "the set of nodes", key, RECORD_RETENTION)


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
