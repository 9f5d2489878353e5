"""What people are told about a name: its owner, its waiters, and why they did not get it."""

import asyncio
import contextlib
import re

import pytest

import asynclock
from tests.engine.kinds import calls
from tests.engine.virtual_nodes import KEY, Nodes, start, virtual
from tests.tables.inside import now
from tests.waiting import call_off, until

WANTED = calls("strict", "reentrant_lock", "multi_lock", "one of two", "several")


@pytest.mark.parametrize("kind", WANTED)
@virtual
async def test_a_waiter_of_each_kind_says_since_when_it_waits(on: Nodes, kind: str) -> None:
    wanted = WANTED[kind]
    async with on.connect(label="theirs") as others:
        holds = on.locks.rwlock("a").write().acquire() if kind == "read" else wanted(on.locks)
        held = await holds
        began = on.nodes[0].wall()
        waiting = start(wanted(others))
        await until(lambda: others.statistics().refused)
        (shown,) = [one async for one in on.locks.inspect_all() if one.waiting]
        (first,) = shown.waiting
        assert (first.label, first.shared, first.slots > 0) == ("theirs", kind == "read", True)
        assert first.since == pytest.approx(began, abs=0.1)
        await call_off(waiting)
        assert held


@virtual
async def test_a_waiter_for_any_part_is_listed_once_and_with_each_part(on: Nodes) -> None:
    async with on.connect(label="theirs") as theirs:
        held = [await on.locks.semaphore("s", 2).acquire() for _ in range(2)]
        waiting = start(theirs.semaphore("s", 2).acquire())
        await until(lambda: theirs.statistics().refused)
        await asyncio.sleep(0.1)
        found = await on.locks.semaphore("s", 2).inspect()
        assert [waiter.label for waiter in found.waiting] == ["theirs"]
        assert [part.waiting for part in found.parts] == [found.waiting] * 2
        assert {part.owner for part in found.parts} == {lease.owner for lease in held}
        await held[0].release()
        await (await waiting).release()


@virtual
async def test_readers_that_wait_are_listed_before_writers_that_wait(on: Nodes) -> None:
    """They go next, as soon as the writer that has the name leaves."""
    async with on.connect(label="w") as writes, on.connect(label="r") as reads:
        async with on.locks.rwlock("a").write():
            calls = [start(writes.rwlock("a").write().acquire())]
            await until(lambda: writes.statistics().refused)
            calls.append(start(reads.rwlock("a").read().acquire()))
            await until(lambda: reads.statistics().refused)
            found = await on.locks.rwlock("a").inspect()
            assert [waiter.label for waiter in found.waiting] == ["r", "w"]
            await call_off(*calls)


@virtual
async def test_what_other_programs_wrote_is_shown_and_breaks_nothing(on: Nodes) -> None:
    await on.command("SET", KEY, b"\xff\xfe of another program")
    found = await on.locks.inspect("a")
    assert found.owner is not None
    assert found.owner.endswith(" of another program")
    assert found.remaining is None, "it has no ttl"
    assert found.holder is not None
    assert len(found.holder) == len("12345678…")
    on.nodes[0].freeze()
    found = await on.locks.inspect("a")
    assert [bool(view.error) for view in found.nodes] == [True, False, False]
    on.nodes[0].thaw()
    assert await on.locks.lock("a").try_acquire() is None


