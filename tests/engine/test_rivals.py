"""Rivals for a free name: among calls that don't wait exactly one wins. In virtual time."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

import asynclock
from asynclock._rules.seeking import SETTLING
from asynclock.testing import run_virtual
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import Nodes, Way
from tests.tables import inside
from tests.tables.inside import now
from tests.waiting import in_virtual_time

NODE_TIMEOUT = 0.4
SETTINGS: dict[str, Any] = {"restart_guard": False, "node_timeout": NODE_TIMEOUT}
FAR = NODE_TIMEOUT / 4
"""The longest way to a node: a quarter of the node timeout, and as much back."""
Locks = asynclock.LockManager
KINDS: dict[str, tuple[int, Callable[[Locks, int], Any]]] = {
    "lock": (1, lambda locks, _: locks.lock("a").try_acquire()),
    "lock, timeout 0": (1, lambda locks, _: locks.lock("a").acquire(timeout=0)),
    "fair lock": (1, lambda locks, _: locks.fair_lock("a").try_acquire()),
    "write": (1, lambda locks, _: locks.rwlock("a").write().try_acquire()),
    "several names": (1, lambda locks, _: locks.multi_lock("a", "b").try_acquire()),
    "one permit": (1, lambda locks, _: locks.semaphore("a", 1).try_acquire()),
    "two permits": (2, lambda locks, _: locks.semaphore("a", 2).try_acquire()),
    "five permits": (5, lambda locks, _: locks.semaphore("a", 5).try_acquire()),
    "several permits": (1, lambda locks, _: locks.semaphore("a", 3).several(2).try_acquire()),
    "several permits, timeout 0": (
        1,
        lambda locks, _: locks.semaphore("a", 3).several(2).acquire(timeout=0),
    ),
}
"""How many may win, and the call."""
SHORT: dict[str, tuple[int, Callable[[Locks, int], Any]]] = {
    f"{kind}, timeout {part}": (1, partial(call, timeout=part * NODE_TIMEOUT))
    for part in (0.5, 0.9)
    for kind, call in {
        "lock": lambda locks, _, timeout: locks.lock("a").acquire(timeout=timeout),
        "write": lambda locks, _, timeout: locks.rwlock("a").write().acquire(timeout=timeout),
    }.items()
}
"""Timeouts below one node timeout: the second attempt begins or ends after them."""


def near_one(number: int, nodes: int, _chance: random.Random) -> list[float]:
    """Each client has one node beside it, as in zones."""
    return [0.0 if index == number % nodes else FAR for index in range(nodes)]


def anywhere(_number: int, nodes: int, chance: random.Random) -> list[float]:
    return [chance.choice((0.0, chance.uniform(0, FAR), FAR)) for _ in range(nodes)]


async def race(
    size: int,
    rivals: int,
    call: Callable[[Locks, int], Any],
    delays: Callable[[int, int, random.Random], list[float]] = near_one,
    *,
    seed: int = 0,
    fail: str = "",
    stop: Callable[[asyncio.Task[Any], Locks], Any] | None = None,
) -> tuple[int, float]:
    """Let all rivals try; return how many have won, and how long the last one took."""
    chance = random.Random(seed)
    nodes = [MemoryNode(str(index)) for index in range(size)]
    async with AsyncExitStack() as stack:
        clients = []
        for number in range(rivals):
            ways = [Way() for _ in nodes]
            locks = await stack.enter_async_context(Nodes(nodes, ways).connect(**SETTINGS))
            inside.seed(locks, seed * 100 + number)
            await locks.ready()
            for way, seconds in zip(ways, delays(number, size, chance), strict=True):
                way.seconds = seconds
            clients.append(locks)
        if fail:
            getattr(nodes[-1], fail)()
        began = now()

        async def ask(number: int, locks: Locks) -> Any:
            return await call(locks, number)

        calls = [asyncio.create_task(ask(*one)) for one in enumerate(clients)]
        if stop is not None:
            await asyncio.sleep(chance.uniform(0, 2 * NODE_TIMEOUT))
            await stop(calls[-1], clients[-1])
            await asyncio.wait(calls)
            if calls[-1].cancelled() or calls[-1].exception() is not None:
                calls.pop()
        found = await asyncio.gather(*calls, return_exceptions=True)
        took = now() - began
        errors = [one for one in found if isinstance(one, Exception)]
        assert all(isinstance(one, asynclock.NotAcquiredError) for one in errors), errors
        won = [one for one in found if one is not None and one not in errors]
        for one in won:
            await one.release()
    for node in nodes[: -1 if fail else None]:
        keys = await node.command("KEYS", "*:#*")
        left = [key for key in keys if not key.endswith("#fence")]
        assert not left, "nobody waits any more"
    return len(won), took


def nearer(*which: Any, delays: Callable[..., list[float]]) -> list[float]:
    """Half as far: rivals get permits one after the other, which takes time."""
    return [seconds / 2 for seconds in delays(*which)]


AT_NIGHT = [pytest.param(*one, marks=pytest.mark.nightly) for one in ((5, ""), (3, "kill"))]


@pytest.mark.parametrize(("size", "fail"), [(3, ""), (4, "kill"), (5, "freeze"), *AT_NIGHT])
@pytest.mark.parametrize("kind", KINDS)
def test_of_rivals_that_try_at_once_one_wins(kind: str, size: int, fail: str) -> None:
    """Whatever the latencies, up to a quarter of the node timeout."""
    most, call = KINDS[kind]
    answer = kind.startswith("several permits")  # they may take one more
    for seed, (rivals, delays) in enumerate(
        [(size, near_one), (3, anywhere), (5, anywhere), (6, anywhere), (6, near_one)]
    ):
        ways = partial(nearer, delays=delays) if most > 1 else delays
        won, took = run_virtual(race(size, rivals, call, ways, seed=seed, fail=fail))
        assert won == min(most, rivals), f"seed {seed}"
        assert took <= (SETTLING + answer) * NODE_TIMEOUT + 0.001


@pytest.mark.parametrize(
    ("size", "fail", "delays"),
    [(3, "", near_one), (4, "kill", near_one), (4, "kill", anywhere), (1, "", lambda *_: [FAR])],
)
def test_rivals_that_wait_soon_have_all_permits(size: int, fail: str, delays: Any) -> None:
    """Those that hop don't split vote after vote; those that needn't wait don't queue."""
    rivals, permits = (6, 5) if size > 1 else (60, 64)

    def wait(locks: Locks, _: int) -> Any:
        return locks.semaphore("a", permits).acquire(timeout=7 * NODE_TIMEOUT)

    for seed in (21, 46, 56, 57):
        won, _ = run_virtual(race(size, rivals, wait, delays, seed=seed, fail=fail))
        assert won == min(rivals, permits), f"seed {seed}"


