"""How long `ready` waits, and that no call waits for votes that can't come in its time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import asynclock
from asynclock._rules.validity import quarantine
from asynclock.testing.memory import MemoryNode
from tests.engine.virtual_nodes import (
    NODE_TIMEOUT,
    TTL,
    Nodes,
    as_test,
    seconds_until,
    start,
    virtual,
)
from tests.tables.inside import now
from tests.waiting import go_through, in_virtual_time

D = quarantine(TTL)


def fresh(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Any:
    """Make a test that plays `scenario` on three nodes that started this moment."""

    async def play(given: dict[str, Any]) -> None:
        on = Nodes()
        async with on.connect() as on.locks:
            await scenario(on, **given)

    return as_test(scenario, play)


async def failing(call: Awaitable[Any]) -> tuple[float, asynclock.QuorumUnavailableError]:
    """Return the seconds that `call` took to fail for lack of votes, and its error."""
    began = now()
    with pytest.raises(asynclock.QuorumUnavailableError) as failed:
        await call
    return now() - began, failed.value


CALLS: dict[str, Callable[[asynclock.LockManager], Awaitable[Any]]] = {
    "lock": lambda locks: locks.lock("a").acquire(timeout=5),
    "semaphore": lambda locks: locks.semaphore("a", 2).acquire(timeout=5),
    "multi_lock": lambda locks: locks.multi_lock("a", "b").acquire(timeout=5),
    "election": lambda locks: locks.election("a").campaign("me", timeout=5),
    "event": lambda locks: locks.event("a").set(timeout=5),
    "once": lambda locks: locks.once("a", timeout=5).acquire(),
    "latch": lambda locks: locks.latch("a", 1).wait(timeout=5),
    "ready": lambda locks: locks.ready(voting=True, timeout=5),
}


@pytest.mark.parametrize("call", CALLS)
@fresh
async def test_a_quarantine_longer_than_the_timeout_fails_at_once(on: Nodes, call: str) -> None:
    took, error = await failing(CALLS[call](on.locks))
    assert took < NODE_TIMEOUT
    assert error.retry_after == pytest.approx(D, abs=0.1)
    assert all("votes in 10.1 s" in cause for cause in error.nodes.values()), error


@fresh
async def test_a_timeout_longer_than_the_quarantine_gets_the_lock(on: Nodes) -> None:
    began = now()
    async with on.locks.lock("a", timeout=D + 1):
        assert D - 0.1 < now() - began < D + 1


@fresh
async def test_one_node_in_quarantine_is_not_waited_for(on: Nodes) -> None:
    await on.locks.ready(voting=True)
    on.nodes[0].restart()
    await go_through(on.locks.lock("a", timeout=1))


@fresh
async def test_ready_waits_until_the_moment_at_which_a_quorum_votes(on: Nodes) -> None:
    began = now()
    await on.locks.ready(voting=True)
    assert now() - began == pytest.approx(D, abs=0.1)
    assert await on.locks.lock("a").try_acquire()


@virtual
async def test_ready_returns_at_once_where_a_quorum_votes(on: Nodes) -> None:
    on.nodes[0].kill()
    began = now()
    await on.locks.ready(voting=True, timeout=0)
    assert now() == began


@virtual
async def test_ready_says_why_no_quorum_votes(on: Nodes) -> None:
    on.kill("ab")
    await asyncio.sleep(0.01)  # the breaks are noticed
    took, error = await failing(on.locks.ready(voting=True, timeout=2))
    assert took == pytest.approx(2, abs=0.01)
    assert sorted(error.nodes) == ["memory://a", "memory://b"]


@virtual
async def test_ready_without_a_timeout_has_a_bound(on: Nodes) -> None:
    on.kill()
    await asyncio.sleep(0.01)
    took, _ = await failing(on.locks.ready(voting=True))
    assert took == pytest.approx(D + 3, abs=0.01)


@virtual
async def test_ready_goes_on_the_moment_a_node_is_back(on: Nodes) -> None:
    on.freeze("ab")
    manager = on.connect(restart_guard=False)
    waiting = start(manager.ready(voting=True))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    on.nodes[0].thaw()
    assert await seconds_until(waiting.done) < 0.002
    await waiting
    await manager.aclose()


@virtual
async def test_after_a_long_outage_a_node_is_met_within_two_seconds(on: Nodes) -> None:
    async with on.connect(node_timeout=30, ttl=300, max_ttl=300, restart_guard=False) as manager:
        await manager.ready()
        on.kill()
        await asyncio.sleep(400)
        for node in on.nodes:
            node.restart()
        began = now()
        await manager.ready(voting=True)
        assert now() - began <= 2


@pytest.mark.parametrize(
    ("durable", "guard", "waits"),
    [("abc", "disk", False), ("ab", "disk", False), ("a", "disk", True), ("abc", True, True)],
)
@in_virtual_time
async def test_fresh_nodes_grant_at_once_if_disks_are_kept(
    durable: str, guard: Any, waits: bool
) -> None:
    """The promise counts only for nodes that sync each write."""
    on = Nodes([MemoryNode(name, durable=name in durable) for name in "abc"])
    async with on.connect(restart_guard=guard) as locks:
        began = now()
        async with locks.lock("a"):
            took = now() - began
    assert took > D - 0.1 if waits else took < 0.1


def test_a_wrong_guard_is_refused() -> None:
    with pytest.raises(asynclock.ConfigurationError, match='True, False or "disk"'):
        asynclock.connect("redis://localhost", restart_guard="disks")  # type: ignore[arg-type]


@virtual
async def test_ready_waits_for_every_node_and_not_beyond_its_timeout(on: Nodes) -> None:
    on.nodes[2].freeze()
    for timeout in (0.0, 0.1, 0.3):
        manager, began = on.connect(), now()
        await manager.ready(timeout=timeout)
        assert now() - began == pytest.approx(timeout, abs=0.01)
        near = "up" if timeout else "connecting"
        assert [node.state for node in manager.nodes()] == [near, near, "connecting"]
        await manager.aclose()
    manager = on.connect()
    waiting = start(manager.ready(timeout=0.5))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    on.nodes[2].thaw()
    assert await seconds_until(waiting.done) < 0.01
    await manager.aclose()
    on.nodes[2].freeze()
    for given in ({"timeout": 9.0}, {}):
        manager, began = on.connect(), now()
        await manager.ready(**given)
        assert now() - began == pytest.approx(NODE_TIMEOUT, abs=0.05), "one attempt has failed"
        await manager.aclose()


@virtual
async def test_ready_notices_a_node_that_answers_again_on_the_same_connection(on: Nodes) -> None:
    on.freeze("ab")
    with pytest.raises(asynclock.QuorumUnavailableError):
        await on.locks.lock("a").try_acquire()
    waiting = start(on.locks.ready(voting=True, timeout=60))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    on.nodes[0].thaw()
    assert await seconds_until(waiting.done) < 1.1 * NODE_TIMEOUT
    await waiting
