"""Three nodes in memory and a manager that has met them, in virtual time."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import asynclock
from asynclock.events import Event, Observers
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode, Route, Stream
from asynclock.testing.memory.commands import ReplyError
from tests.tables.inside import now, unfinished
from tests.waiting import go_through, until

KEY, COUNTER = b"asynclock:a", b"asynclock:a:#fence"
TTL, NODE_TIMEOUT = 10.0, 1.0
VALID = TTL * 0.99 - 0.002
PATIENCE = 2.0
"""Seconds after which a waiter that died is passed over, as docs/guarantees.md promises."""
GONE = "the nodes no longer held it for us when it was released"
"""The reason of a loss that only the replies to the release show."""
UNNOTICED = "its time ran out while the event loop was busy or the machine slept"
LONGEST = 2 * 3600.0
"""Maximum seconds of a scenario: one that waits for what never happens fails, and does not hang."""


class Way(Route):
    """The way between the manager and one node."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long each piece takes from now on."""
        self.streams: set[Stream] = set()
        self.mute: set[Stream] = set()
        """Connections through which nothing gets any more, and no end either."""

    def delay(self) -> float:
        return self.seconds

    def admit(self, stream: Stream, data: bytes) -> bool:
        self.streams.add(stream)
        return stream not in self.mute

    def go_mute(self) -> None:
        """Let nothing through on the connections that are open now."""
        self.mute |= self.streams


@dataclass
class Nodes:
    """Old nodes, each with a way of its own to it."""

    nodes: list[MemoryNode] = field(default_factory=lambda: [MemoryNode(name) for name in "abc"])
    ways: list[Way] = field(default_factory=lambda: [Way() for _ in "abc"])
    locks: asynclock.LockManager = field(init=False)

    def connect(self, **settings: Any) -> asynclock.LockManager:
        """Another manager; each of its connections takes the same ways."""
        pairs = zip(self.nodes, self.ways, strict=True)
        places: list[Any] = [MemoryEndpoint(node.name, node, way) for node, way in pairs]
        usual = {"ttl": TTL, "max_ttl": TTL, "node_timeout": NODE_TIMEOUT}
        return asynclock.connect(*places, **{**usual, **settings})

    def slow(self, seconds: float) -> None:
        """Let each piece take so long, on all ways."""
        for way in self.ways:
            way.seconds = seconds

    def go_mute(self) -> None:
        for way in self.ways:
            way.go_mute()

    def some(self, names: str) -> list[MemoryNode]:
        return [node for node in self.nodes if node.name in names]

    def freeze(self, names: str = "abcd") -> None:
        for node in self.some(names):
            node.freeze()

    def thaw(self, names: str = "abcd") -> None:
        for node in self.some(names):
            node.thaw()

    def kill(self, names: str = "abcd") -> None:
        for node in self.some(names):
            node.kill()

    async def command(self, *words: Any, only: str = "abcd") -> None:
        """Say the same to all nodes, or to some."""
        for node in self.some(only):
            await node.command(*words)

    async def ghost(self, owner: str = "ghost", *, ttl: float = 60.0, only: str = "abc") -> None:
        """Give the name to an owner that never renews."""
        await self.command("SET", KEY, owner, "PX", int(ttl * 1000), only=only)


Scenario = Callable[..., Coroutine[Any, Any, None]]
"""What happens on nodes; what else it takes are parameters of the test."""


def old(names: str) -> Nodes:
    """Return nodes that have run for an hour."""
    on = Nodes([MemoryNode(name) for name in names], [Way() for _ in names])
    for node in on.nodes:
        node.born_ago(3600)
    return on


def virtual(scenario: Scenario) -> Callable[..., None]:
    """Make a test that plays `scenario` once the manager has met its three nodes."""
    return _test(scenario, "abc")


def virtual_four(scenario: Scenario) -> Callable[..., None]:
    """Make the same test on four nodes, which two rivals can split."""
    return _test(scenario, "abcd")


def virtual_single(scenario: Scenario, **settings: Any) -> Callable[..., None]:
    """Make the same test on a single node."""
    return _test(scenario, "a", **settings)


def _test(scenario: Scenario, names: str, **settings: Any) -> Callable[..., None]:
    async def play(given: dict[str, Any]) -> None:
        on = old(names)
        async with asyncio.timeout(LONGEST), on.connect(**settings) as on.locks:
            await go_through(on.locks.lock("warm"))
            locks = on.locks
            await scenario(on, **given)
            on.slow(0.0)
        assert unfinished(locks) == (0, [])

    return as_test(scenario, play)


def as_test(
    scenario: Scenario, play: Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
) -> Callable[..., None]:
    """Make a test of what `play` does with the parameters of `scenario` behind the first one."""
    tell, unheard = Observers.__call__, list[Event]()

    def told(observers: Observers, event: Event) -> None:
        unheard.extend(() if observers else (event,))
        tell(observers, event)

    def test(**given: Any) -> None:
        with mock.patch.object(Observers, "__call__", told):
            run_virtual(play(given))
        assert not unheard, "no event is made where nobody observes"

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    _, *parameters = inspect.signature(scenario).parameters.values()
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test


def instead(node: MemoryNode, reply: Callable[[Any], object]) -> None:
    """Let `reply` see each command first; what it returns is the node's reply, if not None."""
    answer = node.answer

    def changed(client: Any, words: Any) -> Any:
        return answer(client, words) if (found := reply(words)) is None else found

    node.answer = changed  # type: ignore[method-assign]


def refuse_tracking(nodes: list[MemoryNode]) -> None:
    """Let the nodes push nothing to those who connect from now on."""

    def refuse(words: Any) -> Any:
        tracking = [word.upper() for word in words[:2]] == [b"CLIENT", b"TRACKING"]
        return ReplyError("NOPERM no tracking") if tracking else None

    for node in nodes:
        instead(node, refuse)


async def seconds_until(condition: Callable[[], object], timeout: float = 60.0) -> float:
    """Wait for `condition`, to the millisecond; return the seconds that it took."""
    began = now()
    await until(condition, timeout=timeout, every=0.001)
    return now() - began


def start(wish: Any) -> asyncio.Task[Any]:
    """Begin to acquire in a task of its own."""

    async def acquire() -> Any:
        return await wish

    return asyncio.create_task(acquire())
