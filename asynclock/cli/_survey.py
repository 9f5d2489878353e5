"""Everything that is held or shared on the nodes, found by SCAN in small pages, all nodes at once.

A page and the questions about its keys are many short commands, so that no server is ever busy
with us for longer than one of them; KEYS, which blocks for as long as it takes, is never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .._engine.inspection import Inspection, NodeView
from .._nodes.cluster.node import ClusterNode
from .._nodes.link import Answer, Failure
from .._nodes.node import Node
from .._nodes.script import Command
from .._primitives.lock import lock_key
from ..manager import LockManager
from ._places import STATES, WAITING, Place
from ._states import Said, SharedState

PAGE = 250
"""Keys looked at by one SCAN: some 50 µs of a server's time."""


@dataclass
class Survey:
    """What was found."""

    places: list[Inspection]
    """Sorted by name and part."""
    errors: dict[str, str] = field(default_factory=dict)
    """Node → why it could not be asked."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Name → how many are known to wait for it: writers, and those in the queue of a fair lock."""
    states: list[SharedState] = field(default_factory=list)
    """Events, latches and barriers, sorted by name and kind."""


async def survey(locks: LockManager, name: str | None = None) -> Survey:
    """All places that somebody holds and all shared states, or (`name`) those of one name."""
    engine = locks._engine
    engine.ready()
    prefix = locks._defaults.prefix
    walks = [_Walk(node, prefix, name) for node in engine.multiplexer.nodes]
    await asyncio.gather(*(walk.run() for walk in walks))
    found = {(place, who) for walk in walks for place, who in walk.views}
    places = [
        Inspection(
            place.name,
            tuple(walk.view(place, who) for walk in walks),
            engine.multiplexer.quorum,
            place.kind,
            place.shown,
        )
        for place, who in sorted(found, key=lambda one: (one[0].name, one[0].part, one[1]))
    ]
    waiting: dict[str, int] = {}
    for walk in walks:
        for waited, count in walk.waiting.items():
            waiting[waited] = max(count, waiting.get(waited, 0))
    errors = {walk.node.address: walk.error for walk in walks if walk.error is not None}
    states = [
        SharedState(
            place.name,
            place.part,
            tuple(walk.said(place) for walk in walks),
            engine.multiplexer.quorum,
        )
        for place in sorted({place for walk in walks for place in walk.states})
    ]
    return Survey(places, errors, waiting, states)


async def ask(node: Node, command: Command) -> Any:
    """One command to one node. → its reply or Failure."""
    answer = Answer(asyncio.get_running_loop())
    node.ask(command, answer, 0)
    return await answer.future


class _Walk:
    """One node, page by page; of a cluster, all its primaries at once."""

    def __init__(self, node: Node, prefix: str, name: str | None) -> None:
        self.node = node
        self.views: dict[tuple[Place, str], NodeView] = {}
        """(place, reader or "") → what the node says."""
        self.waiting: dict[str, int] = {}
        self.states: dict[Place, Said] = {}
        self.error: str | None = None
        self._prefix = prefix
        self._name = name
        begin = prefix if name is None else lock_key(prefix, name)
        self._pattern = _literally(begin) + "*"

    async def run(self) -> None:
        """Look at every key of every server."""
        servers: Sequence[Node] = (self.node,)
        if isinstance(self.node, ClusterNode):
            servers = tuple(self.node._shards.values())
            if not servers:
                self.error = "the slots are not known yet"
        await asyncio.gather(*(self._walk(server) for server in servers))

    def view(self, place: Place, who: str) -> NodeView:
        """What this node says of a place."""
        found = self.views.get((place, who))
        return found or NodeView(self.node.address, None, None, 0, self.error)

    def said(self, place: Place) -> Said:
        """What this node says of a state."""
        return self.states.get(place) or Said(self.node.address, error=self.error)

    async def _walk(self, server: Node) -> None:
        # The next page is on its way while the last one is asked about.
        page: asyncio.Future[Any] | None = self._scan(server, b"0")
        while page is not None:
            reply = await page
            if isinstance(reply, Failure):
                self.error = reply.cause
                return
            cursor, keys = reply
            page = self._scan(server, cursor) if cursor != b"0" else None
            await self._look(server, set(keys))

    def _scan(self, server: Node, cursor: bytes) -> asyncio.Future[Any]:
        answer = Answer(asyncio.get_running_loop())
        command = Command.plain("SCAN", cursor, "MATCH", self._pattern, "COUNT", PAGE)
        server.ask(command, answer, 0)
        return answer.future

    async def _look(self, server: Node, keys: set[bytes]) -> None:
        found = (Place.of(self._prefix, key) for key in keys)
        places = [one for one in found if one is not None and self._name in (None, one.name)]
        if not places:
            return
        replies = _Collector(len(places))
        for number, place in enumerate(places):
            server.ask(place.question(self._prefix), replies, number)
        await replies.complete
        for place, reply in zip(places, replies.found, strict=True):
            self._keep(place, reply)

    def _keep(self, place: Place, reply: Any) -> None:
        if isinstance(reply, Failure):
            # Somebody else's key under our prefix is no trouble; a node that falls silent is.
            if "WRONGTYPE" not in reply.cause:
                self.error = reply.cause
        elif place.part in WAITING:
            count = reply if isinstance(reply, int) else int(reply[0] is not None)
            self.waiting[place.name] = self.waiting.get(place.name, 0) + count
        elif place.part in STATES:
            said = Said.of(self.node.address, reply)
            if said.value is not None:
                self.states[place] = said
        else:
            for view in place.views(self.node.address, reply):
                who = (view.owner or "") if place.part == "readers" else ""
                self.views[place, who] = view


def _literally(text: str) -> str:
    """`text` for a pattern in which it means itself."""
    return "".join(f"\\{one}" if one in "*?[]\\" else one for one in text)


class _Collector:
    """The sink for a batch of questions to one node."""

    def __init__(self, size: int) -> None:
        self.found: list[Any] = [None] * size
        self.complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = size

    def cast(self, index: int, reply: Any) -> None:
        """Keep an answer."""
        self.found[index] = reply
        self._left -= 1
        if not self._left and not self.complete.done():
            self.complete.set_result(None)
