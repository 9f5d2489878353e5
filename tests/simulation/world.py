"""A world in one process: clients, nodes, a network between them, and time that jumps when idle.

Everything of the library is real but the socket; every random number comes from one seed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import asynclock
from asynclock import _clock
from asynclock.testing._wire import Route, Stream
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.virtual import VirtualLoop

EPOCH = 1_700_000_000.0
TTL = 2.0
NODE_TIMEOUT = 0.25

PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


def _without_floor(floor: Callable[[float], int]) -> Callable[[float], int]:
    def read(now: float) -> int:
        floor(now)  # it reads the nodes' clocks, which bound how late a request may be executed
        return 0

    return read


class Process:
    """A client: its clock, and whether it is stopped."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"p{number}"
        self.frozen = False
        self.frozen_until = 0.0
        """Since when it runs undisturbed."""
        self.wall_step = 0.0
        """By how much its wall clock is wrong."""
        self._rate = 1 + world.random.uniform(-0.0004, 0.0004)
        self._offset = world.random.uniform(0, 1000)
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.trap: float | None = None
        """Seconds to be frozen for, from the arrival of its next acquire on."""
        self.stash: list[asyncio.Handle] = []
        self.routes: list[Weather] = []
        self.locks: asynclock.LockManager

    def now(self) -> float:
        stepped = self.wall_step if self.world.trusts_wall_clocks else 0.0
        return self._offset + self.world.loop.now * self._rate + stepped

    def wall(self) -> float:
        return EPOCH + self.world.loop.now + self.wall_step

    def connect(self, **options: Any) -> None:
        world = self.world
        self.routes = [Weather(world, self, number) for number in range(len(world.nodes))]
        endpoints = [
            MemoryEndpoint(node.name, node, route)
            for node, route in zip(world.nodes, self.routes, strict=True)
        ]
        settings: dict[str, Any] = {
            "ttl": TTL,
            "max_ttl": TTL,
            "node_timeout": NODE_TIMEOUT,
            "label": self.name,
            **options,
        }
        self.locks = asynclock.connect(*endpoints, **settings)
        engine = self.locks._engine
        if not world.floors:
            nodes = engine.multiplexer
            nodes.floor = _without_floor(nodes.floor)  # type: ignore[method-assign,assignment]  # on purpose
        engine.entropy, engine.random = world.random.randbytes, world.random.random
        for node in engine.multiplexer.nodes:
            node.random = world.random.random

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        return self.world.loop.create_task(work, name=f"{self.name} {name}", context=self.context)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            self.frozen_until = self.world.loop.now
            stash, self.stash = self.stash, []
            self.world.loop.ready.extend(stash)

    def looks(self, lease: asynclock.Lease) -> bool:
        """Whether the process would say at this moment that it holds `lease`."""
        return self.context.copy().run(lambda: lease.held)


class Weather(Route):
    """The network between one process and one node."""

    def __init__(self, world: World, process: Process, number: int) -> None:
        self._world = world
        self._process = process
        self._tag = f"{process.name}{number}".encode()
        self._closed = False
        self._blocked: dict[Stream, None] = {}
        self.slow = 0.0

    def delay(self) -> float:
        chance = self._world.random
        if chance.random() < 0.01:
            return chance.uniform(0.0, 0.4)
        return 0.0002 + chance.expovariate(2000.0) + self.slow * chance.random()

    def admit(self, stream: Stream, data: bytes) -> bool:
        if self._closed:
            self._blocked[stream] = None
            return False
        self._world.note(self._tag, data)
        if self._process.trap is not None and b"\r\nacquire\r\n" in data:
            self._spring(self._process.trap)
        return True

    def _spring(self, seconds: float) -> None:
        process = self._process
        process.trap = None
        self._world.say(f"freeze {process.name} in an attempt")
        process.freeze()
        self._world.loop.call_later(seconds, process.thaw)

    def cut_off(self) -> None:
        self._closed = True

    def heal(self) -> None:
        self._closed, self.slow = False, 0.0
        blocked, self._blocked = self._blocked, {}
        for stream in blocked:
            self._world.loop.call_soon(stream.pump, context=stream.context)


class World:
    """Nodes, processes and the trace of one run."""

    def __init__(
        self, seed: int, *, nodes: int, processes: int, floors: bool, **options: Any
    ) -> None:
        self.random = random.Random(seed)
        self.loop = PausableLoop()
        self.floors = floors
        """Whether fences may be seeded by clocks; without, they are counters and no more."""
        self.trace = 0
        self.log: list[str] = []
        self.nodes = [self._node(number) for number in range(nodes)]
        self.processes = [Process(self, number) for number in range(processes)]
        self.trusts_wall_clocks = options.pop("trusts_wall_clocks", False)
        """A sabotage: the library's clock is the one that people set."""
        self._options = options

    def _node(self, number: int) -> MemoryNode:
        rate = 1 + self.random.uniform(-0.0004, 0.0004)
        offset = self.random.uniform(-0.1, 0.1)
        node = MemoryNode(
            f"n{number}",
            clock=lambda: EPOCH + offset + self.loop.now * rate,
            entropy=self.random.randbytes,
            durable=False,
        )
        node.born_ago(3600.0)
        return node

    def start(self) -> None:
        for process in self.processes:
            process.context.run(functools.partial(process.connect, **self._options))

    def note(self, tag: bytes, data: bytes) -> None:
        """One more piece arrived: part of what makes a run itself."""
        self.trace = zlib.crc32(b"%b %.9f %b" % (tag, self.loop.now, data), self.trace)

    def say(self, text: str) -> None:
        """A line of the story of this run."""
        self.log.append(f"{self.loop.now - 1000:9.4f} {text}")
        self.trace = zlib.crc32(text.encode(), self.trace)

    def lock_keys(self) -> dict[str, list[bytes]]:
        """What is locked, by node."""
        found = {}
        for node in self.nodes:
            node.keys.expire_due()
            keys = [key for key in node.keys.values if not key.endswith(b":fence")]
            if keys:
                found[node.name] = keys
        return found


class PausableLoop(VirtualLoop):
    """Virtual time in which single processes can be stopped, as by SIGSTOP."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: _Ready = _Ready()
        self._ready = self.ready


class _Ready(collections.deque[asyncio.Handle]):
    """The loop's queue; what a stopped process would do next is put aside until it goes on."""

    _skip = asyncio.Handle.__new__(asyncio.Handle)

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = handle._context.get(PROCESS)  # type: ignore[attr-defined]  # since 3.7
        if process is not None and process.frozen:
            process.stash.append(handle)
            return self._skip
        return handle


_Ready._skip._cancelled = True


@contextlib.contextmanager
def clocks_of(world: World) -> Iterator[None]:
    """`_clock` reads the clock of the process that asks."""
    before = _clock.now, _clock.wall
    outside: Callable[[], float] = world.loop.time

    def now() -> float:
        process = PROCESS.get(None)
        return outside() if process is None else process.now()

    def wall() -> float:
        process = PROCESS.get(None)
        return EPOCH + outside() if process is None else process.wall()

    _clock.now, _clock.wall = now, wall
    try:
        yield
    finally:
        _clock.now, _clock.wall = before
