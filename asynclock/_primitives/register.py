"""One small value that a majority of nodes agree on: what event, latch and barrier are made of.

Each change is one round of CASPaxos: a majority promises to take nothing lower than our number and
tells what it has accepted; the value with the highest number is what the register holds; the
changed value is accepted under our number by a majority. docs/decisions/0014 says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .. import _clock
from .._engine.engine import Engine
from .._engine.inspection import Inspection, NodeView, ask_all
from .._engine.recipe import ms
from .._nodes.link import Failure
from .._nodes.script import Command, Script
from .._rules import pacing, validity
from ..errors import ConfigurationError, QuorumUnavailableError
from .base import PRELUDE

SCRIPT = Script.load(__package__, PRELUDE, "register.lua")

T = TypeVar("T")

PROMISE = 5.0
"""Seconds for which a promise is kept at least, or four node timeouts if these are longer: no
request of a round is executed later than two after it was sent (`not_after`)."""
FIRST = 0.002
LONGEST = 0.2
"""The width of the pause between rounds that got in each other's way, doubled each time."""
OUTAGE = 3.0
"""Who waits for ever rides out an outage of the longest quarantine and so many seconds more."""
KEEP = 24 * 3600.0
"""How many seconds a value outlives its last change, if nobody says otherwise."""

Change = Callable[[str | None], str | None]
"""From what the register holds (None: nothing) to what it should hold; may be called again."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a majority of nodes said."""

    value: str | None
    agreed: bool
    """Whether they all said the same, so that it need not be written again."""


class Register:
    """A name for such a value; keeps nothing itself."""

    __slots__ = ("_engine", "_keep", "key", "name")

    def __init__(self, engine: Engine, name: str, key: str, keep: float) -> None:
        self.name = name
        self.key = key
        self._engine = engine
        self._keep = keep

    async def read(self, deadline: float | None, *, armed: bool = False) -> str | None:
        """What it holds now. Raises QuorumUnavailableError at the deadline; see `change`."""
        outage = _Outage(self._engine, self.name, deadline)
        while True:
            nodes = self._engine.multiplexer
            if armed:
                nodes.arm(range(len(nodes.nodes)))
            round_ = await self._ask("inspect")
            if len(round_.granted) >= nodes.quorum:
                found = round_.found()
                if found.agreed:
                    return found.value
                # Somebody's change is under way, or stopped half-way: finish it.
                return await self.change(lambda value: value, deadline)
            await outage.pause(round_)

    async def change(self, step: Change, deadline: float | None) -> str | None:
        """Change what it holds by `step`. → what it holds then.

        `step` is called again when a round was lost, perhaps after it took effect: it must know
        its own work. Raises QuorumUnavailableError at the deadline if too few nodes answer (None:
        after the longest quarantine). Cancelled, the change was made or not.
        """
        engine, nodes = self._engine, self._engine.multiplexer
        outage = _Outage(engine, self.name, deadline)
        by, number, width = engine.new_owner(), 0, FIRST
        while True:
            number = max(nodes.floor(_clock.now()), number + 1)
            promise = max(PROMISE, 4 * engine.settings.node_timeout)
            round_ = await self._ask("prepare", number, by, ms(promise))
            if len(round_.granted) >= nodes.quorum:
                found = round_.found()
                value = step(found.value)
                if value == found.value and found.agreed:
                    return value
                round_ = await self._ask("accept", number, by, ms(self._keep), value or "")
                if len(round_.granted) >= nodes.quorum:
                    nodes.wakeups.wake(self.key)  # servers don't tell us what we changed
                    return value
            number = max(number, round_.promised)
            if round_.outage:
                await outage.pause(round_)
            else:
                await asyncio.sleep(width * engine.random())
                width = min(LONGEST, width * 2)

    async def until(
        self,
        ready: Callable[[str | None], T | None],
        deadline: float | None,
        *,
        longest: float | None = None,
    ) -> T | None:
        """Wait until `ready` says something of the value. → that.

        None at the deadline, or after `longest` seconds.
        """
        nodes, random = self._engine.multiplexer, self._engine.random
        watch = nodes.wakeups.watch((self.key,))
        ends = [] if deadline is None else [deadline]
        if longest is not None:
            ends.append(_clock.now() + longest)
        try:
            for number in range(1 << 62):
                listening = nodes.tracks()
                found = ready(await self.read(deadline, armed=listening))
                now = _clock.now()
                if found is not None or any(now >= end for end in ends):
                    return found
                blind = pacing.without_push(number, None, random())
                pause = pacing.until_expiry(None, random()) if listening else blind
                pause = min([pause, *(end - now for end in ends)])
                if listening:
                    await watch.wait(pause)
                else:
                    await asyncio.sleep(pause)
            return None
        finally:
            watch.close()

    async def inspect(self, kind: str) -> Inspection:
        """What each node keeps (`value` of its view)."""
        replies = await ask_all(self._engine, Command(SCRIPT, (self.key,), ("inspect",)))
        nodes = self._engine.multiplexer.nodes
        views = tuple(_view(node.address, replies[i]) for i, node in enumerate(nodes))
        return Inspection(self.name, views, self._engine.multiplexer.quorum, kind)

    async def _ask(self, op: str, *args: str | int) -> Round:
        engine, nodes = self._engine, self._engine.multiplexer
        engine.ready()
        now = _clock.now()
        if args:
            number, by, keep, *value = args
            not_after = nodes.not_after(now + 2 * engine.settings.node_timeout)
            args = (number, by, keep, not_after, *value)
        command = Command(SCRIPT, (self.key,), (op, *args))
        round_ = Round(engine, now)
        for index, node in enumerate(nodes.nodes):
            # Whoever may have forgotten must not be asked: its silence would count.
            obstacle = node.obstacle(now)
            if obstacle is None:
                node.ask(command, round_, index)
            else:
                round_.cast(index, obstacle)
        await round_.decided
        return round_


