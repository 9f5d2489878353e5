"""Holds on several leases, and several holds on one lease, when one ends before the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import asynclock
from asynclock.events import Event, Lost, Released
from asynclock.testing import lose
from tests.engine.virtual_nodes import Nodes, start, virtual_single
from tests.tables.inside import now
from tests.waiting import call_off

FIRST, SECOND = 0, 1


@contextlib.asynccontextmanager
async def two_leases(
    on: Nodes, **settings: Any
) -> AsyncIterator[tuple[asynclock.MultiLease, asynclock.LockManager]]:
    """A hold on the names m and n, with a lease for each, as on a Cluster."""
    async with on.connect(prefix="x:{", max_ttl=20) as locks:
        yield await locks.multi_lock("m", "n", **settings).acquire(), locks


async def free(on: Nodes) -> bool:
    return await on.nodes[0].command("EXISTS", "x:{m}", "x:{n}") == 0


async def at_once(answer: Awaitable[Any]) -> Any:
    """The result of a call that must not take any time."""
    began = now()
    async with asyncio.timeout(30):
        found = await answer
    assert now() - began < 0.001
    return found


@virtual_single
async def test_the_lease_that_ends_first_says_how_long_a_hold_lives(on: Nodes) -> None:
    for longer in (FIRST, SECOND):
        async with two_leases(on) as (hold, _):
            before = hold.ttl
            await hold.leases[longer].extend(before + 2)
            assert hold.ttl == before
            assert hold.remaining() < before
            await hold.release()


@virtual_single
async def test_an_extension_is_for_every_lease(on: Nodes) -> None:
    async with two_leases(on) as (hold, _):
        await asyncio.sleep(2)
        await hold.extend(8)
        for lease in hold.leases:
            assert lease.ttl == 8
            assert lease.remaining() > 7.5
        await hold.extend()
        assert hold.ttl == 8
        on.slow(0.2)
        async with asyncio.timeout(0.5):  # the requests travel together
            await hold.extend()


def either(test: Callable[[Nodes, int], Awaitable[None]]) -> Any:
    """Play it for each of the two leases as the one that is lost."""
    return pytest.mark.parametrize("lost", [FIRST, SECOND])(virtual_single(test))


@either
async def test_the_loss_of_one_lease_is_the_loss_of_the_hold(on: Nodes, lost: int) -> None:
    async with two_leases(on) as (hold, _):
        assert hold.owner == hold.leases[FIRST].owner != hold.leases[SECOND].owner
        assert repr(hold) == f"<MultiLease 'm, n' fence={hold.fence} held>"
        waiting = asyncio.create_task(hold.wait_lost())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        lose(hold.leases[lost])
        await at_once(waiting)
        await at_once(hold.wait_lost())
        assert (hold.held, hold.remaining(), await hold.check()) == (False, 0, False)
        assert hold.lost_reason == "a test took it away"
        with pytest.raises(asynclock.LeaseLostError, match=f"'{'mn'[lost]}'"):
            await hold.__aenter__()
        await asyncio.sleep(0.1)
        assert await free(on), "the body doesn't begin, so nothing else would end the other one"
        assert [await hold.release(), await hold.release()] == [False, False]


@virtual_single
async def test_a_part_that_is_released_alone_passes_on_and_the_hold_ends_only_the_others(
    on: Nodes,
) -> None:
    async with two_leases(on) as (hold, locks):
        assert locks.leases() == (hold,)
        waiting = start(locks.lock("n").acquire())
        await asyncio.sleep(0.05)
        part = hold.leases[SECOND]
        async with part:
            assert (part.task, hold.task) == (asyncio.current_task(), None)
        next_one = await waiting
        assert next_one.owner == part.owner, "it was handed over"
        assert (hold.held, hold.lost_reason) == (False, None)
        await at_once(hold.wait_lost())
        for use in (hold.extend, hold.__aenter__):
            with pytest.raises(asynclock.LeaseLostError, match=r"'n'.* it was released"):
                await use()
        assert await hold.release() is False
        assert await next_one.check()
        assert locks.leases() == (next_one,)
        await next_one.release()


@virtual_single
async def test_a_part_that_is_being_handed_over_is_no_longer_the_holds(on: Nodes) -> None:
    """The waiter that got it has not run yet."""
    async with two_leases(on) as (hold, locks):
        waiting = [start(locks.lock("n").acquire()) for _ in range(2)]
        await asyncio.sleep(0.05)
        await hold.leases[SECOND].release()
        with pytest.raises(asynclock.LeaseLostError, match="it was released"):
            await hold.__aenter__()
        assert (hold.held, await hold.release(), hold.lost_reason) == (False, False, None)
        assert [await (await one).release() for one in waiting] == [True, True]
        assert await free(on)


@virtual_single
async def test_a_hold_that_is_released_while_it_collects_keeps_nothing(on: Nodes) -> None:
    async with on.connect(prefix="x:{") as locks:
        held = await locks.lock("n").acquire()
        collecting = start(locks.multi_lock("m", "n").acquire())
        await asyncio.sleep(0.05)
        for lease in reversed(locks.leases()):
            assert await lease.release()
        whole = await collecting
        assert (held.held, whole.held, [*whole.fences]) == (False, False, [*"mn"])
        assert [[*part.fences] for part in whole.leases] == [["m"], ["n"]]
        assert (await whole.release(), await free(on)) == (False, True)


@virtual_single
async def test_its_parts_keep_a_hold(on: Nodes) -> None:
    async with two_leases(on) as (hold, locks):
        parts, told = hold.leases, list[Any]()
        hold.leases[SECOND].on_wanted(told.append)  # nobody need keep this part
        del hold
        assert await locks.ask_back("n")
        await asyncio.sleep(30)
        assert [one.name for one in told] == ["n"]
        assert await parts[FIRST].release()
        resumed = await locks.resume(await parts[SECOND].detach())
        assert await resumed.release()
        assert not locks.leases()


def test_a_hold_that_has_ended_may_be_released_in_any_loop() -> None:
    async def ended() -> asynclock.MultiLease:
        async with asynclock.connect("memory://a") as locks:
            return await locks.multi_lock("a", "b").acquire()

    assert asyncio.run(asyncio.run(ended()).release()) is False


@virtual_single
async def test_a_release_that_is_cancelled_releases_every_lease(on: Nodes) -> None:
    async with two_leases(on) as (hold, locks):
        on.slow(0.2)
        releasing = start(hold.release())
        await asyncio.sleep(0.1)
        assert not releasing.done()
        await call_off(releasing)
        assert releasing.cancelled()
        await asyncio.sleep(1)
        assert (locks.leases(), await free(on)) == ((), True)


@either
async def test_a_check_asks_the_nodes_for_every_lease(on: Nodes, lost: int) -> None:
    async with two_leases(on) as (hold, _):
        assert await hold.check()
        await on.nodes[0].command("DEL", f"x:{{{'mn'[lost]}}}")
        assert not await hold.check()


@either
async def test_the_loss_of_any_lease_interrupts_the_body(on: Nodes, lost: int) -> None:
    async with two_leases(on) as (hold, _):
        with pytest.raises(asynclock.LeaseLostError, match=f"'{'mn'[lost]}'") as caught:
            async with hold:
                asyncio.get_running_loop().call_later(1, lose, hold.leases[lost])
                await asyncio.sleep(5)
                raise AssertionError("the body went on")
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert await free(on)


@virtual_single
async def test_an_end_that_nothing_noticed_is_noticed_when_the_hold_is_entered_or_left(
    on: Nodes,
) -> None:
    """The code kept the loop busy until the time of the leases was over."""
    events: list[Event] = []
    loop: Any = asyncio.get_running_loop()
    async with on.connect(prefix="x:{", observers=[events.append]) as locks:
        for lock in (locks.multi_lock("m", "n"), locks.reentrant_lock("r")):
            hold: Any = await lock.acquire()
            loop.now += 11
            with pytest.raises(asynclock.LeaseLostError, match="event loop was busy"):
                await hold.__aenter__()
            with pytest.raises(asynclock.LeaseLostError, match="event loop was busy"):
                async with lock:
                    loop.now += 11
    assert [event.name for event in events if isinstance(event, Lost)] == [*"mnmnrr"]


@virtual_single
async def test_an_observer_may_release_what_is_being_released(on: Nodes) -> None:
    """At once, as an eager task does."""
    async with on.connect(prefix="x:{") as locks:
        hold, ended = await locks.multi_lock("m", "n").acquire(), list[Any]()
        waiting = [start(locks.lock("n").acquire()) for _ in range(2)]
        await asyncio.sleep(0.05)

        def again(event: Event) -> None:
            if isinstance(event, Released):
                for one in (hold, hold.leases[event.name == "n"]):
                    ended.append(next(one.release().__await__(), True))

        locks.observe(again)
        assert await hold.release()
        assert (ended, locks.statistics().released) == ([True] * 4, 2)
        assert [await (await one).release() for one in waiting] == [True, True]


@virtual_single
async def test_an_inner_hold_that_its_generator_released_ends_once(on: Nodes) -> None:
    lock = on.locks.reentrant_lock("r")

    async def inner() -> AsyncIterator[asynclock.ReentrantLease]:
        async with lock as hold:
            assert await hold.release() is True
            yield hold

    async with lock as outer, lock.acquire():
        assert outer.depth == 2
        generator: Any = inner()
        hold = await anext(generator)
        await generator.aclose()
        assert outer.depth == 2
        assert await hold.release() is True


@virtual_single
async def test_a_body_that_is_closed_releases_every_name(on: Nodes) -> None:
    async with two_leases(on) as (hold, locks):

        async def work() -> None:
            async with hold:
                await asyncio.Future()

        body = work()
        body.send(None)
        body.close()
        await asyncio.sleep(0.1)
        assert (locks.statistics().held, await free(on)) == (0, True)


@virtual_single
async def test_a_hold_that_a_stack_only_leaves_is_released(on: Nodes) -> None:
    for lock in (on.locks.multi_lock("m", "n"), on.locks.reentrant_lock("r")):
        hold: Any = await lock.acquire()
        async with AsyncExitStack() as stack:
            stack.push_async_exit(hold)
            assert (hold.held, hold.task) == (True, None)
        assert not hold.held
        assert await hold.release(), "it was held until the stack left it"
    assert not on.locks.statistics().held


@virtual_single
async def test_a_loss_between_two_leases_is_not_that_of_the_first(on: Nodes) -> None:
    lock = on.locks.lock("a", handoff="strict")
    lease = await lock.acquire()
    waiting = start(lock.acquire())
    await asyncio.sleep(0.05)
    await on.nodes[0].command("DEL", "asynclock:a")
    on.slow(0.2)
    extending = start(lease.extend())
    await asyncio.sleep(0.01)
    assert await lease.release()
    with pytest.raises(asynclock.LeaseLostError):
        await extending
    assert lease.lost_reason is None
    await (await waiting).release()
