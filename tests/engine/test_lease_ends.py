"""What a lease says at the very moment of its end, and how a closed coroutine ends it."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing import lose
from tests.engine.virtual_nodes import Nodes, virtual


def complaints() -> list[dict[str, Any]]:
    """Return a list that gets what callbacks of the loop raise from now on."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context))
    return seen


def close_inside(lease: asynclock.Lease) -> None:
    """Leave the lease as the end of a closed coroutine does."""
    leaving = lease.__aexit__(GeneratorExit, GeneratorExit(), None)
    with pytest.raises(StopIteration):
        leaving.send(None)


async def exactly_over(on: Nodes) -> asynclock.Lease:
    """Return a lease at the moment of its end, before any timer runs."""
    lease = await on.locks.lock("a", renew=False).acquire()
    loop: Any = asyncio.get_running_loop()
    loop.now += lease.remaining()
    return lease


@virtual
async def test_at_the_moment_of_its_end_a_lease_is_not_held(on: Nodes) -> None:
    """Its keys end at that moment as well."""
    lease = await exactly_over(on)
    assert not lease.held
    assert lease.remaining() == 0.0
    assert await lease.release() is False
    assert on.locks.statistics().lost == 1


@virtual
async def test_a_coroutine_that_is_closed_at_the_end_of_its_lease_has_lost_it(on: Nodes) -> None:
    lease = await exactly_over(on)
    before = on.locks.statistics().released
    close_inside(lease)
    await asyncio.sleep(0)
    assert await lease.release() is False
    assert lease.lost_reason is not None
    assert on.locks.statistics().lost == 1
    assert on.locks.statistics().released == before


@virtual
async def test_a_closed_coroutine_gives_its_lease_back(on: Nodes) -> None:
    before = on.locks.statistics().released
    lease = await on.locks.lock("a").acquire()
    await lease.__aenter__()
    close_inside(lease)
    assert lease.held, "it is released in the next round of the loop"
    await asyncio.sleep(0)
    assert not lease.held
    assert await lease.release() is True
    assert on.locks.statistics().released == before + 1


@pytest.mark.parametrize("end", ["lost", "released"])
@virtual
async def test_a_coroutine_closed_after_its_lease_ended_ends_nothing(on: Nodes, end: str) -> None:
    seen, before = complaints(), on.locks.statistics().released
    lease = await on.locks.lock("a").acquire()
    await lease.__aenter__()
    if end == "lost":
        lose(lease)
    else:
        await lease.release()
    close_inside(lease)
    await asyncio.sleep(0.1)
    assert seen == []
    assert on.locks.statistics().released == before + (end == "released")
    assert await lease.release() is (end == "released")


@virtual
async def test_the_error_of_a_lease_that_has_ended_says_how(on: Nodes) -> None:
    released, detached = [await on.locks.lock(name).acquire() for name in "bc"]
    await released.release()
    await detached.detach()
    ended = "it was released or detached"
    for lease, reason in (
        (released, ended),
        (detached, ended),
        (await exactly_over(on), "expired"),
    ):
        with pytest.raises(asynclock.LeaseLostError) as caught:
            await lease.extend()
        assert caught.value.reason == reason