@pytest.mark.parametrize("silent", [0, 1])
@virtual
async def test_a_timeout_says_its_place_and_who_was_before_it(on: Nodes, silent: int) -> None:
    """A silent node delays the error by no more than the others need."""
    waiting, said = [], list[tuple[str, float]]()
    async with contextlib.AsyncExitStack() as stack:
        theirs = [await stack.enter_async_context(on.connect(label=f"w{at}")) for at in range(6)]
        lease = await theirs[0].lock("a").acquire()
        for at, locks in enumerate(theirs[1:], 1):
            waiting.append(start(locks.lock("a").acquire(timeout=10)))
            await asyncio.sleep(0.05)
            if silent and at == 1:
                on.nodes[0].freeze()
            began = now()
            with pytest.raises(asynclock.AcquireTimeoutError) as late:
                await on.locks.lock("a").acquire(timeout=0.5)
            said.append((str(late.value), now() - began))
        on.nodes[0].thaw()
        await call_off(*waiting)
        assert lease.held
    texts = [text for text, _ in said]
    begin = "'a' was not free in time; it is held by 'w0'; the timeout was 0.5 s, and the call was "
    assert texts[0] == f"{begin}number 2 in the queue, behind 'w1'"
    assert texts[2] == f"{begin}number 4 in the queue, behind 'w1', 'w2', 'w3'"
    assert texts[4] == f"{begin}number 6 in the queue, behind 'w1', 'w2', 'w3', 2 more"
    assert max(took for _, took in said) < 0.5 + 0.3


@virtual
async def test_a_task_says_its_place_among_those_of_its_process(on: Nodes) -> None:
    async with on.locks.lock("a"):
        calls = []
        for timeout in (9, 2, 8, 4, 9):  # the last two at the same moment
            calls.append(start(on.locks.lock("a").acquire(timeout=timeout)))
            await asyncio.sleep(0.01 * (len(calls) != 4))
        await asyncio.sleep(5)
        places = [str(call.exception()) for call in (calls[1], calls[3])]
        for call in calls:
            call.cancel()
    assert re.findall(r"number (\d) of those that wait", " ".join(places)) == ["2", "3"]


@virtual
async def test_tasks_of_one_process_say_who_has_the_name_that_one_waits_for(on: Nodes) -> None:
    """Both know the message, and so does a task behind one that waits without a timeout."""
    message = "40 %\x1b[2J" + "x" * 190
    async with on.connect(label="theirs") as theirs:
        lease = await theirs.multi_lock("a", "b").acquire()
        assert await lease.publish(message)
        calls = [start(on.locks.lock("a").acquire(timeout=0.5)) for _ in range(2)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        asking = start(on.locks.lock("a").acquire())
        await asyncio.sleep(1.0)
        with pytest.raises(asynclock.AcquireTimeoutError) as late:
            await on.locks.lock("a").acquire(timeout=0.3)
        assert late.value.holder_message == message
        with pytest.raises(asynclock.AcquireTimeoutError) as several:
            await on.locks.multi_lock("_", "a").acquire(timeout=0.3)
        assert several.value.holder_message == message
        await lease.release()
        assert await (await asking).publish("ours")
        with pytest.raises(asynclock.AcquireTimeoutError, match="publishes 'ours'"):
            await on.locks.lock("a").acquire(timeout=0)
    begin, said = "'a' was not free in time; it is held by 'theirs'", "40 %\\x1b[2J" + "x" * 190
    assert str(found[0]) == (
        f"{begin}; the timeout was 0.5 s, and the call was number 1 in the queue; "
        f"its holder publishes '{said}'"
    )
    assert str(found[1]) == (
        f"{begin}, and other tasks of this process wait for it, and the call was number 2 of those "
        f"that wait; the timeout was 0.5 s; its holder publishes '{said}'"
    )


@virtual
async def test_what_a_wait_has_met_is_forgotten_with_it(on: Nodes) -> None:
    lock = on.locks.lock("a")
    await on.ghost(ttl=0.1)
    assert await lock.try_acquire() is None
    await asyncio.sleep(1.0)
    on.slow(0.02)
    asking = start(lock.acquire())
    await asyncio.sleep(0)
    with pytest.raises(asynclock.AcquireTimeoutError, match="other tasks of this process hold it"):
        await lock.acquire(timeout=0.01)
    await (await asking).release()


@virtual
async def test_a_leader_that_publishes_a_value_waits_for_no_slow_node(on: Nodes) -> None:
    term = await on.locks.election("e").campaign("me")
    on.ways[0].seconds = 0.4
    began = now()
    assert await term.publish("at another address")
    assert now() - began < 0.05
    on.slow(0.0)
    await term.lease.release()
