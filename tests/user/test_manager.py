"""Each setting of a manager's methods reaches what it makes, and a manager ends as it says."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock.testing.memory import memory_node
from tests.waiting import in_virtual_time

TTL = 4.0
SETTINGS: dict[str, Any] = {"ttl": TTL, "max_ttl": 20.0, "node_timeout": 0.5}


def connect(**settings: Any) -> asynclock.LockManager:
    return asynclock.connect("memory://", **{**SETTINGS, **settings})


@pytest.mark.parametrize(
    ("settings", "ends"),
    [({}, None), ({"renew": False}, TTL), ({"max_hold": 9.0}, 9.0), ({"ttl": 8.0}, None)],
)
@in_virtual_time
async def test_how_long_a_lease_is_held(settings: dict[str, Any], ends: float | None) -> None:
    async with connect() as locks:
        began = _clock.now()
        lease = await locks.lock("a", **settings).acquire()
        assert lease.remaining() == pytest.approx(settings.get("ttl", TTL), rel=0.05)
        if ends is None:
            await asyncio.sleep(60)
            assert lease.held
        else:
            async with asyncio.timeout(60):
                await lease.wait_lost()
            assert _clock.now() - began == pytest.approx(ends, abs=0.1)


@pytest.mark.parametrize(("settings", "whole"), [({}, False), ({"interrupt": False}, True)])
@in_virtual_time
async def test_whether_a_loss_interrupts_the_body(settings: dict[str, Any], *, whole: bool) -> None:
    done = False
    async with connect() as locks:
        with pytest.raises(asynclock.LeaseLostError):
            async with locks.lock("a", **settings):
                memory_node().freeze()
                await asyncio.sleep(3 * TTL)
                done = True
        memory_node().thaw()
    assert done is whole


@in_virtual_time
async def test_how_long_a_lock_is_waited_for() -> None:
    async with connect() as here, connect() as there:
        async with here.lock("a"):
            began = _clock.now()
            with pytest.raises(asynclock.AcquireTimeoutError):
                async with there.lock("a", timeout=3.0):
                    pass
            assert _clock.now() - began == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize("kind", ["event", "latch", "barrier"])
@in_virtual_time
async def test_how_long_shared_state_is_kept(kind: str) -> None:
    async with connect() as locks:
        made: dict[str, Any] = {
            "event": lambda: locks.event("a", keep=40.0),
            "latch": lambda: locks.latch("a", 2, keep=40.0),
            "barrier": lambda: locks.barrier("a", 1, keep=40.0),
        }
        one = made[kind]()
        calls = {"event": "set", "latch": "count_down", "barrier": "wait"}
        await getattr(one, calls[kind])()
        assert 35_000 < await memory_node().command("PTTL", one._register.key) <= 45_000


def test_a_wrong_setting_of_a_decorator_is_told_when_it_decorates() -> None:
    locks = asynclock.connect("redis://127.0.0.1:1")
    with pytest.raises(asynclock.ConfigurationError, match="ttl"):
        locks.synchronized("a", ttl=-1.0)


def test_an_unknown_argument_is_refused_by_each_method() -> None:
    locks: Any = asynclock.connect("redis://127.0.0.1:1")
    for make in (locks.lock, locks.reentrant_lock, locks.rwlock, locks.fair_lock, locks.election):
        with pytest.raises(TypeError, match="blocking_timeout"):
            make("a", blocking_timeout=1)


def tasks() -> set[str]:
    return {name for task in asyncio.all_tasks() if "asynclock" in (name := task.get_name())}


@in_virtual_time
async def test_entering_a_manager_in_vain_leaves_nothing_open() -> None:
    """Whether it is cancelled or the nodes can't work."""
    memory_node().freeze()
    locks = connect(node_timeout=4.0, ttl=19.0)

    async def enter() -> None:
        async with locks:
            raise AssertionError

    entering = asyncio.create_task(enter())
    await asyncio.sleep(1)
    assert tasks()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    memory_node().thaw()
    await asyncio.sleep(0.01)
    assert tasks() == set()


@in_virtual_time
async def test_only_a_manager_that_was_used_and_not_closed_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        connect()
        async with connect() as locks, locks.lock("a"):
            pass
        del locks
        with pytest.raises(asynclock.ConfigurationError):
            asynclock.connect()
        gc.collect()


@in_virtual_time
async def test_what_a_manager_holds_is_counted_and_listed_in_order() -> None:
    async with connect() as locks:
        leases = [await locks.lock(name).acquire() for name in "cab"]
        assert locks.leases() == tuple(leases)
        assert locks.statistics().held == 3
        await leases[1].release()
        assert locks.leases() == (leases[0], leases[2])
