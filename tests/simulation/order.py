"""Fair locks: whose ticket was acknowledged before another one asked goes first.

The judge sees what the nodes keep. A waiter loses the promise (docs/guarantees.md) as soon as its
ticket is not live on a quorum: it may have expired, its node may have restarted, or an attempt of
its own may have been granted there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asynclock._engine.attempt import Ticket
from asynclock._engine.seek import Seek
from tests.simulation.clients import hold, obtain, operation, pass_through
from tests.simulation.world import TTL, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

NAME = "in order"
LEAST = 300
"""Milliseconds that a live ticket has left: it is looked at three times in that time."""


@dataclass(eq=False)
class Wait:
    """One call of `acquire`."""

    process: Process
    before: list[Wait] = field(default_factory=list)
    """Those that go first."""
    promised: bool = False
    """Whether it has been in line on a quorum since it was first seen there."""
    lapsed: bool = False


class Order:
    """The calls that wait, one for each process at most."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waits: dict[Process, Wait] = {}

    def begins(self, process: Process) -> Wait | None:
        """A call begins, unless another one of this process waits."""
        if process in self._waits:
            return None
        self.look()
        first = [one for one in self._waits.values() if one.promised]
        wait = self._waits[process] = Wait(process, first)
        return wait

    def ends(self, wait: Wait, *, won: bool) -> None:
        """A call ends; one that has won must have let the others go first."""
        self.look()
        del self._waits[wait.process]
        if not won:
            return
        waiting = self._waits.values()
        for other in wait.before:
            self._run.found.counts["in order"] += 1
            if other in waiting and other.promised:
                self._run.accuse(f"{wait.process.name} has overtaken {other.process.name}")

    def look(self) -> None:
        """See who is in line on a quorum, and who is no longer."""
        for wait in self._waits.values():
            there = self._acknowledged(wait.process)
            wait.lapsed |= wait.promised and not there
            wait.promised = there and not wait.lapsed

    def _acknowledged(self, process: Process) -> bool:
        loops = [one for one in process.locks._engine.seeking if isinstance(one, Seek)]
        ticket = next((one._ticket for one in loops if one._spec.name == NAME), None)
        if ticket is None or ticket.number < 1 or ticket.unsettled:
            return False
        nodes = self._run.world.nodes
        return sum(_in_line(node, ticket) for node in nodes) > len(nodes) // 2


def _in_line(node: Any, ticket: Ticket) -> bool:
    key = ticket.key.encode()
    if node.keys.expiries.get(key, 0) - node.keys.now() < LEAST:
        return False
    queue = node.keys.values.get(ticket.spec.queue.encode(), {})
    return bool(queue.get(ticket.id.encode()) == ticket.number)


@operation
async def fairly(run: Run, process: Process) -> None:
    """Acquire a fair lock, be inside for a moment, release."""
    wait = run.order.begins(process)
    if wait is None:
        return
    began, lease = run.world.loop.now, None
    patience = run.random.uniform(0.5, 3 * TTL)
    try:
        call = process.locks.fair_lock(NAME).acquire(timeout=patience)
        lease = await obtain(run, process, call, patience)
    finally:
        run.order.ends(wait, won=lease is not None)
    if lease is not None:
        await hold(run, process, lease, began, pass_through)
        await asyncio.sleep(0)
