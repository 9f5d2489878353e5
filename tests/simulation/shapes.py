"""Operations on other primitives: semaphores, readers and writers, several names at once, an event
and a latch, and managers that live for one acquire only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asynclock
from tests.simulation.clients import NOTHING, be_inside, hold, obtain, operation, pass_through
from tests.simulation.world import TTL, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

PERMITS = 3


@operation
async def permit(run: Run, process: Process) -> None:
    """One of few permits, with any patience, none included."""
    patience = run.random.choice((0.0, 0.05, 0.3, TTL))
    lock: Any = process.locks.semaphore("permits", PERMITS)
    if run.random.random() < 0.2:
        await _several_permits(run, process, lock.several(2), patience)
        return
    began = run.world.loop.now
    lease = await obtain(run, process, lock.acquire(timeout=patience), patience)
    if lease is not None:
        await hold(run, process, lease, began, be_inside, name=f"permits {lease.part}")


async def _be_inside_all(run: Run, lease: Any, bodies: list[Any], inside: Any) -> None:
    """Hold a lease that is one body for each of its parts."""
    try:
        async with lease:
            try:
                await inside(run, lease)
            finally:
                for body in bodies:
                    run.records.leaves(body)
    except asynclock.LeaseLostError:
        run.found.counts["lost"] += 1
    finally:
        for body in bodies:
            run.records.leaves(body)


async def _several_permits(run: Run, process: Process, lock: Any, patience: float) -> None:
    began = run.world.loop.now
    hold = await obtain(run, process, lock.acquire(timeout=patience), patience)
    if hold is None:
        return
    bodies = [
        run.records.entered(process, lease, f"permits {lease.part}", began) for lease in hold.leases
    ]
    await _be_inside_all(run, hold, bodies, be_inside)


@operation
async def reading(run: Run, process: Process) -> None:
    """Read, for a while."""
    await _use_side(run, process, process.locks.rwlock("rw").read(), shared=True)


@operation
async def writing(run: Run, process: Process) -> None:
    """Write; a writer that waits keeps new readers out."""
    await _use_side(run, process, process.locks.rwlock("rw").write(), shared=False)


async def _use_side(run: Run, process: Process, lock: Any, *, shared: bool) -> None:
    patience = run.random.uniform(0.2, 2 * TTL)
    began = run.world.loop.now
    run.waiting += 1
    try:
        lease = await obtain(run, process, lock.acquire(timeout=patience), patience)
    finally:
        run.waiting -= 1
        run.last_waiter = run.world.loop.now
    if lease is not None:
        await hold(run, process, lease, began, be_inside, name="rw", shared=shared)


@operation
async def upgrading(run: Run, process: Process) -> None:
    """Two readers of one process that both want to write: they get an error."""
    rw = process.locks.rwlock("upgraded")
    ready = [0]

    async def read_then_write() -> None:
        try:
            async with rw.read().acquire(timeout=TTL):
                ready[0] += 1
                await asyncio.sleep(0.05)
                try:
                    async with rw.write():
                        pass
                except asynclock.AlreadyHeldError:
                    run.found.counts["told that it reads"] += 1
        except (*NOTHING, asynclock.LeaseLostError):
            pass

    tasks = [process.spawn(read_then_write(), "upgrade") for _ in range(2)]
    _, late = await asyncio.wait(tasks, timeout=4 * TTL)
    for task in late:
        run.accuse(f"{process.name}: a reader waits for itself")
        task.cancel()


@operation
async def changing_sides(run: Run, process: Process) -> None:
    """Read and then write, or write and then read, and let nobody in between."""
    rw, reads = process.locks.rwlock("rw"), run.random.random() < 0.5
    patience, began = run.random.uniform(0.2, 2 * TTL), run.world.loop.now
    side = rw.read() if reads else rw.write()
    lease = await obtain(run, process, side.acquire(timeout=patience), patience)
    if lease is None:
        return
    try:
        async with lease:
            body = run.records.entered(process, lease, "rw", began, shared=reads)
            try:
                await pass_through(run, lease)
            finally:
                run.records.leaves(body)
            change = rw.upgrade(lease, timeout=patience) if reads else rw.downgrade(lease)
            began = run.world.loop.now
            other = await obtain(run, process, change, patience if reads else None)
            if other is not None:
                run.found.counts["upgraded" if reads else "downgraded"] += 1
                await hold(run, process, other, began, be_inside, name="rw", shared=not reads)
    except asynclock.LeaseLostError:
        run.found.counts["lost"] += 1


@operation
async def several(run: Run, process: Process) -> None:
    """All of several names, or one whose name looks like all of them."""
    began, patience = run.world.loop.now, run.random.uniform(0.2, TTL)
    if "queues" in run.plan.strict and run.random.random() < 0.3:
        name = "a\0asynclock:b"
        lock = process.locks.lock(name, timeout=patience)
        lease = await obtain(run, process, lock.acquire(), patience)
        if lease is not None:
            if lease.name != name:
                run.accuse(f"{process.name} wanted {name!r} and got {lease.name!r}")
            await hold(run, process, lease, began, pass_through)
        return
    both = process.locks.multi_lock("a", "b", timeout=patience)
    lease = await obtain(run, process, both.acquire(), patience)
    if lease is None:
        return
    bodies = [run.records.entered(process, lease, name, began) for name in both.names]
    await _be_inside_all(run, lease, bodies, pass_through)


@operation
async def short_lived(run: Run, process: Process) -> None:
    """A manager that is closed right after its only acquire has failed, or was cancelled."""
    run.numbers += 1
    label = f"{process.name} brief {run.numbers}"
    locks = process.connect(label)
    try:
        timeout = run.random.choice((0.0, 0.001, 0.05, 0.3))
        lease = await obtain(
            run,
            process,
            locks.lock(run.random.choice(run.plan.names)).acquire(timeout=timeout),
            timeout,
        )
        if lease is not None and run.random.random() < 0.5:
            await lease.release()
    finally:
        process.managers.remove(locks)
        closing = process.spawn(locks.aclose(), "close")
        if run.random.random() < 0.2:
            run.world.loop.call_later(run.random.uniform(0, 0.05), closing.cancel)
        await asyncio.wait([closing])
        run.closed[label.encode()] = run.world.loop.now


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
