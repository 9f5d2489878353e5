"""Nodes in memory, virtual time and the fault switches, as users' tests see them."""

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock.testing import freeze, lose, memory_node, run_virtual, thaw
from tests.docs.blocks import ROOT, python_blocks

PAGE = ROOT / "docs" / "testing.md"


async def test_a_name_is_one_node_of_the_loop() -> None:
    assert memory_node("a") is memory_node("memory://a") is not memory_node("b")

    async def elsewhere() -> object:
        return memory_node("a")

    assert await asyncio.to_thread(asyncio.run, elsewhere()) is not memory_node("a")


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
