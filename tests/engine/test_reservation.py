"""Blocks of fences: late answers and cancelled successors change nothing about the order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.fences import BLOCK, SPARE_FENCES, Reservation, reserve_ahead, reserve_now
from asynclock._engine.grant import Grant
from asynclock._engine.options import LeaseOptions
from asynclock._nodes.replies import Failure
from asynclock.testing import LocalServer
from tests import patient
from tests.engine.virtual_nodes import Nodes, virtual


class Silent:
    """Three nodes whose answers to a raise are told by hand."""

    retention = 1000

    def __init__(self) -> None:
        self.multiplexer = self
        self.quorum, self.nodes = 2, (None,) * 3
        self.quarantined: set[int] = set()
        self.told: list[int] = []
        """The fences that nodes were told, one for each raise."""

    def counts(self, index: int, _sent: float, voters: tuple[int, ...]) -> bool:
        """Decides like the multiplexer."""
        return index not in self.quarantined or index in voters

    def broadcast(self, command: Any, sink: Any) -> None:
        """Nothing is answered yet."""
        self.told.append(command)


class Keys:
    """Stands in for a LockSpec: the command doesn't matter here."""

    def write_back(self, _owner: str, fence: int, _retention: int) -> int:
        """Return the fence that a node would be told."""
        return fence


def won() -> Grant:
    """Return a grant with the fence 10 that nodes 0 and 1 gave."""
    return Grant(Keys(), "me", 10, 1.0, 1.0, (0, 1), 0.0, None)  # type: ignore[arg-type]


def reserve(held: Grant, count: int) -> Reservation:
    return Reservation(Silent(), held, count)  # type: ignore[arg-type]


async def test_a_node_in_quarantine_counts_where_its_grant_had() -> None:
    held = won()
    nodes = Silent()
    nodes.quarantined = {1, 2}
    reservation = Reservation(nodes, held, 5)  # type: ignore[arg-type]  # stands in for it
    reservation.on_reply(0, [1, 10, 0])
    reservation.on_reply(2, [1, 10, 0])
    assert not held.fences
    reservation.on_reply(1, [1, 10, 0])
    assert held.fences


async def test_a_straggler_ends_no_newer_reservation() -> None:
    held = won()
    first = reserve(held, 5)
    first.on_reply(0, Failure("lost"))
    first.on_reply(1, Failure("lost"))
    first.on_reply(2, Failure("lost"))
    assert held.reserving is None
    second = reserve(held, 5)
    under_way = held.reserving
    third = reserve(held, 5)
    second.on_reply(0, [1, 10, 0])
    second.on_reply(1, [1, 10, 0])
    assert held.fences == range(0)  # a newer raise is under way: its answer counts
    assert under_way is not None
    assert under_way.done()
    third.on_reply(0, [1, 20, 0])
    third.on_reply(1, [1, 10, 0])
    assert held.fences == range(21, 26)
    second.on_reply(2, [1, 10, 0])
    assert held.fences == range(21, 26)


async def test_a_strict_raise_gives_out_its_last_number_only() -> None:
    held = won()
    lost = reserve(held, 1)
    for node in range(3):
        lost.on_reply(node, Failure("lost"))
    again = reserve(held, 1)
    again.on_reply(0, [1, 10, 0])
    again.on_reply(1, [1, 10, 0])
    assert held.fences == range(12, 13)
    taken = reserve(held, 1)
    taken.on_reply(0, [1, 13, 0])  # this node has given 13 to another owner already
    taken.on_reply(1, [1, 12, 0])
    assert held.fences == range(12, 13)


async def test_a_refused_raise_reserves_nothing() -> None:
    held = won()
    refused = reserve(held, 5)
    refused.on_reply(0, [0, 12, 0])
    refused.on_reply(1, [0, 12, 0])
    refused.on_reply(2, [1, 10, 0])
    assert not held.fences


async def test_a_strict_hand_over_uses_no_fence_that_was_reserved_before() -> None:
    """Somebody else may have had the name since."""
    held = won()
    held.reserved(range(12, 13))
    options = LeaseOptions(1.0, handoff="strict")
    assert reserve_now(Silent(), held, options) is not None  # type: ignore[arg-type]
    assert not held.fences


