"""A node whose connections the test opens and ends, and whose requests the test answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asynclock._nodes.node import NodeSettings
from asynclock._nodes.replies import Answer, Failure, Sink
from asynclock._nodes.script import Command
from asynclock._nodes.server import ServerNode
from asynclock._primitives.lock import SCRIPT
from asynclock._rules.trust import Facts
from asynclock.events import Event, Observers
from tests.waiting import until

NODE_TIMEOUT, MAX_TTL = 0.25, 10.0
OLD = Facts(run_id="one", uptime=1e6, tracking=True)
"""What a server says that has run for long enough to vote at once."""
CLOCK = 1_700_000_000.0
"""What its clock shows when the time of the test begins, in seconds since 1970."""


class HandLink:
    """A link that only keeps what is sent on it."""

    def __init__(self, node: ServerNode) -> None:
        self.node = node
        self.sent: list[tuple[Command, Sink]] = []
        self.now: list[bool] = []
        """For each command, whether it was to be written at once."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stalled_since = 0.0
        self.takes_batches, self.releasing = True, False
        self.flushed = 0
        self.causes: list[str] = []
        """Why it was closed."""

    @property
    def connection(self) -> Any:
        return self

    @property
    def commands(self) -> list[Command]:
        return [command for command, _ in self.sent]

    def send(self, command: Command, sink: Sink, _index: int, *, now: bool = False) -> None:
        self.sent.append((command, sink))
        self.now.append(now)

    def ask(self, command: Command) -> asyncio.Future[Any]:
        answer = Answer(asyncio.get_running_loop())
        self.send(command, answer, 0)
        return answer.future

    def flush(self) -> None:
        self.flushed += 1

    def close(self, cause: str) -> None:
        self.causes.append(cause)
        self.end(Failure(cause))

    def end(self, end: Failure, *unanswered: Command) -> None:
        """Let the connection end."""
        if not self.closed.done():
            link: Any = self
            self.node.on_disconnect(link, end, list(unanswered))
            self.closed.set_result(None)

    async def finish(self) -> None:
        self.close("closed")


class Answers:
    """A sink that keeps its answers."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def on_reply(self, _index: int, reply: Any) -> None:
        self.found.append(reply)

    async def first(self) -> Any:
        """Wait for the first answer."""
        await until(lambda: self.found, every=0.001)
        return self.found[0]


class Hand:
    """The node, and the next results of its attempts to connect."""

    def __init__(self, **settings: Any) -> None:
        usual = {"restart_guard": True, "guard_first": True, "clock_guard": True}
        self.results: asyncio.Queue[Facts | Exception] = asyncio.Queue()
        self.limits: list[float] = []
        self.events: list[Event] = []
        self.before_handshake_ends = lambda: None
        self._tries = asyncio.Event()
        """Set when an attempt waits for its result."""
        made = NodeSettings(NODE_TIMEOUT, MAX_TTL, **{**usual, **settings})
        self.node = ServerNode("here", self._dial, made, Observers([self.events.append]))

    async def _dial(self, _node: ServerNode, limit: float) -> tuple[Any, Facts]:
        self.limits.append(limit)
        if self.results.empty():
            self._tries.set()
        result = await self.results.get()
        self.before_handshake_ends()
        if isinstance(result, Exception):
            raise result
        return HandLink(self.node), result

    async def comes(self, facts: Facts = OLD) -> HandLink:
        """Let the present attempt succeed; return the link."""
        self.results.put_nowait(facts)
        await until(lambda: self.node.link is not None, every=0.001)
        link: Any = self.node.link
        return link  # type: ignore[no-any-return]

    async def fails(self, error: Exception, times: int = 1) -> None:
        """Let the present attempt fail, and those that follow."""
        self._tries.clear()
        for _ in range(times):
            self.results.put_nowait(error)
        await self._tries.wait()


@asynccontextmanager
async def by_hand(**settings: Any) -> AsyncIterator[Hand]:
    """Keep a node connected, as far as the test lets it."""
    hand = Hand(**settings)
    keeping = asyncio.create_task(hand.node.keep())
    while not hand.limits:
        await asyncio.sleep(0)
    try:
        yield hand
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def release(owner: str, asked_since: float, until: float) -> Command:
    """A release of a lease that the nodes were asked for at `asked_since`."""
    return Command.release(SCRIPT, ("asynclock:a",), owner, asked_since, until)


def acquire(owner: str, *, give_up_at: float = 0.0) -> Command:
    """An acquire, which each node has to bound by its own clock if it has a `give_up_at`."""
    command = Command(SCRIPT, ("asynclock:a",), ("acquire", owner, 10_000, 1, 0, 0))
    command.give_up_at = give_up_at
    return command
