"""A rival that holds a name, and a lease that a test takes away."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.errors import ConfigurationError
from asynclock.events import Acquired, Released
from asynclock.testing import busy, lose, memory_node
from tests.tables.inside import now
from tests.waiting import in_virtual_time


@in_virtual_time
async def test_a_rival_waits_five_seconds_for_the_name() -> None:
    """A test whose name is never released fails soon, and one that releases it late does not."""
    async with asynclock.connect("memory://") as locks:
        async with locks.lock("a"):
            began = now()
            with pytest.raises(asynclock.AcquireTimeoutError):
                async with asyncio.timeout(60), busy("a"):
                    raise AssertionError("two owners hold it")
            assert now() - began == pytest.approx(5.0, abs=0.1)
        lease = await locks.lock("a").acquire()

        async def release_late() -> None:
            await asyncio.sleep(4.0)
            await lease.release()

        async with asyncio.TaskGroup() as others:
            others.create_task(release_late())
            async with busy("a") as theirs:
                assert (lease.held, theirs.held) == (False, True)


@in_virtual_time
async def test_the_loss_of_a_rival_does_not_interrupt_the_test() -> None:
    ran_on = False
    with pytest.raises(asynclock.LeaseLostError):
        async with busy("a") as lease:
            lose(lease)
            await asyncio.sleep(1.0)
            ran_on = True
    assert ran_on


@in_virtual_time
async def test_observers_of_the_code_under_test_hear_of_its_rival() -> None:
    seen: list[Any] = []
    async with asynclock.connect("memory://", observers=[seen.append]) as locks, busy("b", locks):
        pass
    of_the_lock = (Acquired, Released)
    assert [type(event) for event in seen if isinstance(event, of_the_lock)] == list(of_the_lock)


@in_virtual_time
async def test_a_rival_has_its_own_addresses_and_settings() -> None:
    async with busy("a", "memory://x", prefix="shop:", ttl=20) as lease:
        assert await memory_node("x").command("KEYS", "*:a") == ["shop:a"]
        assert await memory_node().command("KEYS", "*") == []
        assert lease.ttl == 20
    async with asynclock.connect("memory://x", prefix="shop:", ttl=20) as locks:
        async with busy("a", locks) as lease:
            assert await memory_node("x").command("KEYS", "*:a") == ["shop:a"]
            assert lease.ttl == 20
        for addresses, settings in ((("memory://",), {}), ((), {"ttl": 5})):
            with pytest.raises(ConfigurationError, match="has its nodes and settings already"):
                async with busy("a", locks, *addresses, **settings):
                    pass


@in_virtual_time
async def test_of_a_lease_on_several_names_the_first_one_is_lost() -> None:
    """As it is with names in different slots of a Cluster."""
    async with asynclock.connect("memory://") as locks:
        first, second = [await locks.lock(name).acquire() for name in "ab"]
        both = asynclock.MultiLease("a, b", "ab", [first, second])
        lose(both, "a test")
        assert [first.held, second.held, both.held] == [False, True, False]
        assert both.lost_reason == first.lost_reason == "a test"
        await second.release()
