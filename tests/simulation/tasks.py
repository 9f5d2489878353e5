"""Operations that cross tasks: leases left elsewhere, shared lock objects, inherited holds, waits
that are thrown away.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asynclock
from tests.simulation.clients import NOTHING, follow, obtain, operation, pass_through, some_lock
from tests.simulation.world import TTL, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Run


@operation
async def left_elsewhere(run: Run, process: Process) -> None:
    """Enter in one task, leave in another; the first goes on undisturbed with something else."""
    entered: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
    given = adopted = False

    async def enter() -> None:
        nonlocal given
        began = run.world.loop.now
        lease = await obtain(run, process, some_lock(run, process).acquire(timeout=TTL), TTL)
        if lease is None:
            return
        body = follow(run, process, lease, lease.name, began)
        given = True
        entered.put_nowait((await lease.__aenter__(), body))
        try:
            await asyncio.sleep(run.random.uniform(0, TTL))
        except asyncio.CancelledError:
            if lease.lost_reason is None:
                run.accuse(f"{process.name}: a task was cancelled though its lease is not lost")
            elif adopted:
                run.accuse(f"{process.name}: a loss cancelled a task whose body has moved on")

    async def leave() -> None:
        nonlocal adopted
        lease, body = await entered.get()
        lease.adopt()
        adopted, error = True, None
        try:
            await asyncio.sleep(run.random.expovariate(4.0))
        except asyncio.CancelledError as cancelled:
            error = cancelled
        run.records.leaves(body)
        try:
            await lease.__aexit__(error and type(error), error, None)
        except asynclock.LeaseLostError:
            run.found.counts["lost"] += 1

    entering = process.spawn(enter(), "enter")
    leaving = process.spawn(leave(), "leave")
    entering.add_done_callback(lambda _: given or leaving.cancel())
    await asyncio.wait([entering, leaving])


@operation
async def dispatched(run: Run, process: Process) -> None:
    """One task acquires again and again, others release."""
    lock = some_lock(run, process)
    workers = []

    async def work(lease: asynclock.Lease, body: Any) -> None:
        try:
            await pass_through(run, lease)
        finally:
            run.records.leaves(body)
            await lease.release()

    try:
        for _ in range(run.random.randint(2, 4)):
            began = run.world.loop.now
            lease = await obtain(run, process, lock.acquire(timeout=TTL), TTL)
            if lease is not None:
                body = follow(run, process, lease, lease.name, began)
                workers.append(process.spawn(work(lease, body), "dispatched"))
    finally:
        if workers:
            await asyncio.wait(workers)


@operation
async def thrown_away(run: Run, process: Process) -> None:
    """A coroutine that waits in the queue of this process is closed, as a generator is."""
    handoff = run.random.choice((True, "strict"))
    name = run.random.choice(run.plan.names)
    held: asyncio.Event = asyncio.Event()
    first = run.random.random() < 0.5

    async def have() -> None:
        began = run.world.loop.now
        lock = process.locks.lock(name, handoff=handoff)
        lease = await obtain(run, process, lock.acquire(timeout=TTL), TTL)
        if lease is not None:
            body = follow(run, process, lease, name, began)
            held.set()
            await asyncio.sleep(0.01)
            run.records.leaves(body)
            await lease.release()

    async def want() -> None:
        async with process.locks.lock(name, handoff=handoff):
            pass  # it was free again already

    having = process.spawn(have(), "have")
    waiting = want()
    try:
        started = process.spawn(held.wait(), "held")
        try:
            await asyncio.wait([having, started], return_when="FIRST_COMPLETED")
        finally:
            started.cancel()
        if held.is_set() and not having.done():
            waiting.send(None)
        if first:
            waiting.close()
        await asyncio.wait([having])
    finally:
        waiting.close()


@operation
async def shared_object(run: Run, process: Process) -> None:
    """Several tasks enter one semaphore object; a task that entered nothing tries to leave it."""
    lock = process.locks.semaphore("shared", 2, timeout=TTL)
    entered: list[asynclock.Lease] = []

    async def enter() -> None:
        try:
            async with lock as lease:
                entered.append(lease)
                try:
                    await asyncio.sleep(0.1 + run.random.expovariate(10.0))
                    if not lease.held and lease.lost_reason is None and process.looks(lease):
                        run.accuse(f"{process.name}: {lease!r} was ended by somebody else")
                finally:
                    entered.remove(lease)
        except NOTHING:
            pass
        except asynclock.LeaseLostError:
            run.found.counts["lost"] += 1

    async def leave_nothing() -> None:
        await asyncio.sleep(run.random.uniform(0, 0.1))
        before = [lease for lease in entered if lease.held]
        if len(before) < 2:
            return
        try:
            await lock.__aexit__(None, None, None)
        except RuntimeError:
            return
        run.accuse(f"{process.name}: a task that entered nothing left {before}")

    tasks = [process.spawn(enter(), "enter") for _ in range(2)]
    tasks.append(process.spawn(leave_nothing(), "leave nothing"))
    await asyncio.wait(tasks)
    for task in tasks:
        if (error := task.exception()) is not None:
            raise error


@operation
async def inherited(run: Run, process: Process) -> None:
    """Children share the owner's hold and outlive it; who comes later must wait for them."""
    name = run.random.choice(run.plan.names)
    lock = process.locks.reentrant_lock(name, inherit=True, timeout=TTL)
    inside: list[str] = []
    began = run.world.loop.now
    bodies: list[Any] = []

    async def child(pause: float) -> None:
        try:
            async with lock as lease:
                inside.append("child")
                try:
                    if run.random.random() < 0.5:
                        async with lock:
                            await asyncio.sleep(0)
                    await asyncio.sleep(pause)
                    if not lease.held and lease.lost_reason is None and process.looks(lease):
                        run.accuse(f"{process.name}: a child's hold on {name} has ended")
                finally:
                    inside.remove("child")
                    if not inside and bodies:
                        run.records.leaves(bodies.pop())
        except asynclock.LeaseLostError:
            run.found.counts["lost"] += 1
        except NOTHING:
            pass

    async def later() -> None:
        try:
            async with lock as lease:
                if "child" in inside and lease.held:
                    run.accuse(
                        f"{process.name}: {name} was entered beside a child of the last hold"
                    )
                await asyncio.sleep(0)
        except (*NOTHING, asynclock.LeaseLostError):
            pass

    children = []
    try:
        async with lock as lease:
            bodies.append(follow(run, process, lease, name, began))
            inside.append("owner")
            try:
                for _ in range(run.random.randint(1, 2)):
                    children.append(  # noqa: PERF401 - each is known before the next starts
                        process.spawn_inside(child(run.random.uniform(0.05, 0.4)), "child")
                    )
                await asyncio.sleep(run.random.uniform(0.005, 0.1))
            finally:
                inside.remove("owner")
                if not inside and bodies:
                    run.records.leaves(bodies.pop())
        if run.random.random() < 0.5:
            await later()
        else:
            await asyncio.wait([process.spawn_inside(later(), "later")])
    except asynclock.LeaseLostError:
        run.found.counts["lost"] += 1
    except NOTHING:
        pass
    finally:
        if children:
            await asyncio.wait(children)
        if bodies:
            run.records.leaves(bodies.pop())
