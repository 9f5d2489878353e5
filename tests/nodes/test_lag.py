"""A busy loop of our own doesn't count as a fault of the nodes."""

import asyncio
import time

import asynclock
from tests.conftest import Connect


async def test_a_blocked_loop_makes_no_outage(urls: list[str]) -> None:
    async with asynclock.connect(*urls, restart_guard=False, node_timeout=0.4) as locks:

        async def work(number: int) -> None:
            for _ in range(3):
                # Raises QuorumUnavailableError if the nodes count as silent.
                lease = await locks.lock(f"n{number}").try_acquire()
                assert lease is not None
                await lease.release()

        async def block() -> None:
            for _ in range(4):
                time.sleep(0.5)  # noqa: ASYNC251 - what a careless handler does
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(work(number))
            group.create_task(block())
        assert {node.state for node in locks.nodes()} == {"up"}
        assert locks.statistics().lost == 0


async def test_nodes_are_not_down_because_we_stood(urls: list[str], connecting: Connect) -> None:
    """Each step of a handshake takes a round of the loop, and each round comes late."""
    locks = connecting(*urls, restart_guard=False, node_timeout=0.25)
    asked = asyncio.ensure_future(locks.lock("a").try_acquire())
    for _ in range(4):
        time.sleep(0.3)  # noqa: ASYNC251 - the standstill
        await asyncio.sleep(0)
    assert await asked is not None
