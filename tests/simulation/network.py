"""The network of a simulation: between one process and one node, in order but not in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asynclock.testing.memory import Route, Stream
from tests.simulation.loop import RUNNING

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

ACQUIRE, RAISE, EXTEND = b"\r\nacquire\r\n", b"\r\nraise\r\n", b"\r\nextend\r\n"
RELEASE = b"\r\nrelease\r\n"
DELAY = 0.02
"""Seconds above which a piece counts as delayed: many times what pieces usually take."""


class Weather(Route):
    """What the pieces of all connections between one process and one node meet."""

    def __init__(self, world: World, process: Process, number: int) -> None:
        self._world = world
        self._process = process
        self.number = number
        """Of the node."""
        self._late = world.nature.late
        self._tag = f"{process.name}{number}".encode()
        self._closed = self._mute = False
        self._blocked: dict[Stream, None] = {}
        self._held: dict[Stream, None] = {}
        self.slow = 0.0
        self.releases = 0
        """How many have arrived at the node."""

    def delay(self) -> float:
        chance = self._world.random
        if chance.random() < 0.01:
            delay = chance.uniform(0.0, self._late)
        else:
            delay = 0.0002 + chance.expovariate(2000.0) + self.slow * chance.random()
        self._world.counts["delays"] += delay > DELAY
        return delay

    def admit(self, stream: Stream, data: bytes) -> bool:
        if self._process.traps and not self._stops(stream):
            self._spring_traps(stream, data)
        if self._stops(stream):
            self._world.counts["delays"] += stream not in self._blocked
            self._blocked[stream] = None
            return False
        self._world.note(self._tag, data)
        if RELEASE in data:
            self.releases += data.count(RELEASE)
        return True

    def _stops(self, stream: Stream) -> bool:
        return self._closed or stream in self._held or (self._mute and RUNNING in stream.context)

    def _spring_traps(self, stream: Stream, data: bytes) -> None:
        traps = self._process.traps
        for request in [request for request in traps if request in data]:
            traps.pop(request)(self, stream)

    def hold(self, stream: Stream, seconds: float) -> None:
        """Keep what one connection carries one way for so long; other connections overtake it."""
        self._held[stream] = None
        self._world.loop.call_later(seconds, self._let_go, stream)

    def _let_go(self, stream: Stream) -> None:
        self._held.pop(stream, None)
        stream.pump()

    def cut_off(self) -> None:
        """Keep everything that is on the way, in both directions."""
        self._closed = True

    def keep_replies(self) -> None:
        """Let requests through and keep what comes back."""
        self._mute = True

    @property
    def whole(self) -> bool:
        """Whether everything arrives."""
        return not (self._closed or self._mute or self.slow)

    def heal(self) -> None:
        """Let everything through, what waits first."""
        self._closed = self._mute = False
        self.slow = 0.0
        blocked, self._blocked = self._blocked, {}
        for stream in blocked:
            self._world.loop.call_soon(stream.pump, context=stream.context)
