"""Nodes in memory, virtual time, fault switches and rivals, as users' tests see them."""

import asyncio
import sys
from typing import Any

import pytest

import asynclock
from asynclock.errors import ConfigurationError
from asynclock.events import Acquired, Released
from asynclock.testing import busy, freeze, lose, memory_node, run_virtual, thaw
from tests.docs.blocks import ROOT, python_blocks
from tests.tables.inside import now
from tests.waiting import go_through, in_virtual_time

PAGE = ROOT / "docs" / "testing.md"


async def test_a_name_is_one_node_of_the_loop() -> None:
    assert memory_node("a") is memory_node("memory://a") is not memory_node("b")

    async def elsewhere() -> object:
        return memory_node("a")

    assert await asyncio.to_thread(asyncio.run, elsewhere()) is not memory_node("a")


async def test_loops_of_several_threads_disturb_each_other_in_nothing() -> None:
    async def go() -> None:
        async with asynclock.connect("memory://", ttl=60, max_ttl=60) as locks:
            for _ in range(300):
                async with locks.lock("a", timeout=0):
                    pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, go()) for _ in range(3)))
    finally:
        sys.setswitchinterval(before)


async def test_a_frozen_node_answers_when_it_is_thawed() -> None:
    async with asynclock.connect("memory://") as locks:
        freeze("memory://")
        with pytest.raises(asynclock.QuorumUnavailableError):
            await locks.lock("a").try_acquire()
        thaw("memory://")
        async with locks.lock("a", timeout=5) as lease:
            assert lease.held


async def test_a_lease_can_be_taken_away() -> None:
    async with asynclock.connect("memory://") as locks:
        ran_on = False
        with pytest.raises(asynclock.LeaseLostError, match="a test took it away"):
            async with locks.lock("a") as lease:
                lose(lease)
                await asyncio.sleep(30)
                ran_on = True
        assert not ran_on
        with pytest.raises(asynclock.ConfigurationError, match="nothing to lose"):
            lose(lease)


@pytest.mark.parametrize(
    "url", ["redis://localhost:1", "redis://127.0.0.1:1", "unix:///nowhere/redis.sock"]
)
def test_a_real_node_is_refused_in_virtual_time(url: str) -> None:
    async def scenario() -> None:
        async with asynclock.connect(url) as locks:
            await locks.lock("orders:42", timeout=1.0).acquire()

    with pytest.raises(asynclock.QuorumUnavailableError, match="use memory:// nodes"):
        run_virtual(scenario())


def test_waiting_for_ever_is_noticed() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="a deadlock"):
        run_virtual(scenario())


def test_the_page_about_testing() -> None:
    """The block as it is printed."""
    (block,) = [
        one for one in python_blocks(PAGE) if one.shown_by and "test_memory" in one.shown_by
    ]
    names: dict[str, Any] = {}
    exec(block.text, names)
    names["test_a_loss"]()


# ---- rivals --------------------------------------------------------------------------------------
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
                await go_through(busy("a", locks, *addresses, **settings))


@in_virtual_time
async def test_of_a_lease_on_several_names_the_first_one_is_lost() -> None:
    """As it is with names in different slots of a Cluster."""
    async with asynclock.connect("memory://", prefix="x:{") as locks:
        both = await locks.multi_lock("a", "b").acquire()
        first, second = both.leases
        lose(both, "a test")
        assert [first.held, second.held, both.held] == [False, True, False]
        assert both.lost_reason == first.lost_reason == "a test"
        await second.release()
