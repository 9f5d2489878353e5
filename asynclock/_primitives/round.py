"""One request to all nodes about a register: which replies count, and what they mean together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, final

from .._engine.context import Vote
from .._engine.engine import Engine
from .._engine.said import TOO_LATE
from .._nodes.multiplexer import quarantined
from .._nodes.replies import Failure, reader
from .._rules.quorum import countable, surely_empty

NUMBERS: Final = range(2**53)
"""The numbers that a change may have."""
FORGETFUL = Failure(
    "it has restarted and may have forgotten this name; the next change stores it again"
)


@final
class Stored(NamedTuple):
    """What a node keeps of a register that it has promised, read or changed."""

    number: int = 0
    """Number of the last change that it accepted; the reply to a change doesn't tell it."""
    value: str | None = None
    left: float | None = None
    """Seconds until the node forgets it, as far as the reply says that."""
    now: int = 0
    """The node's clock, in µs."""


@final
class Promised(NamedTuple):
    """The node has promised a higher number to another client."""

    number: int


@reader
def stored(reply: Any) -> Stored | Promised | Failure:
    """Read a reply of register.lua."""
    match reply:
        case [1, int(number), None | bytes() as value, int(left), int(now)] if number in NUMBERS:
            return Stored(number, _text(value), left / 1000 if left >= 0 else None, now)
        case [1, int(number), None | bytes() as value, int(now)] if number in NUMBERS:
            return Stored(number, _text(value), None, now)
        case [1, int(now)]:
            return Stored(now=now)
        case [0, int(number), int()] if number in NUMBERS:
            return Promised(number)
        case [-1, int()]:
            return TOO_LATE
    raise ValueError(reply)


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if value else None


@dataclass(frozen=True, slots=True)
class Found:
    """The value that a majority of nodes reported."""

    value: str | None
    agreed: bool
    """Whether a majority reported this value and no node forgot it; then no write is needed."""
    everywhere: bool
    """Whether each node reported this value."""


class Round(Vote):
    """Counts the replies of all nodes; decided once a majority has answered or no longer can."""

    __slots__ = (
        "_answered",
        "_empty",
        "_sent",
        "_since",
        "cut_short",
        "decided",
        "granted",
        "left",
        "name",
        "on_forgotten",
        "promised",
    )
    AIM: ClassVar[str] = "know the state of"
    NEVER: ClassVar[str] = "be known"

    def __init__(self, engine: Engine, name: str, sent: float, since: float) -> None:
        self.name: str = name
        self._nodes = engine.multiplexer.nodes
        self._quorum = engine.multiplexer.quorum
        self._sent = sent
        self._since = since
        """A node that has kept its memory since this moment can't have forgotten a value."""
        self._empty: dict[int, tuple[float, Stored]] = {}
        """The nodes without a value that may have forgotten one. For each: the start of its memory
        by its own clock (µs), and its reply."""
        self._answered: set[int] = set()
        self.cut_short = False
        """Whether the time ended while enough nodes might still have answered."""
        self.on_forgotten: Callable[[], None] | None = None
        """Called if a reply after the decision shows that a node has forgotten the value."""
        self.left = len(self._nodes)
        self.granted: list[Stored] = []
        self.failures: dict[int, Failure] = {}
        self.promised = 0
        """The highest number that a refusing node has promised to another client."""
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_reply(self, index: int, reply: Any) -> None:
        """Count the reply of node `index`."""
        node, said = self._nodes[index], stored(reply)
        self._answered.add(index)
        answer = said if type(said) is Failure and said is not TOO_LATE else None
        if node.lack is not answer and (answer is None or answer.code):
            node.note(answer)
        if type(said) is Failure:
            self.failures[index] = said
        elif self._sent < node.trust.votes_from:
            self.failures[index] = quarantined(node)
        elif type(said) is Promised:
            self.promised = max(self.promised, said.number)
        elif node.trust.remembers_from > self._since and not said.number:
            kept = self._sent - node.trust.remembers_from
            self._empty[index] = (said.now - kept * 1_000_000, said)
        else:
            self.granted.append(said)
        self.left -= 1
        self._believe()
        if not self.decided.done():
            self._judge()
        elif self._empty and self.on_forgotten is not None:
            self.on_forgotten()

    def _believe(self) -> None:
        # A node whose memory reaches back to before the newest write has not forgotten that value.
        if self._empty and self.granted:
            newest = max(one.number for one in self.granted)
            for index, (since, one) in list(self._empty.items()):
                if surely_empty(since, newest):
                    self.granted.append(one)
                    del self._empty[index]

    def _judge(self) -> None:
        sure, unsure = len(self.granted), len(self._empty)
        count = countable(len(self._nodes), sure=sure, unsure=unsure, left=self.left)
        if count > sure:
            self.granted += (one for _, one in self._empty.values())
        elif not self.left:
            self.failures |= dict.fromkeys(self._empty, FORGETFUL)
        if count >= self._quorum or sure + unsure + self.left < self._quorum or not self.left:
            self.decided.set_result(None)

    def expire(self, before: Mapping[int, Failure]) -> None:
        """End the round: missing nodes count as failed, with their cause from `before` if any."""
        self.cut_short = len(self.granted) + self.left >= self._quorum
        self.failures |= dict.fromkeys(self._empty, FORGETFUL)
        for index in range(len(self._nodes)):
            if index not in self._answered:
                self.failures[index] = before.get(index) or self._unanswered(index)

    def found(self) -> Found:
        """Return the value with the highest number among the replies that count."""
        numbers = [one.number for one in self.granted]
        highest = max(numbers)
        newest = next(one for one in self.granted if one.number == highest)
        value = newest.value if highest else None
        # A node that forgot the value must get it again before another node restarts.
        forgotten = highest > 0 and bool(self._empty)
        having = 0 if forgotten else numbers.count(highest)
        return Found(value, having >= self._quorum, having == len(self._nodes))
