"""A busy loop of our own doesn't count as a fault of the nodes."""

from __future__ import annotations

import asyncio
import time

import asynclock
from asynclock import _clock
from asynclock._nodes.link import Link
from asynclock._nodes.script import Command
from asynclock.testing import LocalServer
from tests.nodes.test_guards import Owner, Wire


async def test_a_blocked_loop_makes_no_outage(asynclock_nodes: list[LocalServer]) -> None:
    urls = [node.url for node in asynclock_nodes]
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


async def test_a_reply_that_lies_unread_while_the_timer_runs_late_is_waited_for() -> None:
    link = Link(Owner(), 60.0)
    link.connection_made(Wire(link))
    asked = asyncio.ensure_future(link.ask(Command.plain("PING")))
    await asyncio.sleep(0)  # asked
    link._disarm()
    now, (sink, index, _, command) = _clock.now(), link._in_flight.pop()
    link._in_flight.append((sink, index, now - 62.0, command))
    link._due = now - 2.0
    link._check_time()
    link.data_received(b"+PONG\r\n")
    assert await asked == b"PONG"
    link.connection_lost(None)
