"""Clocks that jump: theirs and ours. Kleppmann's second timeline, and the rest.

https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.virtual_nodes import old, start
from tests.guards.conftest import Connect
from tests.waiting import in_virtual_time, until

Prepare = Callable[..., Any]


async def test_a_jump_is_seen_without_traffic(seasoned: Prepare, connect: Connect) -> None:
    """An idle node is asked for its clock: a jump can't hide between two locks."""
    (server,) = await seasoned(1)
    locks = connect(server.url, ttl=1.0, max_ttl=2.0)
    await locks.ready()
    server.jump_clock(5)
    await until(lambda: locks.nodes()[0].state == "quarantined")


# To a client it looks the same when its own clock stands still: all nodes seem to jump forward.
@pytest.mark.parametrize(("jump", "times"), [(20.0, 1), (0.4, 3), (0.01, 20)])
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("names", ["a", "abc", "abcde"])
@in_virtual_time
async def test_our_own_clock_stands_still_again_and_again(
    names: str, guard: bool, jump: float, times: int
) -> None:
    """A virtual machine that stutters loses as much of each lease: each time counts, and once."""
    on = old(names)
    async with on.connect(ttl=60.0, max_ttl=60.0, clock_guard=guard) as locks:
        lease = await locks.lock("a", renew=False).acquire()
        await locks.inspect("something else")
        left = lease.remaining()
        for _ in range(times):
            for node in on.nodes:
                node.jump_clock(jump)
            await locks.inspect("something else")
        lost = jump * times if guard else 0.0
        await asyncio.sleep(0.2)
        assert left - 0.2 - lease.remaining() == pytest.approx(lost, abs=0.01 * (times + 1))


@in_virtual_time
async def test_a_renewal_during_which_our_clock_stood_still() -> None:
    """It counts from the request on, which is longer ago than our clock says."""
    on = old("abc")
    async with on.connect(ttl=60.0, max_ttl=60.0) as locks:
        lease = await locks.lock("a", renew=False).acquire()
        on.slow(0.2)
        extending = start(lease.extend())
        await asyncio.sleep(0.1)
        for node in on.nodes:
            node.jump_clock(0.5)
        await extending
        # A jump behind a slow reply counts for no less than it was.
        assert -0.25 < lease.remaining() - (60.0 * 0.99 - 0.4 - 0.5) < 0.01