@pytest.mark.parametrize("kind", SHORT)
def test_rivals_with_a_short_timeout_have_the_time_to_settle(kind: str) -> None:
    """Some races have no winner, as two may give way to each other when their time ends."""
    most, call = SHORT[kind]
    races = [run_virtual(race(3, 3, call, near_one, seed=seed)) for seed in range(6)]
    assert sum(won for won, _ in races) >= 3 * most


async def cancel(call: asyncio.Task[Any], _locks: Locks) -> None:
    call.cancel()


async def close(_call: asyncio.Task[Any], locks: Locks) -> None:
    await locks.aclose()


@pytest.mark.parametrize("stop", [cancel, close])
def test_a_rival_that_is_stopped_leaves_the_name_to_the_others(stop: Any) -> None:
    """Whether it asks, pauses, or has won at that moment: then another one may win after it."""
    _, call = KINDS["lock"]
    for seed in range(20):
        won, took = run_virtual(race(3, 4, call, anywhere, seed=seed, stop=stop))
        assert won >= 1, f"seed {seed}"
        assert took <= SETTLING * NODE_TIMEOUT + 0.001


MIXED: dict[str, Callable[[Locks, int], Any]] = {
    "readers and writers": lambda locks, number: (
        locks.rwlock("a").read() if number % 2 else locks.rwlock("a").write()
    ).try_acquire(),
    "names in a ring": lambda locks, number: locks.multi_lock(
        "abc"[number % 3], "abc"[(number + 1) % 3]
    ).try_acquire(),
    "one name and several": lambda locks, number: (
        locks.multi_lock("a", "b") if number % 2 else locks.lock("a")
    ).try_acquire(),
    "one permit and several": lambda locks, number: (
        locks.semaphore("a", 3).several(2) if number % 2 else locks.semaphore("a", 3)
    ).try_acquire(),
}