class Round:
    """The sink for one question to all nodes: decided once a majority agrees, or can't any more."""

    __slots__ = ("_nodes", "_quorum", "_sent", "decided", "failures", "granted", "left", "promised")

    def __init__(self, engine: Engine, sent: float) -> None:
        self._nodes = engine.multiplexer.nodes
        self._quorum = engine.multiplexer.quorum
        self._sent = sent
        self.left = len(self._nodes)
        self.granted: list[Any] = []
        self.failures: dict[str, str] = {}
        self.promised = 0
        """The highest number that a refusing node has promised to somebody."""
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def cast(self, index: int, reply: Any) -> None:
        """Count one node's answer."""
        node = self._nodes[index]
        if type(reply) is Failure:
            self.failures[node.address] = reply.cause
        elif self._sent < node.trust.votes_from:
            self.failures[node.address] = "it was quarantined meanwhile"
        elif reply[0] == 1:
            self.granted.append(reply)
        elif reply[0] == 0:
            self.promised = max(self.promised, reply[1])
        else:
            self.failures[node.address] = "the request reached it too late"
        self.left -= 1
        certain = len(self.granted) >= self._quorum or (
            len(self.granted) + self.left < self._quorum
        )
        if certain and not self.decided.done():
            self.decided.set_result(None)

    @property
    def outage(self) -> bool:
        """Whether too few nodes answered to call it rivalry."""
        return len(self._nodes) - len(self.failures) < self._quorum

    def found(self) -> Found:
        """What the register holds, as far as these answers tell."""
        numbers = [reply[1] for reply in self.granted]
        highest = max(numbers)
        newest = next(reply for reply in self.granted if reply[1] == highest)
        value = newest[2].decode("utf-8", "replace") if highest and newest[2] else None
        return Found(value, numbers.count(highest) >= self._quorum)


class _Outage:
    """How long too few answers are borne with."""

    def __init__(self, engine: Engine, name: str, deadline: float | None) -> None:
        self._engine = engine
        self._name = name
        patience = validity.quarantine(engine.settings.max_ttl) + OUTAGE
        self._until = _clock.now() + patience if deadline is None else deadline
        self._number = 0

    async def pause(self, round_: Round) -> None:
        """Wait before asking again. Raises QuorumUnavailableError when it has been too long."""
        if self._engine.closed:
            raise ConfigurationError("the manager was closed while this waited")
        left = self._until - _clock.now()
        if left <= 0:
            listed = "; ".join(f"{node}: {cause}" for node, cause in round_.failures.items())
            raise QuorumUnavailableError(
                f"too few nodes answered to tell the state of {self._name!r}: {listed}",
                name=self._name,
                nodes=round_.failures,
            )
        pause = pacing.without_push(self._number, None, self._engine.random())
        self._number += 1
        await asyncio.sleep(min(pause, left))


def _view(address: str, reply: Any) -> NodeView:
    if isinstance(reply, Failure):
        return NodeView(address, None, None, 0, reply.cause)
    _, accepted, value, pttl, _ = reply
    text = value.decode("utf-8", "replace") if value else None
    return NodeView(address, None, pttl / 1000 if pttl >= 0 else None, accepted, None, text)
