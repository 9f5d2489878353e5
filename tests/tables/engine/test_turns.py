"""Turns, tickets and pushes, where only the inside shows what is sent. In virtual time."""

import asyncio
import gc
from collections import Counter
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import asynclock
from asynclock._engine.grant import LocalQueue
from asynclock._engine.outbox import Ask, Batch
from asynclock._nodes.wire import NOBODY, Command
from asynclock._primitives.lock import SCRIPT, spec
from asynclock._rules import pacing
from asynclock.testing.memory import MemoryNode
from tests.engine.test_queue import QUEUE, line_up, wins
from tests.engine.virtual_nodes import (
    KEY,
    PATIENCE,
    TTL,
    Nodes,
    instead,
    seconds_until,
    start,
    virtual,
    virtual_single,
)
from tests.tables.inside import now
from tests.waiting import until


@virtual
async def test_a_turn_that_is_lost_to_others_gives_no_place_before_them(on: Nodes) -> None:
    # Node b is free, but a ticket waits there; the lock of the same waiter's attempt is on node a.
    later = int(on.nodes[1].wall() * 1e6) + 60_000_000
    await on.ghost("waiter", only="a")
    await on.nodes[1].command("ZADD", QUEUE, later, "waiter")
    await on.nodes[1].command("SET", QUEUE + b":#waiter", "1", "PX", 60_000)
    on.nodes[2].kill()
    await until(lambda: on.locks.nodes()[2].state == "down")
    engine, name = on.locks._engine, spec("asynclock:", "a")
    ask = Ask(engine, name, TTL, engine.place)
    ask.barge()
    await ask.decided()
    turn = ask.to_attempt()
    assert not turn.conclude()
    assert turn.ticket is not None
    assert turn.ticket.unsettled
    after = Ask(engine, name, TTL, engine.place, turn.ticket)
    await after.decided()
    assert not after.to_attempt().conclude()
    assert turn.ticket.number > later
    after.withdraw()


@virtual_single
async def test_a_node_that_forgot_its_scripts_gets_a_leave_once_for_each_acquire(on: Nodes) -> None:
    """Many acquires with the same ticket are on their way."""
    node, received = on.nodes[0], Counter[bytes]()
    known = (b"release", b"leave")
    link = on.locks._engine.multiplexer.nodes[0].link  # type: ignore[attr-defined]  # its type
    keys = ("asynclock:a", "asynclock:a:#fence", "asynclock:a:#queue")
    instead(node, lambda words: received.update(word for word in words if word in known))
    node.forget_scripts()
    on.slow(0.01)
    attempts = 10
    for number in range(attempts):
        owner = "first" if number == 0 else f"owner-{number}"
        words = ("acquire", owner, 10_000, 0, 0, 60_000, 2000, "first", number)
        link.send(Command(SCRIPT, keys, words), NOBODY, 0)
    for op in ("release", "leave"):
        link.send(Command(SCRIPT, keys, (op, "first")), NOBODY, 0)
    await asyncio.sleep(1)
    assert max(received.values()) <= attempts + 2  # sent, rejected, and sent again
    assert await node.command("ZCARD", QUEUE) == 0


@virtual
async def test_pushes_for_keys_that_have_not_changed_are_not_counted_on(on: Nodes) -> None:
    """A server whose table of tracked keys is full drops a key at random, with a push."""
    for node in on.nodes:
        watch = node._read

        def read(key: bytes, node: MemoryNode = node, watch: Any = watch) -> None:
            watch(key)
            while len(node._watchers) > 1:
                dropped = next(iter(node._watchers))
                for client in node._watchers.pop(dropped):
                    client.push([b"invalidate", [dropped]])

        node.keys._on_read = read
    on.slow(0.001)
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(4)]
        held = await on.locks.lock("a").acquire()
        waiting = [await line_up(locks.lock("a"), locks) for locks in others]

        async def asked(seconds: float) -> int:
            before = {locks: locks.statistics().attempts for locks in others}
            await asyncio.sleep(seconds)
            return max(locks.statistics().attempts - before[locks] for locks in others)

        await asyncio.sleep(0.5)
        assert await asked(1) <= 4 / pacing.LONGEST_PAUSE, "a pause after each in vain"
        for node in on.nodes:
            node.keys._on_read = node._read
        await asyncio.sleep(PATIENCE)
        assert await asked(2 * PATIENCE) <= 8, "they count on pushes again"
        await held.release()
        for task in waiting:
            assert await seconds_until(task.done) < PATIENCE
            await task.result().release()


