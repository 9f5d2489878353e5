"""Plays a dialogue with one node, whose connections a table opens and ends, in virtual time.

A line is what happens, and behind ` -> ` all that is heard because of it: what is sent on the
connection, what becomes of each request, who is woken.
"""

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from asynclock import _clock
from asynclock._nodes.handshake import HandshakeError
from asynclock._nodes.node import NodeSettings
from asynclock._nodes.server import ServerNode
from asynclock._nodes.wire import Command, Failure
from asynclock._rules.validity import Facts
from asynclock.events import Event, Observers
from tests.tables.nodes.links import command
from tests.waiting import call_off, until

NODE_TIMEOUT, MAX_TTL = 0.25, 10.0
OLD = Facts(run_id="one", uptime=1e6, tracking=True)
"""What a server says that has run for long enough to vote at once."""
CLOCK = 1_700_000_000.0
"""What its clock shows when the dialogue begins, in seconds since 1970."""


class HandLink:
    """A link that tells what is sent on it, and which the table ends."""

    def __init__(self, hand: "Hand") -> None:
        self.hand = hand
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stalled_since = 0.0
        self.releasing = False
        self.doubted: Any = None
        self.unanswered: list[tuple[str, Any]] = []

    def send(self, command: Command, sink: Any, _index: int, *, write: bool = False) -> None:
        words = " ".join(map(str, command.args[:2] if command.script else command.args))
        self.unanswered.append((words, sink))
        self.hand.last = command
        first = "" if command.first is None else f" behind {' '.join(map(str, command.first.args))}"
        self.hand.heard.append(f"{'at once ' * write}sends {words}{first}")

    def ask(self, command: Command) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sink: Any = type("Sink", (), {"on_reply": lambda _self, _index, it: answer.set_result(it)})
        self.send(command, sink(), 0)
        return answer

    def flush(self) -> None:
        self.hand.heard.append("writes")

    def close(self, cause: str) -> None:
        self.hand.heard.append(f"closes: {cause}")
        self.end(Failure(cause))

    def end(self, end: Failure, *unanswered: Command) -> None:
        if not self.closed.done():
            link: Any = self
            self.hand.node.on_disconnect(link, end, list(unanswered))
            self.closed.set_result(None)

    async def finish(self) -> None:
        self.close("closed")


