"""What clients do: each operation is one task of one process, from its first call to its last."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import asynclock
from tests.simulation.records import lock_key_of
from tests.simulation.world import NODE_TIMEOUT, TTL, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Run

Operation = Callable[["Run", Process], Any]
OPERATIONS: dict[str, Operation] = {}
SLACK = 0.001
NOTHING = (asynclock.NotAcquiredError, asynclock.QuorumUnavailableError)
"""What calls raise that have got nothing."""
NOT_A_TTL: tuple[Any, ...] = (
    TTL * 1.01,
    TTL * 15,
    1e9,
    float("inf"),
    float("nan"),
    0,
    -1,
    "1",
    NODE_TIMEOUT / 2,
)
"""What `extend` must refuse, as `lock(ttl=)` does."""


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


# ---- what operations are made of ---------------------------------------------------------------
def any_ttl(run: Run) -> float:
    """A ttl that a lock may have here."""
    longest = run.world.nature.settings.get("max_ttl", TTL)
    return longest * run.random.choice((1.0, 1.0, 0.6, 0.3))


def some_lock(run: Run, process: Process, **settings: Any) -> asynclock.Lock:
    """A mutex on any name of the plan."""
    settings.setdefault("handoff", run.random.choice((True, "strict", False)))
    return process.locks.lock(run.random.choice(run.plan.names), **settings)


async def obtain(run: Run, process: Process, call: Awaitable[Any], patience: float | None) -> Any:
    """What `call` gives; None if it says within the caller's patience that there is nothing."""
    began, task = run.world.loop.now, asyncio.current_task()
    run.world.settled.discard(task)
    try:
        return await call
    except NOTHING:
        if patience is not None:
            settled = task in run.world.settled
            run.check_patience(process, began, patience, settled=settled)
        return None


async def hold(
    run: Run,
    process: Process,
    lease: Any,
    began: float,
    inside: Callable[[Run, Any], Awaitable[None]],
    *,
    name: str = "",
    shared: bool = False,
) -> None:
    """Enter the lease, be inside, leave; whatever happens in between must be reported."""
    completed = held_at_end = reported = False
    body = run.records.entered(process, lease, name or lease.name, began, shared=shared)
    try:
        async with lease:
            try:
                await inside(run, lease)
                completed, held_at_end = True, lease.held
            finally:
                run.records.leaves(body)
    except asynclock.LeaseLostError:
        reported = True
        run.found.counts["lost"] += 1
    finally:
        run.records.leaves(body)
        if process.on_left is not None and not process.stopped:
            spring, process.on_left = process.on_left, None
            spring()
    if completed and not held_at_end and not reported:
        run.accuse(f"{process.name}: a loss of fence {lease.fence} was not reported")


async def use(
    run: Run,
    process: Process,
    call: Awaitable[Any],
    patience: float | None,
    inside: Callable[[Run, Any], Awaitable[None]],
    **options: Any,
) -> None:
    """Hold what `call` gives, if it gives a lease."""
    began = run.world.loop.now
    lease = await obtain(run, process, call, patience)
    if lease is not None:
        await hold(run, process, lease, began, inside, **options)


async def glance(run: Run, process: Process, inside: Callable[[Run, Any], Awaitable[None]]) -> None:
    """Hold some name if it is free."""
    await use(run, process, some_lock(run, process).try_acquire(), 0.0, inside)


def follow(run: Run, process: Process, lease: Any, name: str, began: float) -> Any:
    """Record a body that no loss interrupts: it ends with its lease, or when it is left."""
    body = run.records.entered(process, lease, name, began)

    async def watch() -> None:
        await lease.wait_lost()
        run.records.leaves(body)

    process.spawn(watch(), "watch")
    return body


async def be_inside(run: Run, lease: Any) -> None:
    """A short while, sometimes a long one, sometimes with a renewal by hand."""
    await asyncio.sleep(run.random.expovariate(4.0))
    if run.random.random() < 0.1:
        with contextlib.suppress(asynclock.QuorumUnavailableError):
            await lease.extend()
    if run.random.random() < 0.1:
        await asyncio.sleep(run.random.uniform(0, 2 * TTL))


async def stay_inside(run: Run, lease: Any) -> None:
    """For several ttls: renewals keep it."""
    await asyncio.sleep(lease.ttl * run.random.uniform(0.5, 3.0))


async def stay_for_long(run: Run, lease: Any) -> None:
    """For more ttls still."""
    await asyncio.sleep(lease.ttl * run.random.uniform(1.0, 6.0))


async def linger(run: Run, _lease: Any) -> None:
    """Until a link whose reply is overdue is given up, and another is open."""
    await asyncio.sleep(run.random.uniform(1.4, 2.0))


async def pass_through(run: Run, lease: Any) -> None:
    """No longer than a body that others wait for behind each other."""
    await asyncio.sleep(run.random.expovariate(100.0))


# ---- mutexes -----------------------------------------------------------------------------------
@operation
async def mutex(run: Run, process: Process) -> None:
    """Acquire, be inside, release."""
    patience = run.random.uniform(0.2, 2 * TTL)
    call = some_lock(run, process).acquire(timeout=patience)
    await use(run, process, call, patience, be_inside)


@operation
async def try_mutex(run: Run, process: Process) -> None:
    """Only if it is free."""
    await glance(run, process, be_inside)


@operation
async def renewing(run: Run, process: Process) -> None:
    """Stay for long, with any ttl, sometimes unrenewed or with a bound on renewal."""
    patience, ttl = run.random.uniform(0.2, 2 * TTL), any_ttl(run)
    renew = run.random.random() < 0.8
    max_hold = run.random.choice((None, None, ttl / 2, ttl * 2))
    lock = some_lock(run, process, ttl=ttl, renew=renew, max_hold=max_hold)
    await use(run, process, lock.acquire(timeout=patience), patience, stay_inside)


