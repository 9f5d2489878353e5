"""Everything that is held on the nodes, found by SCAN in small pages, all nodes at once.

A page and the questions about its keys are many short commands, so that no server is ever busy
with us for longer than one of them; KEYS, which blocks for as long as it takes, is never used.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from .._engine.inspection import Inspection, NodeView
from .._nodes.link import Answer, Failure
from .._nodes.node import Node
from .._nodes.script import Command
from .._primitives.lock import SCRIPT
from .._settings import COUNTER, PART
from ..manager import LockManager

PAGE = 250
"""Keys looked at by one SCAN: some 50 µs of a server's time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A key that stands for a holding: a lock, or one part of a primitive with several."""

    name: str
    part: str = ""

    @property
    def suffix(self) -> str:
        """What comes after the prefix in its key."""
        return f"{self.name}{PART}{self.part}" if self.part else self.name


@dataclass
class Survey:
    """What was found."""

    places: list[Inspection]
    """Sorted by name and part."""
    errors: dict[str, str] = field(default_factory=dict)
    """Node → why it could not be asked."""


async def survey(locks: LockManager, prefix: str, name: str | None = None) -> Survey:
    """All places that somebody holds, or (`name`) those of one name."""
    nodes = locks._engine.multiplexer.nodes
    locks._engine.ready()
    walks = [_Walk(node, prefix, name) for node in nodes]
    await asyncio.gather(*(walk.run() for walk in walks))
    found = {place for walk in walks for place in walk.views}
    quorum = locks._engine.multiplexer.quorum
    places = [
        Inspection(
            place.name,
            tuple(walk.view(place) for walk in walks),
            quorum,
            "part" if place.part else "lock",
            place.part,
        )
        for place in sorted(found, key=lambda place: (place.name, place.part))
    ]
    errors = {walk.node.address: walk.error for walk in walks if walk.error is not None}
    return Survey(places, errors)


async def ask(node: Node, command: Command) -> Any:
    """One command to one node. → its reply or Failure."""
    answer = Answer(asyncio.get_running_loop())
    node.ask(command, answer, 0)
    return await answer.future


class _Walk:
    """One node, page by page."""

    def __init__(self, node: Node, prefix: str, name: str | None) -> None:
        self.node = node
        self.views: dict[Place, NodeView] = {}
        self.error: str | None = None
        self._prefix = prefix
        self._name = name
        pattern = _literally(prefix) + ("*" if name is None else f"{_literally(name)}*")
        self._pattern = pattern.encode()

    async def run(self) -> None:
        """Look at every key; the next page is on its way while the last one is asked about."""
        page: asyncio.Future[Any] | None = self._scan(b"0")
        while page is not None:
            reply = await page
            if isinstance(reply, Failure):
                self.error = reply.cause
                return
            cursor, keys = reply
            page = self._scan(cursor) if cursor != b"0" else None
            await self._look(set(keys))

    def view(self, place: Place) -> NodeView:
        """What this node says of a place."""
        found = self.views.get(place)
        return found or NodeView(self.node.address, None, None, 0, self.error)

    def _scan(self, cursor: bytes) -> asyncio.Future[Any]:
        answer = Answer(asyncio.get_running_loop())
        command = Command.plain("SCAN", cursor, "MATCH", self._pattern, "COUNT", PAGE)
        self.node.ask(command, answer, 0)
        return answer.future

    async def _look(self, keys: set[bytes]) -> None:
        places = [place for key in keys if (place := self._place(key)) is not None]
        if not places:
            return
        replies = _Collector(len(places))
        for number, place in enumerate(places):
            key = self._prefix + place.suffix
            self.node.ask(Command(SCRIPT, (key, key + COUNTER), ("inspect",)), replies, number)
        await replies.complete
        for place, reply in zip(places, replies.found, strict=True):
            view = self._view(reply)
            if view is not None:
                self.views[place] = view

    def _place(self, key: bytes) -> Place | None:
        try:
            suffix = key[len(self._prefix.encode()) :].decode()
        except UnicodeDecodeError:
            return None  # not one of ours: names are UTF-8
        if suffix.endswith(COUNTER) or not suffix:
            return None
        name, _, part = suffix.partition(PART)
        return Place(name, part) if self._name in (None, name) else None

    def _view(self, reply: Any) -> NodeView | None:
        address = self.node.address
        if isinstance(reply, Failure):
            if "WRONGTYPE" in reply.cause:
                return None  # a queue of a primitive, or somebody else's key under our prefix
            return NodeView(address, None, None, 0, reply.cause)
        owner, pttl, fence = reply[:3]
        if owner is None:
            return None  # gone since the page was made
        left = pttl / 1000 if pttl >= 0 else None
        return NodeView(address, owner.decode("utf-8", "replace"), left, fence)


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
