"""`once` where things fail: at most one result is kept, and what fails leaves nothing behind."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

import asynclock
from asynclock._rules.validity import longest_outage
from tests.cancel.stepping import cancelled_at
from tests.engine.virtual_nodes import TTL, Nodes, start, virtual
from tests.leftovers import left
from tests.tables.inside import now
from tests.waiting import until

RECORD = "asynclock:a:#once"
Done = tuple[bool, Any]


async def look(on: Nodes, **settings: Any) -> Done:
    """Whether a result is kept, and which one; a run of its own ends without one."""
    async with on.locks.once("a", **settings) as run:
        return run.done, run.result


async def do(locks: asynclock.LockManager, value: object, **settings: Any) -> Done:
    """Finish with `value`, unless a result is kept; return whether this did it, and the result."""
    async with locks.once("a", **settings) as run:
        ours = not run.done
        if ours:
            run.finish(value)
    return ours, run.result


@virtual
async def test_what_is_kept(on: Nodes) -> None:
    assert await do(on.locks, (1, {"a": None}), keep=60) == (True, [1, {"a": None}])
    assert await do(on.locks, 2, keep=60) == (False, [1, {"a": None}])
    await asyncio.sleep(61)
    assert await do(on.locks, b"\0\xff", keep=60) == (True, b"\0\xff")
    assert await do(on.locks, 2, keep=60) == (False, b"\0\xff")
    await asyncio.sleep(61)
    assert await do(on.locks, None, keep=60) == (True, None)
    assert await look(on) == (True, None)
    assert not await left(on.nodes)


def nested(levels: int) -> Any:
    """Lists and dicts inside each other."""
    value: Any = []
    for level in range(1, levels):
        value = [1, value] if level % 2 else {"a": value}
    return value


@virtual
async def test_what_cannot_be_kept(on: Nodes) -> None:
    for value in (
        *(object(), {"a": b""}, float("nan"), {1} | set("a")),
        *("a" * 65_535, b"a" * 65_537, "ä" * 32_768, nested(101), nested(5000)),
    ):
        with pytest.raises(asynclock.ConfigurationError, match="a result must"):
            await do(on.locks, value)
        assert not await left(on.nodes)
    for kept in ("a" * 65_534, "ä" * 32_767, nested(100), "\ud800"):
        assert await do(on.locks, kept, keep=60) == (True, kept)
        assert await do(on.locks, 1, keep=60) == (False, kept)
        await asyncio.sleep(61)
    await do(on.locks, 1)
    with pytest.raises(RuntimeError, match="is done"):
        (await on.locks.once("a").acquire()).finish(1)


@virtual
async def test_a_block_that_fails_keeps_what_was_finished_and_nothing_else(on: Nodes) -> None:
    for finish in (False, True):
        with pytest.raises(ZeroDivisionError):
            async with on.locks.once("a") as run:
                if finish:
                    run.finish("done")
                raise ZeroDivisionError
        assert await look(on) == ((True, "done") if finish else (False, None))


@virtual
async def test_acquired_tried_and_decorated(on: Nodes) -> None:
    one = on.locks.once("a", timeout=1)
    run = await one.acquire()
    assert (run.done, run.held, run.name) == (False, True, "a")
    assert await one.try_acquire() is None
    late = one.acquire()
    await asyncio.sleep(1e-5)
    with pytest.raises(asynclock.AcquireTimeoutError, match="; the timeout was 1 s"):
        await late
    run.finish(run.fence)
    ended = asyncio.create_task(run.release())
    await asyncio.sleep(0)
    ended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended
    assert run.lease is not None
    assert not run.held
    again = await one.try_acquire()
    assert again is not None
    assert (again.done, again.lease, again.fence, await again.release()) == (
        *(True, None, run.result),
        False,
    )
    calls = []

    @on.locks.once("b:{what}", keep=60, lease="lease")
    async def work(what: str, *, lease: Any = None) -> tuple[str, int]:
        calls.append(what)
        return what, lease.fence

    found: list[Any] = await asyncio.gather(*(work(what) for what in "xyxx"))
    assert calls == ["x", "y"]
    assert found[0] == found[2] == found[3] != found[1]
    with pytest.raises(asynclock.ConfigurationError, match="once needs an async function"):
        on.locks.once("b")(len)  # type: ignore[arg-type]  # on purpose
    locks = on.connect()
    renewed = locks.once("b:{what}", keep=60, lease="lease")(work.__wrapped__)  # type: ignore[attr-defined]
    for what in "yz":  # also once the manager was closed and entered again
        async with locks:
            await renewed(what)
    assert calls == ["x", "y", "z"]


@virtual
async def test_a_body_that_goes_on_in_another_task_is_left_there(on: Nodes) -> None:
    one = on.locks.once("a", keep=60)
    assert await do(on.locks, 1, keep=60) == (True, 1)
    assert (await one.__aenter__()).done
    await asyncio.sleep(61)
    entering = asyncio.create_task(one.__aenter__())
    run = await entering
    assert run.task is entering

    async def go_on() -> None:
        assert run.lease is not None
        run.lease.adopt()
        assert run.task is asyncio.current_task()
        run.finish(2)
        await one.__aexit__(None, None, None)

    await asyncio.create_task(go_on())
    await one.__aexit__(None, None, None)
    assert await look(on) == (True, 2)


# ---- faults --------------------------------------------------------------------------------------
@virtual
async def test_a_holder_that_dies_before_its_record(on: Nodes) -> None:
    async with on.connect() as dying:
        run = await dying.once("a").acquire()
        on.go_mute()
    run.finish("never kept")
    with pytest.raises(asynclock.AsyncLockError):
        await run.release()
    began = now()
    assert await do(on.locks, "second") == (True, "second")
    assert now() - began < TTL + 2


@pytest.mark.parametrize("gone", ["DEL", "FLUSHALL"])
@virtual
async def test_a_run_that_lost_its_lease_keeps_nothing(on: Nodes, gone: str) -> None:
    with pytest.raises(asynclock.LeaseLostError):
        async with on.locks.once("a") as run:
            await on.command(*(gone, "asynclock:a")[: 1 + (gone == "DEL")])
            run.finish("lost")
    assert (run.done, run.result) == (False, None)
    assert await look(on) == (False, None)


@virtual
async def test_a_late_result_never_takes_the_place_of_a_later_run(on: Nodes) -> None:
    """The first one's requests are on their way when its lease ends and the second one begins."""
    async with on.connect(node_timeout=2.4) as slow:
        on.slow(0.0)
        first = await slow.once("a", renew=False).acquire()
        await asyncio.sleep(TTL - 1)
        first.finish("first")
        on.slow(0.7)
        late = start(first.release())
        await asyncio.sleep(0.1)
        on.slow(0.0)
        async with on.locks.once("a") as second:
            kept = "first" if second.done else "second"
            if not second.done:
                second.finish("second")
        with contextlib.suppress(asynclock.LeaseLostError):
            await late
        assert second.result == kept
        assert await look(on) == (True, kept)
        assert first.result in (None, kept)


