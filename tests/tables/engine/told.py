"""Nodes in memory that reply what a row says, and what they were sent. In virtual time."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import asynclock
from asynclock.testing.memory import MemoryClient, MemoryNode, encode
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import LONGEST, Nodes, Way, as_test
from tests.tables.inside import now, seed, unfinished


@dataclass(frozen=True)
class Reply:
    """What a node replies, and after how many seconds; `breaks` cuts the connection instead."""

    words: Any = ()
    after: float = 0.0
    breaks: bool = False


SILENT = Reply(after=math.inf)
LOST = Reply(breaks=True)
TOO_LATE = Reply([-1])
DONE, UNDONE = Reply([1, b""]), Reply([0, b""])
ME = b"\0"
"""In a reply: the id of the ticket of the first one that asked, which is that of its owner."""
USUAL = {"release": DONE, "leave": DONE, "look": Reply([b"1", b"x"])}
"""What a node with a script replies otherwise: the name is held, and a ticket waits."""


def yes(fence: int = 7, first: str = "") -> Reply:
    """The node grants, with this fence; `first`: a waiter that it knows of."""
    return Reply([1, fence, first.encode()])


def no(
    owner: str = "x",
    *more: bytes,
    left: float = 60.0,
    number: int = 0,
    rank: int = 0,
    free: int = 0,
) -> Reply:
    """The node refuses: `owner` has the name, or is the waiter to which it left the name."""
    return Reply([0, int(left * 1000), owner.encode(), number, rank, free, *more])


def error(text: str) -> Reply:
    return Reply(ReplyError(text))


def later(seconds: float, reply: Reply) -> Reply:
    return replace(reply, after=seconds)


@dataclass
class Heard:
    """One command that a node got."""

    at: float
    node: str
    words: list[str]

    @property
    def op(self) -> str:
        return self.words[0]


class Client(MemoryClient):
    """A connection whose replies come when they are told to, and in order."""

    ready = 0.0

    def received(self, data: bytes) -> None:
        if not data:
            super().received(data)
            return
        self._reader.feed(data)
        loop = asyncio.get_running_loop()
        while (words := self._reader.gets()) is not False:
            node: Any = self._node
            told, answer = node.told(tuple(words)), None
            if told is None:
                told, answer = Reply(), node.answer(self, tuple(words))
            elif told.breaks:
                loop.call_later(told.after, self.hang_up)
                continue
            else:
                answer = told.words
                if words[0] != b"MGET" and isinstance(answer, list):
                    clock = int(node.wall() * 1_000_000)
                    answer = [node.first if one == ME else one for one in (*answer, clock)]
            # No two timers of one moment: their order would be that of chance.
            self.ready = max(self.ready + 2e-6, loop.time() + 2e-6 + told.after)
            if self.ready < math.inf and not self._over:
                loop.call_at(self.ready, self._replies.send, encode(answer))


class Told(MemoryNode):
    """A node that replies what its `script` says: for each operation, one reply after the other.

    The last reply of an operation counts for ever. Operations that the script does not know are
    executed.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.script: dict[str, list[Reply]] = {}
        self.heard: list[Heard] = []

    async def open(self, factory: Any, route: Any = None) -> Any:
        if not self.alive:
            raise ConnectionRefusedError(f"{self.name} is down")
        protocol = factory()
        client = Client(self, protocol, route or Way())
        client.life = self._life
        self._clients[client] = None
        protocol.connection_made(client.transport)
        return protocol

    @property
    def first(self) -> bytes:
        """The owner that asked first."""
        return next(one for one in self.heard if one.op == "acquire").words[1].encode()

    def told(self, words: tuple[bytes, ...]) -> Reply | None:
        heard = ["look"]
        if words[0] in (b"EVALSHA", b"EVAL"):
            heard = [word.decode() for word in words[3 + int(words[2]) :]]
        elif words[0] != b"MGET":
            return None
        if heard[0] != "witness":
            self.heard.append(Heard(now(), self.name, heard))
        replies = self.script.get(heard[0])
        if not replies:
            return USUAL.get(heard[0]) if self.script else None
        return replies.pop(0) if len(replies) > 1 else replies[0]


@dataclass
class Table(Nodes):
    """Such nodes, which by now the manager has met."""

    nodes: list[Told] = field(default_factory=list)  # type: ignore[assignment]

    def tell(self, op: str, *votes: tuple[Reply, ...]) -> None:
        """Let the nodes reply to the operation like this: one tuple for each time, node by node."""
        for node, replies in zip(self.nodes, zip(*votes, strict=True), strict=True):
            node.script[op] = list(replies)

    def heard(self, *ops: str) -> list[Heard]:
        """Return the commands that the nodes got, with these operations if any are named."""
        found = [one for node in self.nodes for one in node.heard if not ops or one.op in ops]
        return sorted(found, key=lambda one: one.at)

    def sent(self) -> list[str]:
        """Return what was sent in words: the operation, the number of the owner, and the nodes."""
        owners: dict[str, int] = {}
        lines: dict[tuple[int, str, int], str] = {}
        for one in self.heard():
            if one.op == "look":
                continue
            owner = owners.setdefault(one.words[1], len(owners) + 1)
            key = round(one.at * 1000), one.op, owner
            lines[key] = "".join(sorted(lines.get(key, "") + one.node))
        return [f"{op} {owner} {nodes}" for (_, op, owner), nodes in lines.items()]


def on_told(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a scenario on nodes that the manager has met: three, or one for each reply.

    What else the scenario takes are parameters of the test.
    """

    async def play(given: dict[str, Any]) -> None:
        names = "abcde"[: len(given.get("replies", "abc"))]
        on = Table([Told(name) for name in names], [Way() for _ in names])
        for node in on.nodes:
            node.born_ago(3600)
        async with asyncio.timeout(LONGEST), on.connect() as on.locks:
            async with on.locks.lock("warm"):
                pass
            await asyncio.sleep(0.1)
            seed(on.locks, 1)
            for node in on.nodes:
                node.heard.clear()
            locks = on.locks
            await scenario(on, **given)
            for node in on.nodes:
                node.script.clear()
        assert unfinished(locks) == (0, [])

    return as_test(scenario, play)


async def outcome(call: Any) -> tuple[Any, float]:
    """Return a lease, None or an error, and the seconds until it came."""
    began = now()
    try:
        return await call, now() - began
    except asynclock.AsyncLockError as failed:
        return failed, now() - began
