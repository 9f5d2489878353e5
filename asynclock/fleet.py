"""The fleet's set of nodes: shows its record, and changes the set one node at a time.

The nodes keep a record of their set. Each client compares its own nodes with it, and is refused if
they differ (docs/deployments.md, "Changing the set of nodes"). `asynclock nodes` does the same on
the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, Unpack

from . import _clock
from ._access import fleet_record, node_access
from ._connect import connect
from ._inspect.fleet_state import Client, FleetState, NodeState, fleet_state
from ._inspect.survey import ask
from ._nodes.deployment import is_cluster
from ._nodes.endpoint import Endpoint, as_options, spelled
from ._nodes.node import HALF_OPEN, Node
from ._nodes.record import RECORD_KEY, kept, reading, telling
from ._rules.nodeset import OPEN, SETTLED, NodeSet
from ._rules.trust import Trust
from ._rules.validity import quarantine
from ._settings import ConnectSettings
from .errors import ConfigurationError, UnsupportedDeploymentError
from .manager import LockManager

__all__ = ["Client", "Fleet", "FleetState", "NodeState"]

READING_TIME = 1.0
"""Seconds in which a connected client reads a change and names its connections anew."""


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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._locks.__aexit__(kind, error, trace)

    async def show(self) -> FleetState:
        """Return what the nodes keep, and which clients are connected to them."""
        return await fleet_state(self._locks)

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
        await self._nobody_uses(("other",), force=force)
        return await self._change(lambda found: note(found).enforced())

    async def add(self, url: str) -> FleetState:
        """Open the step that adds the node at `url`, once that node can vote."""
        settings: ConnectSettings = {**self._settings, "restart_guard": False}
        async with connect(url, **settings) as locks:
            (node,) = node_access(locks).nodes
            await self._fit(node)
            state = await self._change(lambda found: self._recorded(found).adding(node.address))
            await ask(node, telling(self._key, state.newest, node.address))
        return await self.show()

    async def remove(self, name: str) -> FleetState:
        """Open the step that removes a node, given by name or URL; it may be dead."""
        gone = _name(name)
        return await self._change(lambda found: self._recorded(found).removing(gone))

    async def replace(self, name: str, url: str) -> FleetState:
        """Open the next of two steps: add the node at `url`, then remove the node `name`.

        Call this again once the first step is finished.
        """
        record = self._recorded((await self.show()).record)
        added = _name(url) in (record.nodes if record.phase == SETTLED else ())
        return await (self.remove(name) if added or record.removes(_name(name)) else self.add(url))

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
            found = NodeSet.parse(text)
            if found is not None:
                found.known_to(ours)
            elif text:
                raise ConfigurationError(f"the record is not one of this version: {text!r}")
            return step(found).text()

        access = node_access(self._locks)
        # A node that lags promises a new number to this call, and then can't be told an older one.
        await fleet_record(self._locks).change(change, None, rewrite=bool(state.lagging))
        state = await self.show()
        untold = [
            ask(node, telling(self._key, state.newest, known.name))
            for node, known in zip(access.nodes, state.nodes, strict=True)
            if known.cause is None and (not known.named or known.number < state.newest.number)
        ]
        await asyncio.gather(*untold)
        return await self.show()

    async def _close(
        self, step: Callable[[NodeSet], NodeSet], leaving: str, *, force: bool
    ) -> FleetState:
        record = (await self.show()).record
        if record is not None and record.phase == OPEN:
            await self._nobody_uses((leaving,), force=force)
        state = await self._change(lambda found: step(self._recorded(found)))
        closing = self._recorded(state.record)

        def settle(found: NodeSet | None) -> NodeSet:
            if found is None or found.epoch != closing.epoch:
                raise ConfigurationError("the step was begun anew while this call waited")
            return found.settle()

        seconds = self._longest_lease()
        self._progress(f"waiting {seconds:.0f} s until no client of the other set holds a lease")
        await asyncio.sleep(seconds)
        return await self._change(settle)

    def _longest_lease(self) -> float:
        # A majority keeps the record now. Each lease of the other set needs one of these nodes,
        # whose push comes before its reply. Where servers send no pushes, clients ask every third
        # of max_ttl (_nodes/node.py).
        settings = node_access(self._locks).nodes[0].settings
        return quarantine(settings.max_ttl) + self._longest_poll() + settings.node_timeout

    def _longest_poll(self) -> float:
        # Seconds until a client without pushes has asked: it looks at its timer less often.
        settings = node_access(self._locks).nodes[0].settings
        return settings.max_ttl / 3 + max(1.0, HALF_OPEN * settings.node_timeout)

    async def _nobody_uses(self, sets: Sequence[str], *, force: bool) -> None:
        clients = (await self.show()).clients
        if force:
            return
        if clients is None:
            raise ConfigurationError(
                "no node shows its clients (CLIENT LIST), so some may still use other nodes: "
                "log in as a user that may list them, or use force (--force)"
            )
        others = [repr(client.label) for client in clients if client.uses in sets and client.holds]
        if others:
            raise ConfigurationError(
                f"{len(others)} connected clients still use other nodes: {', '.join(others[:20])}; "
                "start them with the right nodes first, or use force (--force)"
            )

    async def _fit(self, new: Node) -> None:
        """Wait until the node can vote. Raises ConfigurationError if it does not fit."""
        facts = new.trust.facts
        if facts is None or facts.replica:
            cause = new.cause(_clock.now()) or "no answer"
            raise ConfigurationError(f"{new.address} can't be added: {cause}")
        for node in node_access(self._locks).nodes:
            known = node.trust.facts
            if known is not None and facts.run_id is not None and known.run_id == facts.run_id:
                raise ConfigurationError(f"{new.address} and {node.address} are the same server")
        if kept(await ask(new, reading(self._key)[1])).number > (await self.show()).newest.number:
            raise ConfigurationError(
                f"{new.address} keeps the record of another fleet; if that fleet is gone: "
                f"redis-cli DEL '{self._key}' there"
            )
        settings = node_access(self._locks).nodes[0].settings
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
        return node_access(self._locks).prefix + RECORD_KEY


def _name(node: str) -> str:
    """Return the name of a node that is given by its URL or its name."""
    return Endpoint.of(spelled(node)).address if "://" in node else node
