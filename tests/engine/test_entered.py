"""Which task a lease belongs to once it is entered, and what can't be entered."""

from __future__ import annotations

import asyncio

import pytest

import asynclock
from asynclock.testing import lose
from tests.engine.virtual_nodes import Nodes, virtual_single


@virtual_single
async def test_a_lease_is_entered_once(on: Nodes) -> None:
    async with on.locks.lock("a") as lease:
        with pytest.raises(RuntimeError, match="entered already"):
            await lease.__aenter__()
        assert lease.held


@virtual_single
async def test_a_lease_that_was_lost_is_not_adopted(on: Nodes) -> None:
    with pytest.raises(asynclock.LeaseLostError, match="took it away"):
        async with on.locks.lock("a") as lease:
            lose(lease)
            lease.adopt()
            raise AssertionError("it was adopted")


@virtual_single
async def test_only_a_task_can_adopt_a_lease(on: Nodes) -> None:
    refused: list[str] = []

    def adopt() -> None:
        try:
            lease.adopt()
        except RuntimeError as error:
            refused.append(str(error))

    async with on.locks.lock("a") as lease:
        before = lease.task
        asyncio.get_running_loop().call_soon(adopt)
        await asyncio.sleep(0.01)
        assert refused == ["a lease can only be held inside a task"]
        assert lease.task is before