@virtual
async def test_only_the_first_in_line_watches_the_name(on: Nodes) -> None:
    """Otherwise each renewal and each release would wake all who wait."""
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(on.connect()) for _ in range(3)]
        held = await on.locks.lock("a").acquire()
        waiting = [await line_up(locks.lock("a"), locks) for locks in others]
        for number in range(3):
            watched = [locks._engine.multiplexer.wakeups.watched for locks in others]
            watches = [KEY.decode() in one for one in watched]
            assert watches == [place == number for place in range(3)]
            await (held if number == 0 else waiting[number - 1].result()).release()
            await until(waiting[number].done)
            await asyncio.sleep(PATIENCE / 2)  # each has asked again
        await waiting[2].result().release()


async def readers(lock: asynclock.ReadWriteLock, locks: asynclock.LockManager) -> list[Any]:
    """Three readers that wait."""
    return [await line_up(lock.read(), locks) for _ in range(3)]  # type: ignore[arg-type]


async def contended_writer(lock: asynclock.ReadWriteLock) -> asynclock.Lease:
    """A writer that knows of others who wait, and whose turn has just begun."""
    lease = await lock.write().acquire()
    lease._grants[0][0].contended = True
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
        held._grants[0][0].since = now()
        releasing = start(held.release())
        await asyncio.sleep(0.001)
        late = start(ours.read().acquire())
        for task in waiting:
            await wins(task, 0.1 * PATIENCE)
        await releasing
        await (await writing).release()
        await (await late).release()


@virtual
async def test_readers_join_one_that_came_before_the_writer_took_the_name_again(on: Nodes) -> None:
    """The writer's release woke nobody, and its next request does not win."""
    async with on.connect() as one, on.connect() as two:
        lock = one.rwlock("a")
        held = await contended_writer(lock)
        waiting = await readers(two.rwlock("a"), two)
        on.slow(0.001)
        held._grants[0][0].since = now()

        async def write_again() -> asynclock.Lease:
            await held.release()
            await asyncio.sleep(0.0015)  # the reader's request must reach the nodes first
            return await lock.write().acquire()

        again = asyncio.create_task(write_again())
        await asyncio.sleep(0.001)
        early = start(on.locks.rwlock("a").read().acquire())
        first = await early
        for task in waiting:
            await wins(task, 0.1 * PATIENCE)
        assert not again.done()
        await first.release()
        await (await again).release()


def test_a_freed_name_is_kept_only_for_the_rest_of_a_turn_that_others_wait_for() -> None:
    turn, moment = 0.5, 100.0
    queue: LocalQueue = LocalQueue("a", "a", 1, turn)
    mine, others = (SimpleNamespace(since=moment, contended=wanted) for wanted in (False, True))
    assert not queue.keep(mine, moment), "nobody else would get it"
    assert not queue.keep(others, moment + turn), "the turn is over"
    assert queue.take_kept(moment) is None
    assert queue.keep(others, moment + turn / 2)
    assert queue.take_kept(moment + turn / 2) == moment
    assert queue.take_kept(moment + turn / 2) is None, "it is taken once"
    assert queue.keep(others, moment)
    assert queue.take_kept(moment + 1.1 * turn) is None, "the turn is over"
    permits: LocalQueue = LocalQueue("a", "a", 2, turn)
    assert not permits.keep(others, moment), "another process may wait for any permit"


@virtual_single
async def test_what_a_lease_leaves_behind(on: Nodes) -> None:
    """The keys and the batch of a lease are forgotten."""
    engine = on.locks._engine
    async with on.locks.lock("a") as lease:
        await lease.extend()
        assert engine.renewals._tracked
    assert not engine.renewals._tracked
    batches = (one for one in gc.get_objects() if type(one) is Batch)
    assert not [one for one in batches if one.context is engine]
