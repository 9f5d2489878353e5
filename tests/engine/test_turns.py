"""Which readers are woken when a writer may write again within its turn; in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._engine.local_queue import LocalQueue
from asynclock._engine.ticket import PATIENCE
from tests.engine.test_queue import line_up
from tests.engine.virtual_nodes import Nodes, seconds_until, start, virtual
from tests.waiting import until

SOON = 0.1 * PATIENCE
"""Less than any refresh takes."""


async def readers(lock: asynclock.ReadWriteLock, locks: asynclock.LockManager) -> list[Any]:
    """Three readers that wait."""
    return [await line_up(lock.read(), locks) for _ in range(3)]  # type: ignore[arg-type]


async def contended_writer(lock: asynclock.ReadWriteLock) -> asynclock.Lease:
    """A writer that knows of others who wait, and whose turn has just begun."""
    lease = await lock.write().acquire()
    assert lease._grant is not None
    lease._grant.contended = True
    return lease


@virtual
async def test_a_reader_refused_between_a_release_and_the_pass_wakes_others_of_its_own_process(
    on: Nodes,
) -> None:
    """Its refusal wakes those whose turn has come, and servers push nothing to its connection."""
    ours = on.locks.rwlock("a")
    async with on.connect() as one, on.connect() as two:
        held = await contended_writer(one.rwlock("a"))
        writing = await line_up(two.rwlock("a").write(), two)  # type: ignore[arg-type]
        waiting = await readers(ours, on.locks)
        on.slow(0.001)
        assert held._grant is not None
        held._grant.since = _clock.now()
        releasing = start(held.release())
        await asyncio.sleep(0.001)
        late = start(ours.read().acquire())
        for task in waiting:
            assert await seconds_until(task.done) < SOON
            await (await task).release()
        await releasing
        await (await writing).release()
        await (await late).release()


@virtual
async def test_readers_go_in_beside_one_that_came_before_the_writer_took_the_name_again(
    on: Nodes,
) -> None:
    """The writer's release woke nobody, and its next request does not win."""
    async with on.connect() as one, on.connect() as two:
        lock = one.rwlock("a")
        held = await contended_writer(lock)
        waiting = await readers(two.rwlock("a"), two)
        on.slow(0.001)
        assert held._grant is not None
        held._grant.since = _clock.now()

        async def write_again() -> asynclock.Lease:
            await held.release()
            await asyncio.sleep(0.0015)  # the reader's request must reach the nodes first
            return await lock.write().acquire()

        again = asyncio.create_task(write_again())
        await asyncio.sleep(0.001)
        early = start(on.locks.rwlock("a").read().acquire())
        first = await early
        for task in waiting:
            assert await seconds_until(task.done) < SOON
            await (await task).release()
        assert not again.done()
        await first.release()
        await (await again).release()


@virtual
async def test_a_downgrade_in_a_turn_notices_that_the_write_lease_was_lost(on: Nodes) -> None:
    """Only the replies to the writer's release show it."""
    async with on.connect(turn=60.0) as ours:
        lock = ours.rwlock("a")
        writer = await contended_writer(lock)
        assert writer._grant is not None
        writer._grant.since = _clock.now()
        for node in on.nodes:
            await node.command("DEL", writer._grant.spec.keys[0])
        with pytest.raises(asynclock.LeaseLostError):
            await lock.downgrade(writer)


@virtual
async def test_a_turn_that_is_over_is_not_taken_up_again(on: Nodes) -> None:
    lease = await on.locks.lock("a").acquire()
    grant = lease._grant
    assert grant is not None
    queue = grant.queue
    assert queue is not None
    for late, since in ((0.9, grant.since), (1.1, None)):
        queue.kept = grant
        assert queue.take_kept(grant.since + late * queue.turn) == since
        assert queue.kept is None
    await lease.release()


def test_a_permit_is_not_kept_for_this_process() -> None:
    """Another process may wait for any permit."""
    grant: Any = SimpleNamespace(contended=True, since=100.0)
    kept = [LocalQueue[Any]("s", "s", permits, 1.0).keep(grant, 100.0) for permits in (1, 2)]
    assert kept == [True, False]


@virtual
async def test_a_lease_that_is_not_renewed_passes_to_no_call_that_wants_it_renewed(
    on: Nodes,
) -> None:
    first = await on.locks.lock("a", renew=False).acquire()
    waiting = start(on.locks.lock("a").acquire())
    await until(lambda: on.locks.statistics().waiting == 1, "it waits")
    assert await first.release()
    lease = await waiting
    assert on.locks.statistics().handovers == 0
    await asyncio.sleep(20)
    assert lease.held