class Hand:
    """The node, and the next results of its attempts to connect."""

    def __init__(self, **settings: Any) -> None:
        usual = {
            "restart_guard": True,
            "guard_first": True,
            "clock_guard": True,
            "disks_kept": False,
        }
        self.results: asyncio.Queue[Facts | Exception] = asyncio.Queue()
        self.heard: list[str] = []
        self.events: list[Event] = []
        self.last: Any = None
        self.limits: list[float] = []
        self.moments: list[float] = []
        """When attempts began."""
        self._began = _clock.now()
        self.reading: tuple[float, float, float] | None = None
        """The clock that each handshake reads."""
        self._tries = asyncio.Event()
        made = NodeSettings(NODE_TIMEOUT, MAX_TTL, **{**usual, **settings})
        self.node = ServerNode("here", self._dial, made, Observers([self.events.append]))
        self.node.on_wake = lambda key: self.heard.append(f"wakes {key or 'all'}")
        self.node.on_jump = lambda _node, by: self.heard.append(f"jumps by {by:.0f}")

    async def _dial(self, _node: ServerNode, limit: float) -> tuple[Any, Facts]:
        self.limits.append(limit)
        self.moments.append(_clock.now() - self._began)
        if self.results.empty():
            self._tries.set()
        result = await self.results.get()
        if self.reading is not None:
            self.node.on_clock(*self.reading)
        if isinstance(result, Exception):
            raise result
        return HandLink(self), result

    async def play(self, lines: tuple[str, ...]) -> None:
        """Do what the lines say, and hear what they say."""
        for line in lines:
            did, _, expected = line.partition(" -> ")
            verb, _, rest = did.partition(" ")
            done = self._verbs()[verb](rest)
            if isinstance(done, Awaitable):
                await done
            assert "; ".join(self.heard) == expected, f"{line}\n{self.heard}"
            self.heard.clear()

    def _verbs(self) -> dict[str, Callable[[str], Any]]:
        node, tell = self.node, self.heard.append
        return {
            "comes": self.comes,
            "fails": self.fails,
            "ends": self._ends,
            "wait": lambda seconds: asyncio.sleep(float(seconds)),
            "ask": lambda words: node.ask(self._command(words), self._sink(words), 0),
            "arm": lambda words: node.ask(self._command(words), self._sink(words), 0, arm=True),
            "deliver": lambda words: node.deliver(self._command(words), self._sink(words), 0),
            "replies": self._replies,
            "silent": lambda _: setattr(self.link, "stalled_since", _clock.now()),
            "answers": lambda _: setattr(self.link, "stalled_since", 0.0),
            "push": lambda push: node.on_push(list(ast.literal_eval(push))),
            "clock": lambda ahead: self._clock(float(ahead)),
            "vote": lambda why: node.on_answer(command("acquire me"), why and _failure(why)),
            "write": lambda _: node.write(),
            "check": lambda _: node.check_clock(),
            "record": lambda _: node.read_record(),
            "poll": lambda _: node.poll(),
            "finish": lambda _: node.finish(),
            "fork": lambda _: node.forked(),
            "state?": lambda _: tell(node.state(_clock.now())),
            "cause?": lambda _: tell(node.cause(_clock.now())),
            "votes?": lambda _: tell(f"{max(0.0, node.votes_from - _clock.now()):.1f}"),
            "settle": lambda _: asyncio.wait_for(node.settle(), 1.0),
            "settled?": lambda _: tell(str(node.settled)),
            "batches?": lambda _: tell(str(node.takes_batches)),
            "kept?": lambda _: tell(str(len(node.pending))),
            "limits?": lambda _: tell(" ".join(map(str, self.limits))),
            "events?": lambda _: tell(" ".join(type(one).__name__ for one in self.events)),
        }

    @property
    def link(self) -> Any:
        return self.node.link

    async def comes(self, facts: str = "") -> None:
        """Let the present attempt succeed, with facts such as `role=slave`."""
        pairs = (one.split("=") for one in facts.split())
        values: dict[str, Any] = {key: _value(value) for key, value in pairs}
        self.results.put_nowait(replace(OLD, **values))
        await until(lambda: self.link is not None, every=0.001)

    async def fails(self, how: str) -> None:
        """Let the present attempt fail, and those that follow: `3 refused`, `WRONGPASS`."""
        times, _, cause = how.rpartition(" ")
        self._tries.clear()
        error: Exception = ConnectionRefusedError(cause)
        if cause.isupper():
            error = HandshakeError(Failure("wrong", permanent=True, code=cause))
        for _ in range(int(times or 1)):
            self.results.put_nowait(error)
        await self._tries.wait()

    def _ends(self, how: str) -> None:
        cause, _, unanswered = how.partition(" with ")
        lost = [self._command(words) for words in unanswered.split(", ") if words]
        self.link.end(_failure(cause), *lost)

    def _command(self, words: str) -> Command:
        """`acquire me`, `release me asked 0.5 for 60`: since when, and for how many seconds."""
        words, _, when = words.partition(" asked ")
        made = command(words)
        if when:
            asked, _, seconds = when.partition(" for ")
            made.asked_since = self._began + float(asked)
            made.retry_until = made.asked_since + float(seconds or 60)
        if made.op in ("prepare", "accept"):
            made.numbered_at = self._began + float(made.args[1])
        return made

    def _sink(self, words: str) -> Any:
        name = words.partition(" asked ")[0]

        def heard(_self: Any, _index: int, reply: Any) -> None:
            if isinstance(reply, Failure):
                needs = f" (permanent{' ' * bool(reply.code)}{reply.code})"
                reply = f"! {reply.cause}{needs * reply.permanent}"
            self.heard.append(f"{name}: {reply}")

        return type("Sink", (), {"on_reply": heard})()

    def _replies(self, words: str) -> None:
        """`release me = [1]`: let the oldest such request have this reply."""
        name, _, reply = words.partition(" = ")
        place = next(n for n, (one, _) in enumerate(self.link.unanswered) if one == name)
        _, sink = self.link.unanswered.pop(place)
        sink.on_reply(0, _failure(reply[2:]) if reply[0] == "!" else ast.literal_eval(reply))

    def _clock(self, ahead: float) -> None:
        now = _clock.now()
        self.node.on_clock(CLOCK + now - self._began + ahead, now, now)


def _failure(text: str) -> Failure:
    permanent, code = "permanent " in text, text.split(maxsplit=1)[0]
    return Failure(text.replace("permanent ", ""), permanent, code if code.isupper() else "")


def _value(text: str) -> Any:
    if text.isdigit():
        return float(text)
    return tuple(text.split(",")) if "," in text or text.isupper() else text


@asynccontextmanager
async def by_hand(**settings: Any) -> AsyncIterator[Hand]:
    """Keep a node connected, as far as the table lets it."""
    hand = Hand(**settings)
    keeping = asyncio.create_task(hand.node.keep())
    while not hand.limits:
        await asyncio.sleep(0)
    try:
        yield hand
    finally:
        await call_off(keeping)
