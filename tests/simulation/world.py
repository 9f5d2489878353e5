"""A world in one process: clients, nodes, a network between them, and time that jumps when idle.

Everything of the library is real but the socket; every random number comes from one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import re
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import asynclock
from asynclock import _clock, _process
from asynclock._engine import renewal
from asynclock._engine.grant import Reservation
from asynclock._engine.seek import Seek
from asynclock._nodes import link
from asynclock._nodes.multiplexer import Multiplexer
from asynclock._nodes.server import ServerNode
from asynclock._nodes.wire import Command, Sink
from asynclock.testing.memory import MemoryEndpoint, MemoryNode, Route, Stream
from asynclock.testing.memory.commands import SortedSet
from tests.simulation.loop import RUNNING, Call, SimulatedLoop

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

    def heal(self) -> None:
        """Let everything through, what waits first."""
        self._closed = self._mute = False
        self.slow = 0.0
        blocked, self._blocked = self._blocked, {}
        for stream in blocked:
            self._world.loop.call_soon(stream.pump, context=stream.context)


EPOCH = 1_700_000_000.0
TTL = 2.0
NODE_TIMEOUT = 0.25
Trap = Callable[[Weather, Stream], None]
_OWNER = re.compile(rb"[0-9a-f]{32}:")


@dataclass(frozen=True)
class Nature:
    """What a world is like, apart from what is done to it."""

    nodes: int
    processes: int
    floors: bool = True
    """Whether fences may be seeded by clocks; without, they are counters and no more."""
    drift: float = 0.0004
    """How much faster or slower than true time a clock may run."""
    late: float = 0.4
    """Seconds that one piece in a hundred is late, at most."""
    trusts_wall_clocks: bool = False
    """A sabotage: the library's clock is the one that people set."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of `connect`."""


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
        self.stopped = False
        self.on_left: Callable[[], None] | None = None
        """Called once, when a task of the process has left a body."""
        self.frozen_until = 0.0
        """Since when it runs undisturbed."""
        self.stood_still_until = float("-inf")
        """When its clock went on after it had last stood still."""
        self.wall_step = 0.0
        """By how much its wall clock is wrong."""
        drift = world.nature.drift
        self._rate = 1 + world.random.uniform(-drift, drift)
        self._offset = world.random.uniform(0, 1000)
        self.context = contextvars.copy_context()
        self.context.run(RUNNING.set, self)
        self.traps: dict[bytes, Trap] = {}
        """What happens when its next request of a kind has arrived at a node."""
        self.stash: list[Call] = []
        self.routes: list[Weather] = []
        self.managers: list[asynclock.LockManager] = []
        """All that it has opened and not closed."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """What it does at this moment."""
        self.locks: asynclock.LockManager

    def now(self) -> float:
        stepped = self.wall_step if self.world.nature.trusts_wall_clocks else 0.0
        return self._offset + self.world.loop.now * self._rate + stepped

    def wall(self) -> float:
        return EPOCH + self.world.loop.now + self.wall_step

    def start(self) -> None:
        self.routes = [Weather(self.world, self, n) for n in range(len(self.world.nodes))]
        self.locks = self.connect(self.name)

    def connect(self, label: str, **settings: Any) -> asynclock.LockManager:
        """One more manager, over the same network."""
        world = self.world
        endpoints = [
            MemoryEndpoint(node.name, node, route)
            for node, route in zip(world.nodes, self.routes, strict=True)
        ]
        options: dict[str, Any] = {
            "ttl": TTL,
            "max_ttl": TTL,
            "node_timeout": NODE_TIMEOUT,
            "label": label,
            **world.nature.settings,
            **settings,
        }
        locks = asynclock.connect(*endpoints, **options)
        engine = locks._engine
        if not world.nature.floors:
            nodes = engine.multiplexer
            nodes.fence_floor = _without_floor(nodes.fence_floor)  # type: ignore[method-assign,assignment]  # on purpose
        engine.owners.entropy, engine.random = world.random.randbytes, world.random.random
        self._note_requests(engine.multiplexer)
        for node in engine.multiplexer.nodes:
            node.random = world.random.random
            if isinstance(node, ServerNode):
                node.entropy = world.random.randbytes
        self.managers.append(locks)
        return locks

    def _note_requests(self, nodes: Multiplexer) -> None:
        deliver, broadcast, world = nodes.deliver, nodes.broadcast, self.world

        def note_releases(command: Command, sink: Sink, indices: Sequence[int]) -> None:
            if command.op == "release":  # a ticket may have the id of an owner that has won
                world.given_up.setdefault(str(command.owner).encode(), world.loop.now)
            deliver(command, sink, indices)

        def count_reservations(command: Command, sink: Sink, *, arm: bool = False) -> None:
            world.counts["reservations"] += isinstance(sink, Reservation)
            broadcast(command, sink, arm=arm)

        nodes.deliver = note_releases  # type: ignore[method-assign]  # on purpose
        nodes.broadcast = count_reservations  # type: ignore[method-assign]

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = self.world.loop.create_task(
            work, name=f"{self.name} {name}", context=self.context.copy()
        )
        return self._noted(task)

    def spawn_inside(self, work: Any, name: str) -> asyncio.Task[Any]:
        """A task of the task that runs: it inherits that one's context."""
        return self._noted(self.world.loop.create_task(work, name=f"{self.name} {name}"))

    def _noted(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        return task

    def freeze(self) -> None:
        self.stopped = True

    def thaw(self) -> None:
        if self.stopped:
            self.stopped = False
            self.frozen_until = self.world.loop.now
            stash, self.stash = self.stash, []
            self.world.loop.ready.extend(stash)

    def lose_time(self, seconds: float) -> None:
        """Have its clock stand behind by so much more, as after a pause that it did not count."""
        self._offset -= seconds * self._rate
        self.stood_still_until = self.world.loop.now

    def looks(self, lease: asynclock.Lease) -> bool:
        """Whether the process would say at this moment that it holds `lease`."""
        return self.context.copy().run(lambda: lease.held)


class World:
    """Nodes, processes and the trace of one run."""

    def __init__(self, seed: int, nature: Nature) -> None:
        self.random = random.Random(seed)
        self.loop = SimulatedLoop()
        self.nature = nature
        self.trace = 0
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        """How often each thing took place that only the world sees."""
        self.given_up: dict[Any, float] = {}
        """When each owner's first release was sent: nothing is asked for it later."""
        self.settled: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        """The tasks that have asked again after a split vote, since `obtain` last began."""
        self.nodes = [self._node(number) for number in range(nature.nodes)]
        self.processes = [Process(self, number) for number in range(nature.processes)]

    def _node(self, number: int) -> MemoryNode:
        rate = 1 + self.random.uniform(-self.nature.drift, self.nature.drift)
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
            process.context.run(process.start)

    def note(self, tag: bytes, data: bytes) -> None:
        """One more piece arrived: part of what makes a run itself."""
        self.trace = zlib.crc32(data, zlib.crc32(b"%b %.9f" % (tag, self.loop.now), self.trace))

    def say(self, text: str) -> None:
        """A line of the story of this run."""
        self.log.append(f"{self.loop.now - 1000:9.4f} {text}")
        self.trace = zlib.crc32(text.encode(), self.trace)

    def lock_keys(self) -> dict[str, list[bytes]]:
        """What is locked, by node: the keys that name an owner."""
        found = {}
        for node in self.nodes:
            node.keys.expire_due()
            now = node.keys.now()
            keys = [key for key, value in node.keys.values.items() if names_owner(value, now)]
            if keys:
                found[node.name] = keys
        return found

    def owners(self, number: int, key: bytes) -> list[bytes]:
        """Return the owner of a lock's key on a node."""
        keys = self.nodes[number].keys
        value = keys.get(key)
        if isinstance(value, SortedSet):
            now = keys.now()
            return [owner for owner, expiry in value.items() if expiry > now]
        return [value] if isinstance(value, bytes) else []


def names_owner(value: Any, now: int) -> bool:
    """Return whether a key with this value locks a name or keeps others out."""
    if isinstance(value, SortedSet):
        return any(expiry > now for expiry in value.values())
    return isinstance(value, bytes) and _OWNER.match(value) is not None


def _own_context() -> contextvars.Context:
    """A context with nothing in it but whose code runs."""
    context = contextvars.Context()
    process = RUNNING.get(None)
    if process is not None:
        context.run(RUNNING.set, process)
    return context


@contextlib.contextmanager
def played_in(world: World) -> Iterator[None]:
    """`_clock` reads the clock of the process that asks; what a manager starts is its process's."""
    loop = world.loop

    def now() -> float:
        process = RUNNING.get(None)
        return loop.now if process is None else process.now()  # type: ignore[attr-defined]

    def wall() -> float:
        process = RUNNING.get(None)
        return EPOCH + loop.now if process is None else process.wall()  # type: ignore[attr-defined]

    settle = Seek._settle

    async def note_split(seek: Seek) -> None:
        await settle(seek)
        task = asyncio.current_task()
        if task is not None:
            world.settled.add(task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seek, "_settle", note_split)
        patch.setattr(_clock, "now", now)
        patch.setattr(_clock, "wall", wall)
        for module in (_process, link, renewal):
            patch.setattr(module, "Context", _own_context)
        yield