@operation
async def lasting(run: Run, process: Process) -> None:
    """Stay for several very short ttls: renewals follow each other closely."""
    lock = some_lock(run, process, ttl=0.2 * TTL)
    await use(run, process, lock.acquire(timeout=TTL), TTL, stay_for_long)


@operation
async def long(run: Run, process: Process) -> None:
    """Hold until the end; a lease that all nodes have granted is never lost."""
    lock = process.locks.lock(f"long {process.name}")

    async def inside(run: Run, lease: Any) -> None:
        await asyncio.sleep(0.01)
        key, owner = lock_key_of(lease), lease.owner.encode()
        nodes = range(len(run.world.nodes))
        whole = key is not None and all(owner in run.world.owners(n, key) for n in nodes)
        try:
            await asyncio.sleep(run.plan.horizon)
        finally:
            if whole and lease.lost_reason is not None:
                run.accuse(f"{process.name} lost {lease.name}: {lease.lost_reason}")

    await use(run, process, lock.try_acquire(), None, inside)


@operation
async def crowded(run: Run, process: Process) -> None:
    """One of many in this process that want a name for a moment each."""
    await _for_a_moment(run, process, handoff=run.random.choice((True, True, "strict")))


@operation
async def strictly(run: Run, process: Process) -> None:
    """One of many, too, and each hand-over asks the nodes."""
    await _for_a_moment(run, process, handoff="strict")


async def _for_a_moment(run: Run, process: Process, *, handoff: bool | Literal["strict"]) -> None:
    lock = some_lock(run, process, handoff=handoff)
    await use(run, process, lock.acquire(timeout=TTL), TTL, pass_through)


@operation
async def glancing(run: Run, process: Process) -> None:
    """Only if it is free, and for a moment."""
    await glance(run, process, pass_through)


@operation
async def in_pairs(run: Run, process: Process) -> None:
    """In the first process two that hand over; in the others one that looks whether it is free."""
    if process is run.world.processes[0]:
        both = [_for_a_moment(run, process, handoff=True) for _ in range(2)]
        await asyncio.wait([process.spawn(one, "pair") for one in both])
    else:
        await glancing(run, process)


@operation
async def lingering(run: Run, process: Process) -> None:
    """Hold for longer than it takes to give up a connection that does not answer."""
    await glance(run, process, linger)


@operation
async def stretching(run: Run, process: Process) -> None:
    """Change a short ttl to the longest, at about the moment of a renewal."""
    ttl = 0.3 * TTL
    lock = some_lock(run, process, ttl=ttl)

    async def inside(run: Run, lease: Any) -> None:
        await asyncio.sleep(ttl / 3 * run.random.uniform(0.6, 1.0))
        await _extend_to(run, process, lease, TTL, None)
        await asyncio.sleep(run.random.uniform(0, TTL))

    await use(run, process, lock.acquire(timeout=TTL), TTL, inside)


@operation
async def extending(run: Run, process: Process) -> None:
    """Change the ttl while inside: shorter, longer, and to what must be refused."""
    patience, ttl = run.random.uniform(0.2, 2 * TTL), any_ttl(run)
    max_hold = run.random.choice((None, None, ttl * 0.7, ttl * 2))
    lock = some_lock(run, process, ttl=ttl, max_hold=max_hold)
    began = run.world.loop.now
    lease = await obtain(run, process, lock.acquire(timeout=patience), patience)
    if lease is not None:
        acquired = process.now()
        until = None if max_hold is None else acquired + max_hold

        async def inside(run: Run, lease: Any) -> None:
            for _ in range(run.random.randint(1, 4)):
                await _extend(run, process, lease, until)
                await asyncio.sleep(run.random.expovariate(4.0))

        await hold(run, process, lease, began, inside)


ASKED: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
"""For each lease the latest end that it was asked to have, by its process's clock."""


async def _extend(run: Run, process: Process, lease: Any, until: float | None) -> None:
    if run.random.random() < 0.3:
        ttl = run.random.choice(NOT_A_TTL)
        try:
            await lease.extend(ttl)
        except (asynclock.ConfigurationError, asynclock.LeaseLostError):
            return
        except asynclock.QuorumUnavailableError:
            pass
        run.accuse(f"{process.name}: extend({ttl!r}) was accepted")
        return
    await _extend_to(run, process, lease, any_ttl(run), until)


async def _extend_to(
    run: Run, process: Process, lease: Any, ttl: float, until: float | None
) -> None:
    run.found.counts["extended"] += 1
    before = process.now() + lease.remaining()
    # An earlier request that got no answer in time may still be executed.
    latest = max(before, ASKED.get(lease, before))
    ASKED[lease] = max(latest, process.now() + ttl)
    run.records.extended(lease, ttl)
    try:
        await lease.extend(ttl)
    except asynclock.QuorumUnavailableError:
        pass
    except asynclock.ConfigurationError:  # it would have ended the lease sooner
        if ttl >= lease.ttl:
            run.accuse(f"{process.name}: extend({ttl:g}) was refused")
        return
    finally:
        run.records.extended(lease)
    end = process.now() + lease.remaining()
    if until is None and end > max(latest, process.now() + ttl) + SLACK:
        run.accuse(f"{process.name}: extend({ttl:g}) left {lease.remaining():.3f} s")
    if until is not None and end > max(until, before) + SLACK:
        run.accuse(f"{process.name}: extend({ttl:g}) stepped over max_hold")
