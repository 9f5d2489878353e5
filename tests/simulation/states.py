"""Shared state: what has been changed is seen by everybody from then on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asynclock
from tests.simulation.clients import operation
from tests.simulation.world import TTL, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

COUNTS = 1000


class States:
    """What is known of the event and the latch of one run."""

    def __init__(self) -> None:
        self.begun = self.counted = 0
        """Counts of the latch that were begun, and that were completed."""
        self.changing = False
        self.is_set: bool | None = False
        """What the event is by the last completed change; None where that one failed."""
        self.version = 0
        """How many changes of the event were begun."""


@operation
async def counting_down(run: Run, process: Process) -> None:
    """Count a latch down: each completed count is seen by all from then on."""
    known = run.states
    before = known.counted
    known.begun += 1
    try:
        left = await process.locks.latch("latch", COUNTS).count_down(timeout=TTL)
    except asynclock.QuorumUnavailableError:
        return
    known.counted += 1
    _judge_count(run, process, left, before + 1)


@operation
async def looking_at_the_latch(run: Run, process: Process) -> None:
    """What remains is never more than was seen before."""
    counted = run.states.counted
    try:
        left = await process.locks.latch("latch", COUNTS).remaining(timeout=TTL)
    except asynclock.QuorumUnavailableError:
        return
    _judge_count(run, process, left, counted)


def _judge_count(run: Run, process: Process, left: int, counted: int) -> None:
    seen = COUNTS - left
    if not counted <= seen <= run.states.begun:
        run.accuse(
            f"{process.name}: the latch was counted down {seen} times, where {counted} had been"
            f" completed and {run.states.begun} begun"
        )


@operation
async def changing_the_event(run: Run, process: Process) -> None:
    """Set or clear it; one change at a time, so that everybody knows what it is."""
    known = run.states
    if known.changing:
        return
    known.changing, known.is_set = True, None
    known.version += 1
    event, value = process.locks.event("event"), run.random.random() < 0.7
    try:
        await (event.set(timeout=TTL) if value else event.clear(timeout=TTL))
        known.is_set = value
    except asynclock.QuorumUnavailableError:
        # It may still take effect while its requests travel.
        await asyncio.sleep(2 * TTL)
    finally:
        known.changing = False


@operation
async def looking_at_the_event(run: Run, process: Process) -> None:
    """It is what the last completed change made it."""
    known = run.states
    before, version = known.is_set, known.version
    try:
        seen = await process.locks.event("event").is_set(timeout=TTL)
    except asynclock.QuorumUnavailableError:
        return
    if before is not None and version == known.version and seen is not before:
        run.accuse(f"{process.name}: the event is {seen}, though it was made {before}")
