"""No task waits longer than necessary. In virtual time, so a late one is late by its own fault."""

import asyncio

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


@virtual_single
async def test_a_release_wakes_the_next_in_the_queue_of_its_own_process(on: Nodes) -> None:
    """Servers push nothing to the connection that made the change."""
    first = await on.locks.fair_lock("a").acquire()
    waiting = start(on.locks.fair_lock("a").acquire())
    await until(lambda: on.locks.statistics().refused >= 1)
    await first.release()
    assert await seconds_until(waiting.done) < AT_ONCE


@virtual
async def test_the_last_reader_wakes_a_writer_of_its_own_process(on: Nodes) -> None:
    readers = [await on.locks.rwlock("a").read().acquire() for _ in range(2)]
    writing = start(on.locks.rwlock("a").write().acquire())
    await until(lambda: on.locks.statistics().refused >= 2)
    for reader in readers:
        await reader.release()
    assert await seconds_until(writing.done) < AT_ONCE


@virtual
async def test_a_writer_wakes_readers_of_its_own_process(on: Nodes) -> None:
    writer = await on.locks.rwlock("a").write().acquire()
    reading = start(on.locks.rwlock("a").read().acquire())
    await until(lambda: on.locks.statistics().refused >= 2)
    await writer.release()
    assert await seconds_until(reading.done) < AT_ONCE


@virtual
async def test_a_key_that_expires_is_noticed_without_a_push(on: Nodes) -> None:
    await on.ghost(ttl=3.5)
    loses_pushes(on.locks)
    chance(on.locks, lambda: 0.999)  # so no refresh of its ticket comes at that moment
    began = now()
    await on.locks.lock("a").acquire()
    assert now() - began < 3.6


@virtual
async def test_a_key_that_expires_is_noticed_where_servers_push_nothing(on: Nodes) -> None:
    await on.ghost(ttl=3.5)
    refuse_tracking(on.nodes)
    async with on.connect() as locks:
        chance(locks, lambda: 0.999)
        began = now()
        await locks.lock("a").acquire()
        assert now() - began < 3.55


@virtual
async def test_rivals_that_a_release_wakes_spread_out(on: Nodes) -> None:
    await on.ghost()
    chance(on.locks, lambda: 0.9)
    waiting = start(on.locks.multi_lock("a", "b").acquire())
    await until(lambda: on.locks.statistics().refused >= 2)
    await asyncio.sleep(AT_ONCE)
    for node in on.nodes:
        await node.command("DEL", "asynclock:a")
    assert 0.0005 < await seconds_until(waiting.done) < 0.2


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
