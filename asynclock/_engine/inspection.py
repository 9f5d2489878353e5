"""Who has a name, node by node: for people, never for decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._nodes.link import Failure
from .._nodes.script import Command
from .engine import Engine
from .recipe import Recipe
from .refusals import label


@dataclass(frozen=True, slots=True)
class NodeView:
    """What one node says of a name; texts come from outside, never print them raw."""

    node: str
    owner: str | None
    """Whom it keeps the name for; None: nobody, or no answer."""
    remaining: float | None
    """Seconds until it frees the name by itself; None: no owner, or a key without a ttl."""
    fence: int
    """The highest fence it has given out; 0: none that it remembers."""
    error: str | None = None
    """Why there was no answer."""
    value: str | None = None
    """What it keeps of an event, latch or barrier, which nobody owns."""

    @property
    def holder(self) -> str | None:
        """The label in the owner's id."""
        return label(self.owner)


@dataclass(frozen=True, slots=True)
class Inspection:
    """Who has a name."""

    name: str
    nodes: tuple[NodeView, ...]
    quorum: int
    kind: str = "lock"
    """What the name is: "lock", "semaphore", "rwlock", …"""
    part: str = ""
    """Which of several places this is; "" where there is one, or for the name as a whole."""
    parts: tuple[Inspection, ...] = ()
    """Each place of its own, where there are several: slots, the writer and readers."""

    @property
    def owner(self) -> str | None:
        """Whoever has a quorum of nodes; None: nobody has."""
        owners = [view.owner for view in self.nodes if view.owner is not None]
        most = max(owners, key=owners.count, default=None)
        return most if most is not None and owners.count(most) >= self.quorum else None

    @property
    def holder(self) -> str | None:
        """The label of the owner."""
        return label(self.owner)

    @property
    def fence(self) -> int:
        """The highest number that a quorum has reached: the fence, or the block it is taken from.

        A node alone may be ahead: it granted when the others had decided already.
        """
        highest = sorted((view.fence for view in self.nodes), reverse=True)
        return highest[self.quorum - 1] if len(highest) >= self.quorum else 0

    @property
    def remaining(self) -> float | None:
        """Seconds until a quorum no longer keeps it, if nobody renews."""
        owner = self.owner
        left = [v.remaining for v in self.nodes if v.owner == owner and v.remaining is not None]
        kept = sorted(left, reverse=True)
        return kept[self.quorum - 1] if owner is not None and len(kept) >= self.quorum else None

    @property
    def agreed(self) -> bool:
        """Whether all nodes that answered name the same owner, or none."""
        return len({view.owner for view in self.nodes if view.error is None}) <= 1


async def inspect(engine: Engine, recipe: Recipe, kind: str = "lock") -> Inspection:
    """Ask every node; takes at most one node timeout."""
    nodes = engine.multiplexer.nodes
    replies = await ask_all(engine, recipe.inspect())
    views = tuple(_view(node.address, replies[i]) for i, node in enumerate(nodes))
    return Inspection(recipe.name, views, engine.multiplexer.quorum, kind, recipe.part)


async def inspect_parts(engine: Engine, kind: str, recipes: Sequence[Recipe]) -> Inspection:
    """Ask every node about every place of a name, all at once."""
    parts = await asyncio.gather(*(inspect(engine, recipe, kind) for recipe in recipes))
    return whole(recipes[0].name, kind, parts)


def whole(name: str, kind: str, parts: Sequence[Inspection]) -> Inspection:
    """A name whose places are these: nobody owns it as a whole, its fence is the highest."""
    views = []
    for same in zip(*(part.nodes for part in parts), strict=True):
        errors = [view.error for view in same if view.error is not None]
        fence = max(view.fence for view in same)
        views.append(NodeView(same[0].node, None, None, fence, errors[0] if errors else None))
    return Inspection(name, tuple(views), parts[0].quorum, kind, parts=tuple(parts))


async def ask_all(engine: Engine, command: Command, *, enough: int | None = None) -> dict[int, Any]:
    """Ask every node, but wait for no more than `enough` replies. Takes one node timeout at most.

    → a reply or Failure under the number of each node that has answered.
    """
    engine.ready()
    size = len(engine.multiplexer.nodes)
    replies = _Replies(asyncio.get_running_loop(), size, enough or size)
    engine.multiplexer.broadcast(command, replies)
    await replies.complete
    return replies.found


def _view(address: str, reply: Any) -> NodeView:
    if isinstance(reply, Failure):
        return NodeView(address, None, None, 0, reply.cause)
    owner, pttl, fence = reply[0], reply[1], reply[2]
    return NodeView(
        address,
        owner.decode("utf-8", "replace") if owner else None,
        pttl / 1000 if pttl >= 0 else None,
        fence,
    )


class _Replies:
    """The sink that waits for all, or for so many that are no failures."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int, enough: int) -> None:
        self._enough = enough
        self.found: dict[int, Any] = {}
        self.complete: asyncio.Future[None] = loop.create_future()
        self._size = size

    def cast(self, index: int, reply: Any) -> None:
        """Keep one node's answer."""
        self.found[index] = reply
        self._enough -= not isinstance(reply, Failure)
        done = len(self.found) == self._size or self._enough <= 0
        if done and not self.complete.done():
            self.complete.set_result(None)
