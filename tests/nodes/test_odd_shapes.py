"""A reply of a shape that its command never has is a Failure of its node, and of nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asynclock
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from tests.engine.kinds import Make, kinds

NOW = 1000
"""No clock of a server: such a one would be a jump."""
ODD: dict[str, Any] = {
    "nothing": None,
    "number": 1,
    "text": b"OK",
    "empty": [],
    "short": [1],
    "short refusal": [0],
    "none granted": [1, None, b"", NOW],
    "fence is a text": [1, b"7", b"", NOW],
    "fence is a list": [1, [], b"x", NOW],
    "fence is too high": [1, 2**53, b"", NOW],
    "fence is negative": [1, -1, b"", NOW],
    "value is a number": [1, 9007199254740000, 7, 100, NOW],
    "number is a list": [1, [], b"x", 100, NOW],
    "holder is a number": [7, 5, 5, NOW],
    "refused by a number": [0, 100, 5, 1, 0, 0, NOW],
    "refused for a text": [0, b"100", b"x", 1, 0, 0, NOW],
    "long": [0, 100, b"x", 1, 0, 0, b"1", [], 5, 5, NOW],
    "marks are numbers": [[1], NOW],
    "too many marks": [b"1111111", NOW],
    "rows of numbers": [[1], [2]],
    "rows of rows": [[[b"x", b"nan", b"go"]], [[1, 2, 3]]],
    "a page without end": [0, b"x"],
    "nested": [[[[[1]]]]],
}
HUGE = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**53, NOW])
RESP = st.recursive(
    st.none() | HUGE | st.binary(max_size=8), lambda one: st.lists(one, max_size=8), max_leaves=12
)


class OddNode(MemoryNode):
    """Its replies to scripts, and to commands that read keys, can be replaced."""

    odd: Any = ...

    def answer(self, client: Any, words: tuple[bytes, ...]) -> Any:
        reply = super().answer(client, words)
        asked = words[0].upper() in (b"EVAL", b"EVALSHA", b"MGET", b"SCAN")
        return self.odd if self.odd is not ... and client is not None and asked else reply


class Held:
    """A manager, and what it holds before a node turns odd."""

    def __init__(self, locks: asynclock.LockManager) -> None:
        self.locks = locks

    async def prepare(self) -> None:
        self.lease = await self.locks.lock("held", ttl=15).acquire()
        self.reader = await self.locks.rwlock("both", ttl=15).read().acquire()
        self.writer = await self.locks.rwlock("other", ttl=15).write().acquire()
        self.term = await self.locks.election("led", ttl=15).campaign("value")
        await self.locks.event("set").set()
        await asyncio.sleep(1)


async def first(found: Any) -> Any:
    return await anext(found, None)


TAKE = kinds("semaphore")


def taking(make: Make) -> Callable[[Held], Awaitable[Any]]:
    async def take(on: Held) -> None:
        async with make(on.locks).acquire(timeout=5) as lease:
            await lease.extend()

    return take


async def gathered(on: Held) -> None:
    """Several names in one command."""
    leases = await asyncio.gather(*(on.locks.lock(one).acquire(timeout=5) for one in "xyz"))
    await asyncio.gather(*(lease.release() for lease in leases))


CALLS: dict[str, Callable[[Held], Awaitable[Any]]] = {
    **{kind: taking(make) for kind, make in TAKE.items()},
    "gathered": gathered,
    "try_acquire": lambda on: on.locks.lock("a").try_acquire(),
    "campaign": lambda on: on.locks.election("e").campaign(timeout=5),
    "upgrade": lambda on: on.locks.rwlock("both").upgrade(on.reader, timeout=5),
    "downgrade": lambda on: on.locks.rwlock("other").downgrade(on.writer),
    "extend": lambda on: on.lease.extend(),
    "check": lambda on: on.lease.check(),
    "is_set": lambda on: on.locks.event("set").is_set(timeout=5),
    "set": lambda on: on.locks.event("e").set(timeout=5),
    "clear": lambda on: on.locks.event("set").clear(timeout=5),
    "wait": lambda on: on.locks.event("set").wait(timeout=5),
    "count_down": lambda on: on.locks.latch("l", 2).count_down(timeout=5),
    "remaining": lambda on: on.locks.latch("l", 2).remaining(timeout=5),
    "wait for a latch": lambda on: on.locks.latch("l", 2).wait(timeout=5),
    "barrier": lambda on: on.locks.barrier("b", 1).wait(timeout=5),
    "waiting": lambda on: on.locks.barrier("b", 2).waiting(timeout=5),
    "abort": lambda on: on.locks.barrier("b", 2).abort(timeout=5),
    "reset": lambda on: on.locks.barrier("b", 2).reset(timeout=5),
    "broken": lambda on: on.locks.barrier("b", 2).broken(timeout=5),
    "inspect_all": lambda on: first(on.locks.inspect_all()),
}
"""Calls that need a quorum."""
TOLD: dict[str, Callable[[Held], Awaitable[Any]]] = {
    "release": lambda on: on.lease.release(),
    "publish": lambda on: on.term.publish("news"),
    "leader": lambda on: on.locks.election("led").leader(),
    "inspect": lambda on: on.locks.inspect("held"),
    "inspect readers": lambda on: on.locks.rwlock("both").inspect(),
    "inspect slots": lambda on: on.locks.semaphore("s", 2).inspect(),
    "inspect an election": lambda on: on.locks.election("led").inspect(),
    "inspect an event": lambda on: on.locks.event("set").inspect(),
    "inspect a latch": lambda on: on.locks.latch("l", 2).inspect(),
    "inspect a barrier": lambda on: on.locks.barrier("b", 2).inspect(),
}
"""Calls whose result says what the nodes that answered say."""


def play(size: int, odd: Any, call: str | Callable[[Held], Awaitable[Any]]) -> Any:
    """Return what the call returns, or the error that it raises, if the first node is odd."""

    wanted = {**CALLS, **TOLD}[call] if isinstance(call, str) else call

    async def scenario() -> Any:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: errors.append(found))
        nodes = [OddNode(name) for name in "abc"[:size]]
        for node in nodes:
            node.born_ago(3600)
        places: list[Any] = [MemoryEndpoint(node.name, node) for node in nodes]
        async with asynclock.connect(*places, ttl=5, max_ttl=60, node_timeout=0.25) as locks:
            on = Held(locks)
            if call not in TAKE:
                await on.prepare()
            nodes[0].odd = odd
            try:
                async with asyncio.timeout(300):
                    found: Any = await wanted(on)
            except asynclock.AsyncLockError as error:
                found = error
            await asyncio.sleep(1)
            nodes[0].odd = ...
        assert not errors, errors
        return found

    return run_virtual(scenario())


each = pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.nightly)])


def some(call: str, each: int) -> list[tuple[str, Any]]:
    """Every n-th shape: by day every call meets some, and every shape some calls."""
    return list(ODD.items())[[*CALLS, *TOLD].index(call) % each :: each]


@each
@pytest.mark.parametrize("call", [*CALLS, *TOLD])
def test_two_good_nodes_are_enough(call: str, each: int) -> None:
    for shape, odd in some(call, each):
        found = play(3, odd, call)
        assert not isinstance(found, Exception), (shape, found)


@each
@pytest.mark.parametrize("call", CALLS)
def test_a_single_node_is_named(call: str, each: int) -> None:
    for shape, odd in some(call, each):
        found = play(1, odd, call)
        assert isinstance(found, asynclock.AsyncLockError), (shape, found)
        nodes = getattr(found, "nodes", {})
        assert "memory://a" in nodes or "memory://a" in str(found), (shape, found)


def test_a_lease_is_given_up_whatever_its_node_replies() -> None:
    async def given_up(on: Held) -> bool:
        await on.lease.release()
        return on.lease.held

    for shape, odd in ODD.items():
        assert play(1, odd, given_up) is False, shape


@pytest.mark.parametrize("call", [one for one in TOLD if one.startswith("inspect")])
def test_an_inspection_says_which_node_is_odd(call: str) -> None:
    promise = [0, 5, NOW]
    for odd in (ODD["text"], promise):
        found = play(3, odd, call)
        views = [part.nodes[0] for part in (found, *found.parts)]
        assert all("unexpected form" in view.error for view in views)


@given(odd=RESP, call=st.sampled_from([*CALLS, *TOLD]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_reply_of_one_node_is_survived(odd: Any, call: str) -> None:
    found = play(3, odd, call)
    assert not isinstance(found, Exception) or isinstance(found, asynclock.AsyncLockError)