@pytest.mark.parametrize(("size", "fail"), [(3, ""), (5, "kill")])
@pytest.mark.parametrize("kind", MIXED)
def test_of_rivals_of_several_sorts_at_least_one_wins(kind: str, size: int, fail: str) -> None:
    for seed, delays in enumerate((near_one, anywhere, anywhere)):
        won, took = run_virtual(race(size, 5, MIXED[kind], delays, seed=seed, fail=fail))
        assert won >= 1, f"seed {seed}"
        steps = 2 if kind == "one permit and several" else 1  # each of two permits is settled
        assert took <= (steps * SETTLING + 1) * NODE_TIMEOUT + 0.001


@contextlib.asynccontextmanager
async def two(size: int, *, seed: int, far: bool) -> AsyncIterator[tuple[Locks, Locks]]:
    """Two managers that have met the nodes; the second one may be far away."""
    nodes = [MemoryNode(str(index)) for index in range(size)]
    ways = [Way() for _ in nodes]
    near = Nodes(nodes, [Way() for _ in nodes])
    async with near.connect(**SETTINGS) as first, Nodes(nodes, ways).connect(**SETTINGS) as second:
        for number, locks in enumerate((first, second)):
            inside.seed(locks, 2 * seed + number)
            await locks.ready()
        for way in ways:
            way.seconds = FAR if far else 0.0
        yield first, second
        for way in ways:
            way.seconds = 0.0


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_a_name_that_is_held_is_refused_after_one_round_trip(kind: str, size: int) -> None:
    for seed in range(SEEDS.get(kind, 1)):
        async with two(size, seed=seed, far=True) as (holder, locks):
            held = [await KINDS[kind][1](holder, 0) for _ in range(KINDS[kind][0])]
            began = now()
            assert await locks.lock("other").try_acquire()
            trip = now() - began
            began = now()
            try:
                assert await KINDS[kind][1](locks, 1) is None
            except asynclock.AcquireTimeoutError:
                assert "timeout" in kind
            # Of several slots each is looked at.
            trips = {"two permits": 2, "several permits": 4}.get(kind.partition(",")[0], 1)
            assert now() - began <= trips * trip + 0.001
            assert all(held)


SEEDS = {"two permits": 4, "several permits": 8}
"""The number of plays where it is drawn which slot is asked for first."""
AT_ONCE: dict[str, Callable[[Any], Any]] = {
    "try": lambda wish: wish.try_acquire(),
    "timeout 0": lambda wish: wish.acquire(timeout=0),
}
at_once = pytest.mark.parametrize("call", AT_ONCE)


@at_once
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(("size", "permits"), [(1, 2), (3, 2), (5, 2), (1, 200)])
@in_virtual_time
async def test_a_try_for_a_taken_slot_has_the_time_to_take_the_free_one(
    size: int, permits: int, call: str, *, far: bool
) -> None:
    """Of 200 slots one refusal reports on 64 only."""
    for seed in range(6 if permits == 2 else 2):
        async with two(size, seed=seed, far=far) as (holder, locks):
            assert await holder.semaphore("a", permits).several(permits - 1).try_acquire()
            assert await AT_ONCE[call](locks.semaphore("a", permits))


@at_once
def test_two_that_ask_for_the_same_slot_both_get_one(call: str) -> None:
    def ask(locks: Locks, _: int) -> Any:
        return AT_ONCE[call](locks.semaphore("a", 3))

    for seed in range(6):
        won, _ = run_virtual(race(3, 2, ask, fail="kill", seed=seed))
        assert won == 2, f"seed {seed}"


@at_once
@in_virtual_time
async def test_tasks_of_one_process_that_try_at_once_get_all_permits(call: str) -> None:
    async with two(3, seed=0, far=True) as (_, locks):
        calls = [AT_ONCE[call](locks.semaphore("a", 3)) for _ in range(4)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, asynclock.Lease) for one in found) == 3


@at_once
@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("permits", [3, 12])
@in_virtual_time
async def test_several_free_permits_are_taken_from_afar(
    permits: int, taken: int, call: str
) -> None:
    for seed in range(4):
        async with two(3, seed=seed, far=True) as (holder, locks):
            for _ in range(taken):
                assert await holder.semaphore("a", permits + taken).try_acquire()
            wish = locks.semaphore("a", permits + taken).several(permits)
            began = now()
            lease = await AT_ONCE[call](wish)
            assert lease is not None
            assert len(lease.fences) == permits
            if not taken:  # one round trip for each, and two for the turn to collect them
                assert now() - began <= (permits + 2) * 2 * FAR + 0.001