@pytest.mark.parametrize("kept", [(), ("json", "later")])
@pytest.mark.parametrize("begun", [False, True])
@virtual
async def test_a_run_never_takes_the_place_of_a_later_one(
    on: Nodes, kept: tuple[str, ...], *, begun: bool
) -> None:
    """As if its lease had ended while its request, which may be a claim, was on the way."""

    async def later() -> None:
        for node in on.nodes:
            number = int(node.wall() * 1e6)
            fields = ("promised", number, "by", "x", "accepted", number)
            record = json.dumps([number * 2, "later", *kept])
            await node.command("HSET", RECORD, *fields, "value", record)

    if kept and not begun:
        await later()
        assert await do(on.locks, "late") == (False, "later")
        return
    with pytest.raises(asynclock.LeaseLostError, match="a later run has begun"):
        await (asyncio.sleep(0) if begun else later())
        async with on.locks.once("a") as run:
            assert begun, "a late claim is refused"
            await later()
            run.finish("late")
    for node in on.nodes:
        (value,) = await node.command("HMGET", RECORD, "value")
        assert json.loads(value)[1:] == ["later", *kept]
    await asyncio.sleep(1)  # the lease of a refused call is released without a wait
    assert not await left(on.nodes)


@pytest.mark.parametrize("node", [0, 2])
@pytest.mark.parametrize("seen", [False, True])
@virtual
async def test_a_minoritys_result_is_kept_by_all_or_none(
    on: Nodes, node: int, *, seen: bool
) -> None:
    """A holder died after one node had its result. The next run reads it there, or overrules it."""
    number = int(on.nodes[node].wall() * 1e6)
    fields = ("promised", number, "by", "x", "accepted", number)
    record = ("value", '[7, "dead", "json", "first"]')
    await on.nodes[node].command("HSET", RECORD, *fields, *record)
    for way in on.ways:  # the others decide among themselves
        way.seconds = 0.0 if seen or way is not on.ways[node] else 0.9
    ours, kept = await do(on.locks, "second")
    assert (ours, kept) in ((True, "second"), (False, "first"))
    on.slow(0.0)
    on.go_mute()
    for _ in range(3):
        assert await do(on.locks, "third", timeout=3 * TTL) == (False, kept)


@pytest.mark.parametrize("down", [1, 2])
@virtual
async def test_nodes_that_die_while_it_runs(on: Nodes, down: int) -> None:
    expected = (
        contextlib.nullcontext()
        if down == 1
        else pytest.raises((asynclock.LeaseLostError, asynclock.QuorumUnavailableError))
    )
    began = now()
    with expected:
        async with on.locks.once("a") as run:
            for node in on.nodes[:down]:
                node.kill()
            run.finish("done")
    assert now() - began <= TTL + 2
    for node in on.nodes[:down]:
        node.restart(keep_data=True)
    assert run.done is (down == 1)
    await asyncio.sleep(longest_outage(TTL))
    assert await look(on) == (run.done, run.result)


@pytest.mark.parametrize("moment", ["waiting", "resuming"])
@virtual
async def test_cancelled_at_each_await(on: Nodes, moment: Any) -> None:
    """Before `finish` nothing is kept; after it the result is, however often it is cancelled."""
    on.slow(0.01)
    finished: list[int] = []

    async def work(point: int) -> None:
        async with on.locks.once(f"a{point}") as run:
            assert not run.done
            run.finish(point)
            finished.append(point)

    point = 0
    while await cancelled_at(work(point), point, moment):
        point += 1
    assert 2 < len(finished) < point
    await until(lambda: not on.locks.leases())
    for each in range(point + 1):
        async with on.locks.once(f"a{each}", timeout=1) as run:
            assert (run.done, run.result) == ((True, each) if each in finished else (False, None))
    async with on.connect() as others:
        await others.ready()
    assert not await left(on.nodes)


@virtual
async def test_a_closed_manager_keeps_nothing_and_leaves_nothing(on: Nodes) -> None:
    async with on.connect() as closing:
        run = await closing.once("a").acquire()
        run.finish("late")
        await closing.aclose()
        with pytest.raises(asynclock.AsyncLockError):
            await run.release()
    assert await look(on) == (False, None)
    assert not await left(on.nodes)
