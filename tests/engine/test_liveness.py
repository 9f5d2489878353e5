"""No task waits longer than necessary. In virtual time, so a late one is late by its own fault."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import asynclock
from tests.engine.virtual_nodes import (
    NODE_TIMEOUT,
    Nodes,
    refuse_tracking,
    seconds_until,
    start,
    virtual,
    virtual_single,
)
from tests.tables.inside import chance, loses_pushes, names_in_use, now
from tests.waiting import until

AT_ONCE = 0.05


OWN: dict[str, tuple[int, Callable[[asynclock.LockManager], tuple[Any, Any]]]] = {
    "fair lock": (1, lambda locks: (locks.fair_lock("a"), locks.fair_lock("a"))),
    "writer": (2, lambda locks: (locks.rwlock("a").read(), locks.rwlock("a").write())),
    "reader": (1, lambda locks: (locks.rwlock("a").write(), locks.rwlock("a").read())),
}
"""The number of holders, what they hold, and what a task of the same process waits for."""


@pytest.mark.parametrize("kind", OWN)
@virtual
async def test_a_release_wakes_the_next_waiter_of_its_own_process(on: Nodes, kind: str) -> None:
    """Servers push nothing to the connection that made the change."""
    holders, make = OWN[kind]
    holds, wants = make(on.locks)
    held = [await holds.acquire() for _ in range(holders)]
    waiting = start(wants.acquire())
    await until(lambda: on.locks.statistics().refused >= 1)
    await asyncio.sleep(AT_ONCE)
    for lease in held:
        await lease.release()
    assert await seconds_until(waiting.done) < AT_ONCE


@pytest.mark.parametrize("pushes", ["lost", "none"])
@virtual
async def test_a_key_that_expires_is_noticed_without_a_push(on: Nodes, pushes: str) -> None:
    await on.ghost(ttl=3.5)
    if pushes == "none":
        refuse_tracking(on.nodes)
    async with on.connect() as locks:
        if pushes == "lost":
            loses_pushes(locks)
        chance(locks, lambda: 0.999)  # so no refresh of its ticket comes at that moment
        began = now()
        await locks.lock("a").acquire()
        assert now() - began < 3.6


@virtual
async def test_rivals_that_a_release_wakes_spread_out(on: Nodes) -> None:
    await on.ghost()
    chance(on.locks, lambda: 0.9)
    waiting = start(on.locks.multi_lock("a", "b").acquire())
    await until(lambda: on.locks.statistics().refused >= 2)
    await asyncio.sleep(AT_ONCE)
    await on.command("DEL", "asynclock:a")
    began = now()
    await waiting
    assert 0.0005 < now() - began < 0.2


@virtual
async def test_of_several_names_a_split_vote_takes_places_for_a_moment(on: Nodes) -> None:
    """In the queues of all names; and none is left behind."""
    for node, owner in zip(on.nodes, ("one", "two"), strict=False):
        await node.command("SET", "asynclock:a", owner, "PX", 60_000)
    trying = asyncio.create_task(on.locks.multi_lock("a", "b").try_acquire())
    await asyncio.sleep(AT_ONCE)
    queues = [f"asynclock:{name}:#queue" for name in "ab"]
    places = [await node.command("ZCARD", queue) for node in on.nodes for queue in queues]
    assert places == [1] * 6
    assert await trying is None
    await asyncio.sleep(AT_ONCE)
    assert [await node.command("EXISTS", *queues) for node in on.nodes] == [0] * 3


@virtual
async def test_a_broken_node_is_met_again_within_a_node_timeout(on: Nodes) -> None:
    on.nodes[0].kill()
    await asyncio.sleep(30)
    on.nodes[0].restart()
    assert (
        await seconds_until(lambda: on.locks.nodes()[0].state != "down") <= NODE_TIMEOUT + AT_ONCE
    )


@virtual_single
async def test_a_node_that_is_stalled_costs_no_time(on: Nodes) -> None:
    on.nodes[0].freeze()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await on.locks.lock("a").try_acquire()
    began = now()
    with pytest.raises(asynclock.QuorumUnavailableError):
        await on.locks.lock("a").try_acquire()
    assert now() - began < AT_ONCE


@virtual
async def test_a_turn_that_is_cancelled_while_nobody_else_waits_is_over(on: Nodes) -> None:
    lock = on.locks.lock("a", handoff=False)
    lease = await lock.acquire()
    doomed = start(lock.acquire())
    await until(lambda: on.locks.statistics().waiting == 1)
    releasing = start(lease.release())
    await asyncio.sleep(0)  # it has the turn now, and does not know it
    doomed.cancel()
    await releasing
    await asyncio.wait((doomed,))
    assert doomed.cancelled()
    again = await lock.acquire(timeout=1.0)
    await again.release()
    assert not names_in_use(on.locks), "nothing is kept of a name that is not in use"