async def test_a_reservation_that_fails_everywhere_is_over() -> None:
    held = won()
    lost = reserve(held, 5)
    under_way = held.reserving
    assert under_way is not None
    for node in range(3):
        assert not under_way.done()
        lost.on_reply(node, Failure("lost"))
    assert under_way.done()
    assert held.reserving is None
    assert not held.fences


async def test_a_block_is_reserved_ahead_once_few_fences_are_left() -> None:
    nodes: Any = Silent()
    usual, strict = LeaseOptions(1.0), LeaseOptions(1.0, handoff="strict")
    for left, options, blocks in (
        (SPARE_FENCES + 1, usual, 0),
        (SPARE_FENCES, strict, 0),
        (SPARE_FENCES, usual, 1),
    ):
        held = won()
        held.reserved(range(12, 12 + left))
        for _ in range(2):  # the second time, the block is on its way
            reserve_ahead(nodes, held, options)
        assert len(nodes.told) == blocks
    assert nodes.told[0] == held.fence + BLOCK
    assert 4 * SPARE_FENCES <= BLOCK, "the next block is asked for when most of this one is used"
    assert 100 <= BLOCK <= 10_000, "fences run ahead of the clock by so many microseconds"


async def test_a_hand_over_waits_for_one_reservation_and_only_if_it_must() -> None:
    nodes: Any = Silent()
    held = won()
    first = reserve_now(nodes, held, LeaseOptions(1.0))
    assert first is not None
    assert reserve_now(nodes, held, LeaseOptions(1.0)) is first
    assert nodes.told == [held.fence + BLOCK]
    held = won()
    held.reserved(range(12, 13))
    assert reserve_now(nodes, held, LeaseOptions(1.0)) is None
    assert len(nodes.told) == 1
    before = held.top
    assert reserve_now(nodes, held, LeaseOptions(1.0, handoff="strict")) is not None
    assert nodes.told[1] == before + 1, "a strict one reserves a single fence"


async def test_a_cancelled_strict_successor_leaves_no_fence_to_the_next(
    asynclock_nodes: list[LocalServer],
) -> None:
    async with patient.connect(asynclock_nodes[0].url) as locks:
        lock = locks.lock("a", handoff="strict")

        async def hold() -> int:
            async with lock as lease:
                return lease.fence

        for _ in range(20):
            first = await lock.acquire()
            doomed, waiting = asyncio.create_task(hold()), asyncio.create_task(hold())
            while locks.statistics().waiting < 2:
                await asyncio.sleep(0)
            await first.release()
            await asyncio.sleep(0)  # the doomed one is on its way to take over
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            assert await waiting > first.fence
        counter = int(await asynclock_nodes[0].command("GET", "asynclock:a:#fence"))
        # A raise for each of the successors that lived, and at most one for each that did not.
        assert counter >= first.fence + 1


async def test_the_first_fence_asks_no_clock_of_ours(
    asynclock_nodes: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half a minute ahead, as a machine that has not met its time server yet.
    monkeypatch.setattr("asynclock._clock.wall", lambda: time.time() + 30)
    urls = [node.url for node in asynclock_nodes]
    async with patient.connect(*urls, restart_guard=False) as locks, locks.lock("a") as lease:
        assert abs(lease.fence / 1_000_000 - time.time()) < 10
    one = patient.connect(*urls, restart_guard=False)  # no connection yet, no clock known
    async with one.lock("a") as later:
        assert abs(later.fence / 1_000_000 - time.time()) < 10
        assert later.fence > lease.fence
    await one.aclose()


@virtual
async def test_hand_overs_go_on_while_the_next_block_is_being_reserved(on: Nodes) -> None:
    """Many tasks in turn have the lock for a moment each, and the nodes answer in 10 ms."""
    waited: list[float] = []
    ends = _clock.now()

    async def hold() -> None:
        nonlocal ends
        async with on.locks.lock("a"):
            waited.append(_clock.now() - ends)
            await asyncio.sleep(0.00005)
            ends = _clock.now()

    on.slow(0.005)
    await asyncio.gather(*(hold() for _ in range(BLOCK + 300)))
    on.slow(0.0)
    assert [number for number, seconds in enumerate(waited) if seconds > 0.001] == [0, 1], (
        "the first acquire and the first block take a round trip"
    )
