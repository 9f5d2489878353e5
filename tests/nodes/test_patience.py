"""A process that stood still does not take a node for one that is down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.handshake import greet
from asynclock._nodes.link import LATE_TIMER_FACTOR
from asynclock._nodes.patience import NEEDED_CHECKS, Patience
from asynclock.testing import LocalServer, run_virtual
from tests.conftest import Connect
from tests.nodes.test_link_timer import Listener


async def stand_still(seconds: float, *, times: int = 1) -> None:
    """Block the loop, several times in a row, with one round of the loop in between."""
    for _ in range(times):
        time.sleep(seconds)  # noqa: ASYNC251 - the standstill
        await asyncio.sleep(0)


async def test_a_handshake_goes_on_after_standstills(asynclock_nodes: list[LocalServer]) -> None:
    """Each of its steps takes a round of the loop, and each round comes late."""
    address = Endpoint.from_url(asynclock_nodes[0].url)
    greeting = asyncio.create_task(greet(address, Listener(), 0.25, 0.25))
    await stand_still(0.3, times=4)
    link = await greeting
    link.close("the test is over")
    await link.closed


async def test_nodes_are_not_down_because_we_stood(
    asynclock_nodes: list[LocalServer], connecting: Connect
) -> None:
    urls = [node.url for node in asynclock_nodes]
    locks = connecting(*urls, restart_guard=False, node_timeout=0.25)
    asked = asyncio.ensure_future(locks.lock("a").try_acquire())
    await stand_still(0.3, times=4)
    assert await asked is not None


def ends(patience: float) -> float:
    """The seconds after which it is over in a process that does nothing else."""

    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        begin = loop.time()
        Patience(patience, over.set)
        await over.wait()
        return loop.time() - begin

    return run_virtual(scenario())


@pytest.mark.parametrize("seconds", [0.01, 0.25, 2.0])
def test_a_process_that_runs_waits_no_longer(seconds: float) -> None:
    assert ends(seconds) == pytest.approx(seconds)


async def checks(late: Callable[[int], bool]) -> int:
    """Return the number of checks until it is over, of which some come late."""
    made = 0

    class Counting(Patience):
        def _check(self) -> None:
            nonlocal made
            if late(made):
                self._due -= 2 * self._pause
            made += 1
            super()._check()

    over = asyncio.Event()
    Counting(0.001 * NEEDED_CHECKS, over.set)
    async with asyncio.timeout(10):  # forty checks, a millisecond apart
        await over.wait()
    return made


async def test_a_late_check_does_not_count() -> None:
    assert await checks(lambda number: number in {0, 3}) >= NEEDED_CHECKS + 2


async def test_in_a_process_that_is_always_late_it_ends_too() -> None:
    assert await checks(lambda _: True) == LATE_TIMER_FACTOR * NEEDED_CHECKS
